#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tiny random deepseek_v4 checkpoints with what transformers computes from them in fp32.

transformers had this family wrong in several releases, so before anything is written its numbers are compared with
deepseek_v4_reference.py (float64, from the formulas), and it is shown that the comparison would see each known mistake. The expected
values come from transformers where it agrees, and the manifest says by how much.
"""

import json
import math
import pathlib
import shutil
import tempfile

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

import deepseek_v4_reference as reference  # noqa: E402

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
transformers.logging.disable_progress_bar()

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
GREEDY = 24
AGREES = 1e-4             # transformers (fp32) against the reference (float64), on logits
SEES = 3e-3               # what every deliberate mistake must change at least
MIN_CUT_MARGIN = 2e-5     # router and indexer scores across the cut
MIN_ORDER_MARGIN = 1e-5
MIN_GREEDY_MARGIN = 2e-3


# ----------------------------------------------------------------------------------------------------------------------
# configs

def native_config(**changes):
    """As published: flat rope keys, compress_ratios with the entries of the MTP layers at the end."""
    config = {
        "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
        "compress_ratios": [0, 4, 128, 4, 0], "compress_rope_theta": 160000, "eos_token_id": 1, "expert_dtype": "fp4",
        "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20, "head_dim": 32, "hidden_act": "silu", "hidden_size": 32,
        "index_head_dim": 16, "index_n_heads": 6, "index_topk": 9, "initializer_range": 0.02, "max_position_embeddings": 4096,
        "model_type": "deepseek_v4", "moe_intermediate_size": 24, "n_routed_experts": 8, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hash_layers": 1, "num_hidden_layers": 4,
        "num_key_value_heads": 1, "num_nextn_predict_layers": 1, "o_groups": 2, "o_lora_rank": 16, "q_lora_rank": 24,
        "qk_rope_head_dim": 8, "rms_norm_eps": 1e-06,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 256, "type": "yarn"},
        "rope_theta": 10000, "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 16,
        "swiglu_limit": 1.0, "tie_word_embeddings": False, "topk_method": "noaux_tc", "torch_dtype": "float32",
        "transformers_version": "4.57.1", "use_cache": True, "vocab_size": 96,
    }
    config.update(changes)
    return config


WINDOW, CSA, HCA = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"


def v5_config(**changes):
    """As transformers 5 saves it: layer_types, compress_rates, nested rope_parameters."""
    main = {"partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"}
    compress = {"attention_factor": 1.0, "beta_fast": 32, "beta_slow": 1, "factor": 16, "original_max_position_embeddings": 256,
                "partial_rotary_factor": 0.25, "rope_theta": 160000.0, "rope_type": "yarn"}
    config = {
        "architectures": ["DeepseekV4ForCausalLM"], "attention_bias": False, "bos_token_id": 0, "compress_rates": {CSA: 4, HCA: 8},
        "compress_rope_theta": 160000.0, "dtype": "float32", "eos_token_id": 1, "hc_eps": 1e-06, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "head_dim": 32, "hidden_act": "silu", "hidden_size": 64, "index_head_dim": 16, "index_n_heads": 6, "index_topk": 3,
        "layer_types": [WINDOW, CSA, HCA, CSA, HCA, CSA], "max_position_embeddings": 4096, "mlp_bias": False,
        "mlp_layer_types": ["hash_moe"] + 5 * ["moe"], "model_type": "deepseek_v4", "moe_intermediate_size": 32, "n_routed_experts": 8,
        "n_shared_experts": 1, "norm_topk_prob": True, "num_attention_heads": 4, "num_experts_per_tok": 2, "num_hidden_layers": 6,
        "num_key_value_heads": 1, "o_groups": 2, "o_lora_rank": 16, "partial_rotary_factor": 0.25, "q_lora_rank": 32,
        "rms_norm_eps": 1e-06, "rope_parameters": {"compress": compress, "main": main}, "rope_theta": 10000.0,
        "routed_scaling_factor": 1.5, "scoring_func": "sqrtsoftplus", "sliding_window": 8, "swiglu_limit": 1.0,
        "tie_word_embeddings": False, "transformers_version": "5.24.0", "vocab_size": 128,
    }
    config.update(changes)
    return config


def shape_of(config):
    """What the reference needs, from either spelling."""
    layers = config["num_hidden_layers"]
    kind_of_type = {WINDOW: "window", CSA: "csa", HCA: "hca"}
    kind_of_ratio = {0: "window", 1: "window", 4: "csa", 128: "hca"}
    if "layer_types" in config:
        kinds = [kind_of_type[t] for t in config["layer_types"]]
        hash_layers = config["mlp_layer_types"].count("hash_moe")
        compress = config["rope_parameters"]["compress"]
        theta = config["rope_parameters"]["main"]["rope_theta"]
        rope_dim = int(config["head_dim"] * config["partial_rotary_factor"])
    else:
        kinds = [kind_of_ratio[r] for r in config["compress_ratios"][:layers]]
        hash_layers = config["num_hash_layers"]
        compress = {**config["rope_scaling"], "rope_theta": config["compress_rope_theta"]}
        theta, rope_dim = config["rope_theta"], config["qk_rope_head_dim"]
    rates = config.get("compress_rates", {CSA: 4, HCA: 128})
    return {"layers": layers, "kinds": kinds, "hash_layers": hash_layers, "csa_ratio": rates[CSA], "hca_ratio": rates[HCA],
            "hidden": config["hidden_size"], "heads": config["num_attention_heads"], "head_dim": config["head_dim"],
            "rope_dim": rope_dim, "rope_theta": theta, "compress_rope": compress, "q_lora": config["q_lora_rank"],
            "groups": config["o_groups"], "o_lora": config["o_lora_rank"], "window": config["sliding_window"],
            "index_heads": config["index_n_heads"], "index_dim": config["index_head_dim"], "index_topk": config["index_topk"],
            "hc_mult": config["hc_mult"], "hc_iters": config["hc_sinkhorn_iters"], "hc_eps": config["hc_eps"],
            "experts": config["n_routed_experts"], "top_k": config["num_experts_per_tok"], "score": config["scoring_func"],
            "scale": config["routed_scaling_factor"], "swiglu_limit": config["swiglu_limit"], "eps": config["rms_norm_eps"],
            "intermediate": config["moe_intermediate_size"], "vocab": config["vocab_size"]}


# ----------------------------------------------------------------------------------------------------------------------
# weights

def make_weights(s, seed, mtp):
    """Native names, fp32; nothing at its initial value: hc, ape, sinks, norms, biases all random."""
    rng = common.rng_of("deepseek_v4 weights", seed)
    w = {}

    def normal(name, rows, columns, gain=1.0):
        w[name + ".weight"] = torch.from_numpy((rng.standard_normal((rows, columns)) * gain / math.sqrt(columns)).astype(np.float32))

    def uniform(name, shape, low, high):
        w[name] = torch.from_numpy(rng.uniform(low, high, shape).astype(np.float32))

    def compressor(at, ratio, overlap, dim):
        width = dim * (2 if overlap else 1)
        uniform(at + "ape", (ratio, width), -1.5, 1.5)
        normal(at + "wkv", width, s["hidden"])
        normal(at + "wgate", width, s["hidden"], 1.5)
        uniform(at + "norm.weight", dim, 0.6, 1.6)

    def expert(at):
        normal(at + "w1", s["intermediate"], s["hidden"], 1.3)
        normal(at + "w3", s["intermediate"], s["hidden"], 1.3)
        normal(at + "w2", s["hidden"], s["intermediate"], 1.5)

    n = s["hc_mult"]
    rows = (2 + n) * n

    def block(at, kind, is_hash):
        for site in ("attn", "ffn"):
            uniform(f"{at}{site}_norm.weight", s["hidden"], 0.5, 1.6)
            w[f"{at}hc_{site}_fn"] = torch.from_numpy((rng.standard_normal((rows, n * s["hidden"])) / math.sqrt(n * s["hidden"])).astype(np.float32))
            uniform(f"{at}hc_{site}_base", rows, -1.0, 1.0)
            uniform(f"{at}hc_{site}_scale", 3, 0.6, 1.4)
        a = at + "attn."
        uniform(a + "attn_sink", s["heads"], -1.0, 2.0)
        normal(a + "wq_a", s["q_lora"], s["hidden"])
        uniform(a + "q_norm.weight", s["q_lora"], 0.6, 1.6)
        normal(a + "wq_b", s["heads"] * s["head_dim"], s["q_lora"])
        normal(a + "wkv", s["head_dim"], s["hidden"])
        uniform(a + "kv_norm.weight", s["head_dim"], 0.8, 2.2)
        normal(a + "wo_a", s["groups"] * s["o_lora"], s["heads"] * s["head_dim"] // s["groups"], 1.5)
        normal(a + "wo_b", s["hidden"], s["groups"] * s["o_lora"], 1.5)
        if kind != "window":
            compressor(a + "compressor.", s["csa_ratio"] if kind == "csa" else s["hca_ratio"], kind == "csa", s["head_dim"])
        if kind == "csa":
            normal(a + "indexer.wq_b", s["index_heads"] * s["index_dim"], s["q_lora"])
            normal(a + "indexer.weights_proj", s["index_heads"], s["hidden"], 2.0)
            compressor(a + "indexer.compressor.", s["csa_ratio"], True, s["index_dim"])
        normal(at + "ffn.gate", s["experts"], s["hidden"], 1.5)
        if is_hash:
            w[at + "ffn.gate.tid2eid"] = torch.from_numpy(np.stack(
                [rng.permutation(s["experts"])[:s["top_k"]] for _ in range(s["vocab"])]).astype(np.int64))
        else:
            uniform(at + "ffn.gate.bias", s["experts"], -0.4, 0.4)
        for e in range(s["experts"]):
            expert(f"{at}ffn.experts.{e}.")
        expert(at + "ffn.shared_experts.")

    def head(at):
        w[at + "hc_head_fn"] = torch.from_numpy((rng.standard_normal((n, n * s["hidden"])) / math.sqrt(n * s["hidden"])).astype(np.float32))
        uniform(at + "hc_head_base", n, -1.0, 1.0)
        uniform(at + "hc_head_scale", 1, 0.6, 1.4)
        uniform(at + "norm.weight", s["hidden"], 0.5, 1.6)

    normal("embed", s["vocab"], s["hidden"], 0.5 * math.sqrt(s["hidden"]))
    for i in range(s["layers"]):
        block(f"layers.{i}.", s["kinds"][i], i < s["hash_layers"])
    head("")
    normal("head", s["vocab"], s["hidden"], 2.5)
    if mtp:
        block("mtp.0.", "window", False)
        head("mtp.0.")
        for name in ("enorm", "hnorm"):
            uniform(f"mtp.0.{name}.weight", s["hidden"], 0.5, 1.6)
        for name in ("e_proj", "h_proj"):
            normal(f"mtp.0.{name}", s["hidden"], s["hidden"])
    return w


def stored_bf16(weights):
    """The dtypes of a published checkpoint that is not quantised: F32 where it has F32, BF16 elsewhere."""
    f32 = ("hc_", "attn_sink", ".ape", "gate.bias")
    return {k: v if v.dtype == torch.int64 or any(f in k for f in f32) else v.to(torch.bfloat16) for k, v in weights.items()}


E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
PLAIN = ("embed", "head", "norm", "gate.", "compressor.", "weights_proj", "hc_", "attn_sink", "ape")


def power_of_two(amax, largest):
    """The exponent of the smallest power of two s with amax / s <= largest."""
    return torch.ceil(torch.log2(amax.clamp(min=1e-30) / largest)).clamp(-127, 127)


def to_fp8(w):
    """E4M3 codes and one E8M0 scale for every 128 x 128 block, partial at the edges; and what they mean."""
    rows, columns = w.shape
    codes, meaning = torch.zeros(rows, columns), torch.zeros(rows, columns)
    exponents = torch.zeros(-(-rows // 128), -(-columns // 128))
    for i in range(exponents.shape[0]):
        for j in range(exponents.shape[1]):
            at = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            exponents[i, j] = power_of_two(w[at].abs().max(), 448)
            codes[at] = (w[at] * 2.0 ** -exponents[i, j]).to(torch.float8_e4m3fn).float()
            meaning[at] = codes[at] * 2.0 ** exponents[i, j]
    return codes.to(torch.float8_e4m3fn), (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu), meaning


def to_fp4(w):
    """E2M1 codes, two to a byte (even column low), one E8M0 scale for every 32 columns of a row; and what they mean."""
    rows, columns = w.shape
    groups = w.view(rows, columns // 32, 32)
    exponents = power_of_two(groups.abs().amax(-1), 6)
    exponents[0, 0] = -127  # byte 0: 2^-127, a denormal; whatever its codes, next to nothing
    scaled = torch.where((exponents == -127)[..., None], groups * 2.0, groups * 2.0 ** -exponents[..., None])
    index = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    codes = (index + 8 * (scaled < 0)).view(rows, columns).to(torch.uint8)
    meaning = (torch.where(scaled < 0, -E2M1[index], E2M1[index]).double() * 2.0 ** exponents.double()[..., None]).float().view(rows, columns)
    return (codes[:, 0::2] | codes[:, 1::2] << 4).view(torch.int8), (exponents + 127).to(torch.uint8).view(torch.float8_e8m0fnu), meaning


def stored_quantised(weights):
    """As published: experts FP4, the other matrices FP8, what is never quantised BF16 or F32. Returns (stored, meaning)."""
    stored, meaning = {}, {}
    for name, w in stored_bf16(weights).items():
        if not name.endswith(".weight") or w.dim() != 2 or any(p in name for p in PLAIN):
            stored[name], meaning[name] = w, w if w.dtype == torch.int64 else w.float()
            continue
        pack = to_fp4 if ".experts." in name else to_fp8
        stored[name], stored[name.removesuffix("weight") + "scale"], meaning[name] = pack(weights[name])
    return stored, meaning


def write_folder(folder, config, weights):
    common.write_json(folder / "config.json", config, indent=2)
    save_file(dict(sorted(weights.items())), folder / "model.safetensors", metadata={"format": "pt"})


def write_v5_saved(fused):
    def write(folder, config, weights):
        with tempfile.TemporaryDirectory() as temp:
            temp = pathlib.Path(temp)
            write_folder(temp, config, {k: v for k, v in weights.items() if not k.startswith("mtp.")})
            load(temp).save_pretrained(folder, save_original_format=not fused)
    return write


# ----------------------------------------------------------------------------------------------------------------------
# the oracle

def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    left = set(info["missing_keys"]) | set(info["unexpected_keys"]) | {m[0] for m in info["mismatched_keys"]}
    left = {k for k in left if not k.startswith(("mtp.", "model.mtp."))}
    if left:
        raise RuntimeError(f"transformers did not load every tensor of {folder.name}: {sorted(left)}")
    return model.eval()


@torch.no_grad()
def trace(model, tokens):
    out, hooks = {}, []

    def keep_hidden(layer):
        def hook(_module, _inputs, output):
            hidden = output[0] if isinstance(output, tuple) else output
            out[f"layers.{layer}.hidden"] = hidden[0].flatten(-2).clone()
        return hook

    def keep_router(layer):
        def hook(_module, _inputs, output):
            for name, value in zip(("logits", "weights", "ids"), output):
                out[f"layers.{layer}.router.{name}"] = value.clone() if name != "ids" else value.to(torch.int32)
        return hook

    for i, layer in enumerate(model.model.layers):
        hooks += [layer.register_forward_hook(keep_hidden(i)), layer.mlp.gate.register_forward_hook(keep_router(i))]
    try:
        out["logits"] = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].clone()
    finally:
        for hook in hooks:
            hook.remove()
    return out


def logits_of(shape, weights, tokens, wrong=None):
    return reference.Reference(shape, weights, wrong).run(tokens)["logits"]


def check_transformers(shape, weights, values, tokens):
    """Raises unless transformers agrees with the reference; returns the differences that the mistakes make."""
    exact = reference.Reference(shape, weights).run(tokens)
    difference = (exact["logits"] - values["logits"].double()).abs().max().item()
    if not difference <= AGREES:
        raise RuntimeError(f"transformers {transformers.__version__} is {difference:.3g} away from the float64 reference: it has an error "
                           "in deepseek_v4 (one of: rope base of compressed layers, comb not transposed, post or comb formula, "
                           "shared expert not clamped); its numbers are no oracle")
    return difference


def check_mistakes(shape, weights, tokens):
    exact, seen = logits_of(shape, weights, tokens), {}
    for wrong in reference.MISTAKES:
        seen[wrong] = (logits_of(shape, weights, tokens, wrong) - exact).abs().max().item()
        if not seen[wrong] >= SEES:
            raise RuntimeError(f"the mistake {wrong} changes logits by {seen[wrong]:.3g} only: the check would not see it")
    return {k: float(f"{v:.3g}") for k, v in seen.items()}


@torch.no_grad()
def greedy(model, tokens):
    ids, gap = list(tokens), math.inf
    for _ in range(GREEDY):
        best = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].topk(2)
        gap = min(gap, (best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
    return ids[len(tokens):], gap


def make_tokens(vocab, count, seed):
    tokens = common.rng_of("tokens", seed).integers(3, vocab, count).tolist()
    tokens[count // 2:count // 2 + 5] = tokens[3:8]
    return tokens


class Case:
    def __init__(self, folder, config, what, *, write=write_folder, store=None, count=40, mtp=False, seed_name=None, mistakes=False,
                 keep_hidden=True):
        self.folder, self.config, self.what, self.write, self.store, self.count, self.mtp = folder, config, what, write, store, count, mtp
        self.seed_name, self.mistakes, self.keep_hidden = seed_name or folder, mistakes, keep_hidden


ODD = dict(hidden_size=44, num_attention_heads=6, head_dim=24, partial_rotary_factor=0.25, q_lora_rank=21, o_groups=3, o_lora_rank=7,
           moe_intermediate_size=19, n_routed_experts=9, num_experts_per_tok=3, num_hidden_layers=4, layer_types=[CSA, HCA, WINDOW, CSA],
           mlp_layer_types=["hash_moe", "hash_moe", "moe", "moe"], compress_rates={CSA: 3, HCA: 5}, sliding_window=5, index_n_heads=7,
           index_head_dim=14, index_topk=4, hc_mult=3, hc_sinkhorn_iters=7, hc_eps=1e-5, vocab_size=101, routed_scaling_factor=2.5,
           swiglu_limit=0.7, rms_norm_eps=1e-5)


def odd_config():
    config = v5_config(**ODD)
    config["rope_parameters"]["compress"].update(factor=8, beta_fast=16, original_max_position_embeddings=64, rope_theta=40000.0)
    config["rope_parameters"]["main"].update(rope_theta=5000.0)
    return config


def cases():
    native = native_config()
    return [
        Case("deepseek_v4_base", v5_config(), "all layer kinds, one hash layer, window 8, top-3 of the indexer; config of transformers 5, native names",
             mistakes=True),
        Case("deepseek_v4_native", native, "published spelling: compress_ratios 0/4/128 with an entry for mtp.0, flat yarn; mtp.0 stored; "
             "300 tokens: two entries of 128, indexer top-9 of 75", count=300, mtp=True, mistakes=True),
        Case("deepseek_v4_odd", odd_config(), "sizes that divide nothing, three streams, ratios 3 and 5, two hash layers, no two equal settings"),
        Case("deepseek_v4_fused", v5_config(), "save_pretrained(save_original_format=False): transformers' names, fused experts",
             write=write_v5_saved(True), seed_name="deepseek_v4_base"),
        Case("deepseek_v4_v5saved", v5_config(), "save_pretrained(): native names, config as transformers writes it",
             write=write_v5_saved(False), seed_name="deepseek_v4_base"),
        Case("deepseek_v4_fp4", native_config(hidden_size=64, moe_intermediate_size=32, num_hidden_layers=3, compress_ratios=[0, 4, 128, 0], o_lora_rank=128,
                                              q_lora_rank=40, swiglu_limit=10.0, quantization_config={
                                                  "activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0",
                                                  "weight_block_size": [128, 128]}),
             "stored as published: experts in FP4 (I8) with a scale for every 32 columns, other matrices in FP8 with 128 x 128 scales; expected values from "
             "the same numbers in fp32, which they are exactly", store=stored_quantised, count=140),
        Case("deepseek_v4_bf16", native_config(num_hidden_layers=3, compress_ratios=[1, 4, 128]), "stored BF16 with the F32 tensors of a published checkpoint; "
             "ratio 1 means window only", store=lambda w: (stored_bf16(w), {k: v if v.dtype == torch.int64 else v.float() for k, v in stored_bf16(w).items()}),
             count=140),
    ]


def expected_of(case, folder, weights, tokens, seed):
    shape = shape_of(case.config)
    oracle = folder
    temp = tempfile.TemporaryDirectory()
    if case.store:  # in plain numbers; transformers knows ratio 0 only, one server writes 1
        oracle = pathlib.Path(temp.name)
        config = {k: v for k, v in case.config.items() if k != "quantization_config"}
        write_folder(oracle, {**config, "compress_ratios": [0 if r == 1 else r for r in case.config["compress_ratios"]]}, weights)
    model = load(oracle)
    values = trace(model, tokens)
    exact = reference.Reference(shape, weights)
    exact.run(tokens)
    if min(exact.route_cut, exact.cut) < MIN_CUT_MARGIN:  # fp32 may choose differently
        return None, None, {"router_cut_margin": exact.route_cut, "indexer_cut_margin": exact.cut}, False
    difference = check_transformers(shape, weights, values, tokens)
    continuation, gap = greedy(model, tokens)
    facts = {"tokens": len(tokens), "router_cut_margin": float(f"{exact.route_cut:.4g}"), "router_order_margin": float(f"{exact.route_order:.4g}"),
             "indexer_cut_margin": float(f"{exact.cut:.4g}"), "choices_changed_by_bias": exact.changed_by_bias,
             "greedy_logit_margin": float(f"{gap:.4g}"), "max_abs_logit": float(f"{values['logits'].abs().max().item():.4g}"),
             "away_from_float64": float(f"{difference:.2g}")}
    good = (min(exact.route_cut, exact.cut) >= MIN_CUT_MARGIN and exact.route_order >= MIN_ORDER_MARGIN and gap >= MIN_GREEDY_MARGIN
            and exact.changed_by_bias > 0)
    # transformers leaves the order of the chosen experts open: decreasing score, or the table's.
    for name in [n for n in values if n.endswith(".ids")]:
        order = (values[name].unsqueeze(-2) == exact.out[name].unsqueeze(-1)).int().argmax(-1)
        values[name] = values[name].gather(-1, order)
        if not torch.equal(values[name], exact.out[name]):
            raise RuntimeError(f"{name}: other experts than the reference chooses")
        values[name.replace("ids", "weights")] = values[name.replace("ids", "weights")].gather(-1, order)
    tensors = {k: v.contiguous().to(torch.int32 if k.endswith("ids") else torch.float32) for k, v in values.items()}
    tensors["tokens"] = torch.tensor(tokens, dtype=torch.int32)
    tensors["greedy"] = torch.tensor(continuation, dtype=torch.int32)
    metadata = {"format": "pointsman-oracle-1", "numerics": "fp32", "device": "cpu", "attn_implementation": "eager",
                "experts_implementation": "eager", "seed": str(seed), "transformers": transformers.__version__,
                "torch": torch.__version__.split("+")[0]}
    if good and case.mistakes:
        facts["logits_moved_by"] = check_mistakes(shape, weights, tokens)
    return tensors, metadata, facts, good


def make(root, only):
    facts, folders = {}, []
    for case in cases():
        if only is not None and only not in case.folder:
            continue
        shape = shape_of(case.config)
        first = common.seed_of(case.seed_name)
        for seed in range(first, first + 400):
            folder = root / case.folder
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            made = make_weights(shape, seed, case.mtp)
            stored, weights = case.store(made) if case.store else (made, made)
            case.write(folder, case.config, stored)
            tokens = make_tokens(shape["vocab"], case.count, seed)
            tensors, metadata, numbers, good = expected_of(case, folder, weights, tokens, seed)
            if good:
                break
            print(case.folder, seed, numbers, flush=True)
        else:
            raise RuntimeError(f"{case.folder}: no seed gives the margins")
        common.write_expected(folder / "expected.safetensors", {k: v.numpy() for k, v in tensors.items()}, metadata)
        facts[case.folder] = {"what": case.what, "seed": seed, **numbers}
        folders.append(case.folder)
        print(case.folder, json.dumps(facts[case.folder]), flush=True)
    return facts, folders


if __name__ == "__main__":
    common.main("deepseek_v4", make, PACKAGES, __doc__)
