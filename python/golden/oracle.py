# SPDX-License-Identifier: Apache-2.0
"""What transformers computes from a model folder in fp32, and the weights of tiny random checkpoints: shared by make_*.py of models."""

import copy
import math

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
transformers.logging.disable_progress_bar()

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
GREEDY = 24
MIN_CUT_MARGIN = 1e-4     # selection score of rank k minus rank k+1, over all rows
MIN_ORDER_MARGIN = 1e-5   # between neighbours inside the top k
MIN_GREEDY_MARGIN = 1e-3  # best logit minus second best, over the greedy steps


# ----------------------------------------------------------------------------------------------------------------------
# weights

class Weights:
    """Random fp32 tensors by name; everything a checkpoint would leave at 0 or 1 gets a value that shows."""

    def __init__(self, *seed):
        self.rng = common.rng_of(*seed)
        self.tensors = {}

    def normal(self, name, rows, columns, gain=1.0):
        values = self.rng.standard_normal((rows, columns)) * (gain / math.sqrt(columns))
        self.tensors[name] = torch.from_numpy(values.astype(np.float32))

    def norm(self, name, size, low=0.5, high=1.6):
        self.tensors[name] = torch.from_numpy(self.rng.uniform(low, high, size).astype(np.float32))

    def bias(self, name, size, std=0.3):
        self.tensors[name] = torch.from_numpy((self.rng.standard_normal(size) * std).astype(np.float32))

    def mlp(self, prefix, hidden, width, names=("gate_proj", "up_proj", "down_proj"), bias=False):
        for name, rows, columns, gain in ((names[0], width, hidden, 1.3), (names[1], width, hidden, 1.3),
                                          (names[2], hidden, width, 1.5)):
            self.normal(f"{prefix}{name}.weight", rows, columns, gain)
            if bias:
                self.bias(f"{prefix}{name}.bias", rows)


def ordered(weights):
    """File order of real checkpoints: by name."""
    return dict(sorted(weights.items()))


def write_single(folder, weights):
    save_file(ordered(weights), folder / "model.safetensors", metadata={"format": "pt"})


def write_shards(folder, weights, count):
    names = sorted(weights)
    total = sum(weights[n].numel() * weights[n].element_size() for n in names)
    shards, used = [[] for _ in range(count)], 0
    for name in names:
        shards[min(count - 1, used * count // total)].append(name)
        used += weights[name].numel() * weights[name].element_size()
    index = {"metadata": {"total_size": total}, "weight_map": {}}
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{count:05d}.safetensors"
        save_file({n: weights[n] for n in shard}, folder / file, metadata={"format": "pt"})
        index["weight_map"].update({n: file for n in shard})
    index["weight_map"] = dict(sorted(index["weight_map"].items()))
    common.write_json(folder / "model.safetensors.index.json", index, indent=2)


# ----------------------------------------------------------------------------------------------------------------------
# the oracle

def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager",
        output_loading_info=True)
    missing = set(info["missing_keys"]) | set(info["unexpected_keys"]) | {m[0] for m in info["mismatched_keys"]}
    if missing:
        raise RuntimeError(f"transformers did not load every tensor of {folder.name}: {sorted(missing)}")
    return model.eval()


@torch.no_grad()
def trace(model, tokens):
    """One full forward; the values that `pointsman trace` writes."""
    out, hooks = {}, []
    top_k = getattr(model.config, "num_experts_per_tok", 0)

    def keep_hidden(layer):
        def hook(_module, _inputs, output):
            hidden = output[0] if isinstance(output, tuple) else output
            out[f"layers.{layer}.hidden"] = hidden[0].clone()
        return hook

    def keep_router(layer, bias):
        def hook(_module, _inputs, output):
            logits, weights, ids = output
            logits = logits.reshape(-1, logits.shape[-1])
            if bias is not None:  # classes with a bias do not sort
                chosen = (torch.sigmoid(logits.float()) + bias).gather(1, ids)
                order = chosen.argsort(-1, descending=True)
                weights, ids = weights.gather(1, order), ids.gather(1, order)
            out[f"layers.{layer}.router.logits"] = logits.clone()
            out[f"layers.{layer}.router.weights"] = weights.clone()
            out[f"layers.{layer}.router.ids"] = ids.to(torch.int32)
        return hook

    for i, layer in enumerate(model.model.layers):
        hooks.append(layer.register_forward_hook(keep_hidden(i)))
        gate = getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None))
        if gate is not None:
            hooks.append(gate.register_forward_hook(keep_router(i, router_bias(layer))))
    try:
        out["logits"] = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].clone()
    finally:
        for hook in hooks:
            hook.remove()
    for name, value in out.items():
        assert torch.isfinite(value.float()).all(), name
        if name.endswith("router.ids"):
            assert value.shape == (len(tokens), top_k)
    return out


def router_bias(layer):
    """The selection bias of a layer's router or None."""
    for module in (layer.mlp, getattr(layer.mlp, "gate", None)):
        bias = getattr(module, "e_score_correction_bias", None)
        if bias is not None:
            return bias
    return None


def margins(model, values):
    """Smallest gaps of the selection scores: across the cut, and between neighbours above it."""
    cut, order = math.inf, math.inf
    for name, logits in values.items():
        if not name.endswith("router.logits"):
            continue
        k = values[name.replace("logits", "ids")].shape[1]
        bias = router_bias(model.model.layers[int(name.split(".")[1])])
        scores = torch.softmax(logits.double(), -1) if bias is None else torch.sigmoid(logits.double()) + bias.double()
        groups = getattr(model.config, "n_group", 1)
        if groups > 1:  # the cut between groups, then the experts of the kept ones
            best = scores.view(len(scores), groups, -1).topk(2).values.sum(-1)
            ranked = best.sort(-1, descending=True).values
            kept = model.config.topk_group
            cut = min(cut, (ranked[:, kept - 1] - ranked[:, kept]).min().item())
            mask = torch.zeros_like(best, dtype=torch.bool).scatter_(1, best.topk(kept).indices, True)
            scores = scores.masked_fill(~mask.repeat_interleave(scores.shape[1] // groups, 1), -1e9)
        scores = scores.sort(-1, descending=True).values
        gaps = scores[:, :-1] - scores[:, 1:]
        if k <= gaps.shape[1]:
            cut = min(cut, gaps[:, k - 1].min().item())
        if k > 1:
            order = min(order, gaps[:, : k - 1].min().item())
    return cut, order


def choices_changed_by_bias(model, values):
    """Rows whose experts would be others without the selection bias; None for a family without one."""
    changed = None
    for name, ids in values.items():
        if not name.endswith("router.ids"):
            continue
        bias = router_bias(model.model.layers[int(name.split(".")[1])])
        if bias is None:
            continue
        plain = values[name.replace("ids", "logits")].topk(ids.shape[1]).indices
        differ = (plain.sort(-1).values != ids.long().sort(-1).values).any(-1).sum().item()
        changed = (changed or 0) + differ
    return changed


@torch.no_grad()
def greedy(model, tokens):
    """Greedy continuation by full recomputation, checked against generate() with its cache."""
    ids, gap, values = list(tokens), math.inf, None
    for _ in range(GREEDY):
        values = trace(model, ids)
        best = values["logits"][-1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
    made = model.generate(torch.tensor([tokens]), attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
                          do_sample=False, max_new_tokens=GREEDY, min_new_tokens=GREEDY, eos_token_id=None,
                          pad_token_id=0, use_cache=True)[0].tolist()
    return ids[len(tokens):], gap, margins(model, values), made == ids


def make_tokens(vocab, count, seed):
    tokens = common.rng_of("tokens", seed).integers(3, vocab, count).tolist()
    tokens[count // 2:count // 2 + 5] = tokens[3:8]  # a repeated stretch
    return tokens


def expected_of(folder, tokens, seed):
    model = load(folder)
    values = trace(model, tokens)
    continuation, greedy_gap, greedy_margins, same = greedy(model, tokens)
    cut, order = (min(a, b) for a, b in zip(margins(model, values), greedy_margins))
    # Rounding noise: the same graph with double matrix products (norms and softmax stay fp32 in transformers).
    double = trace(copy.deepcopy(model).double(), tokens)["logits"]
    tensors = {k: v.contiguous().to(torch.int32 if k.endswith("ids") else torch.float32) for k, v in values.items()}
    tensors["tokens"] = torch.tensor(tokens, dtype=torch.int32)
    tensors["greedy"] = torch.tensor(continuation, dtype=torch.int32)
    facts = {
        "tokens": len(tokens),
        "router_cut_margin": None if math.isinf(cut) else float(f"{cut:.4g}"),
        "router_order_margin": None if math.isinf(order) else float(f"{order:.4g}"),
        "greedy_logit_margin": float(f"{greedy_gap:.4g}"),
        "max_abs_logit": float(f"{values['logits'].abs().max().item():.4g}"),
        "fp32_noise": float(f"{(values['logits'].double() - double).abs().max().item():.1g}"),
        "generate_with_cache_agrees": same,
    }
    changed = choices_changed_by_bias(model, values)
    if changed is not None:
        facts["router_choices_changed_by_bias"] = changed
        if changed == 0:
            raise RuntimeError(f"{folder.name}: the router bias changes no choice")
    good = cut >= MIN_CUT_MARGIN and order >= MIN_ORDER_MARGIN and greedy_gap >= MIN_GREEDY_MARGIN
    metadata = {
        "format": "pointsman-oracle-1", "numerics": "fp32", "device": "cpu", "attn_implementation": "eager",
        "experts_implementation": "eager", "seed": str(seed), "transformers": transformers.__version__,
        "torch": torch.__version__.split("+")[0],
    }
    return tensors, metadata, facts, good


