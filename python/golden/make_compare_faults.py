#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Traces of a small model computed right and with one fault each: what `pointsman compare` must name.

compare_model/ is the checkpoint, compare_faults/reference.safetensors its trace by transformers, and every other file a trace of the
same tokens by the same code with one fault put into it while it ran (python/pointsman_trace.py records both).
"""

import math
import pathlib
import sys

import common

common.quiet()
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import make_qwen3_moe as qwen3  # noqa: E402
import pointsman_trace  # noqa: E402
import torch  # noqa: E402
from torch.nn import functional  # noqa: E402
from transformers.models.qwen3_moe import modeling_qwen3_moe as modeling  # noqa: E402

PACKAGES = ("torch", "transformers", "safetensors", "numpy")
TOKENS = 24
FIRST_BAD = 1     # faults begin in this layer, so that the first bad one is not simply the first
BLOCK = 16        # edge of a weight's scale blocks
OUTLIER = 2       # expert of layer 1 with large activations: harmless in fp32, beyond fp16


def make_config():
    return qwen3.moe_config(num_hidden_layers=3, vocab_size=96, norm_topk_prob=False, hidden_size=48)


def make_weights(config):
    weights = qwen3.make_weights(config, "compare faults")
    # As small as the embeddings of real models, where the epsilon of a norm is felt.
    weights["model.embed_tokens.weight"] *= 0.05
    expert = f"model.layers.1.mlp.experts.{OUTLIER}."
    weights[expert + "up_proj.weight"] *= 1e4
    weights[expert + "down_proj.weight"] /= 1e4
    return weights


# --- faults: each changes the loaded model ---

def each_layer(model, first=FIRST_BAD):
    return list(enumerate(model.model.layers))[first:]


def router_logits_bf16(model):
    def forward(self, x):
        logits = functional.linear(x.reshape(-1, self.hidden_dim), self.weight).bfloat16().float()
        weights, ids = torch.topk(torch.softmax(logits, -1), self.top_k, -1)
        return logits, weights, ids
    for _, layer in each_layer(model):
        layer.mlp.gate.forward = forward.__get__(layer.mlp.gate)


def softmax_after_topk(model):
    def forward(self, x):
        logits = functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        best, ids = torch.topk(logits, self.top_k, -1)
        return logits, torch.softmax(best, -1), ids
    for _, layer in each_layer(model):
        layer.mlp.gate.forward = forward.__get__(layer.mlp.gate)


def gumbel_noise(model):
    generator = torch.Generator().manual_seed(common.seed_of("gumbel") % 2**31)

    def forward(self, x):
        logits = functional.linear(x.reshape(-1, self.hidden_dim), self.weight)
        u = torch.rand(logits.shape, generator=generator).clamp(1e-7, 1 - 1e-7)
        ids = torch.topk(logits - torch.log(-torch.log(u)), self.top_k, -1).indices
        return logits, torch.softmax(logits, -1).gather(-1, ids), ids
    for _, layer in each_layer(model):
        layer.mlp.gate.forward = forward.__get__(layer.mlp.gate)


def expert_gate_up_swapped(model):
    w = model.model.layers[FIRST_BAD].mlp.experts.gate_up_proj.data
    half = w.shape[1] // 2
    w[5] = torch.cat([w[5, half:], w[5, :half]])


def expert_of_another_layer(model):
    layers = model.model.layers
    layers[2].mlp.experts.gate_up_proj.data[6] = layers[0].mlp.experts.gate_up_proj.data[6]
    layers[2].mlp.experts.down_proj.data[6] = layers[0].mlp.experts.down_proj.data[6]


def expert_scales_transposed(model):
    """Block scales that were stored [columns, rows] and are read as [rows, columns]."""
    experts = model.model.layers[FIRST_BAD].mlp.experts
    rng = common.rng_of("scale grid")

    def wrong(weight):
        rows, columns = weight.shape[0] // BLOCK, weight.shape[1] // BLOCK
        scale = torch.from_numpy(2.0 ** rng.uniform(-1.5, 1.5, (rows, columns))).float()
        factor = scale.T.contiguous().flatten().reshape(rows, columns) / scale
        return weight * factor.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    half = experts.gate_up_proj.shape[1] // 2
    experts.gate_up_proj.data[1, :half] = wrong(experts.gate_up_proj.data[1, :half])
    experts.gate_up_proj.data[1, half:] = wrong(experts.gate_up_proj.data[1, half:])
    experts.down_proj.data[1] = wrong(experts.down_proj.data[1])


def rope_interleaved(model):
    def rotate(x, cos, sin):
        half = x.shape[-1] // 2
        c, s = cos[..., :half].unsqueeze(1), sin[..., :half].unsqueeze(1)
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack([even * c - odd * s, odd * c + even * s], -1).flatten(-2)
    right = modeling.apply_rotary_pos_emb
    for _, layer in each_layer(model):
        forward = layer.self_attn.forward

        def wrong(*args, forward=forward, **kwargs):
            modeling.apply_rotary_pos_emb = lambda q, k, cos, sin, **_: (rotate(q, cos, sin), rotate(k, cos, sin))
            try:
                return forward(*args, **kwargs)
            finally:
                modeling.apply_rotary_pos_emb = right
        layer.self_attn.forward = wrong


def epsilon_1e5(model):
    for module in model.modules():
        if isinstance(module, modeling.Qwen3MoeRMSNorm):
            module.variance_epsilon = 1e-5


def kv_cache_off_by_one(model):
    """From position 10 on every token is written one slot too early, over its predecessor."""
    right = modeling.eager_attention_forward
    bad = {layer.self_attn for _, layer in each_layer(model)}

    def wrong(module, query, key, value, attention_mask, *args, **kwargs):
        if module in bad:
            tokens = query.shape[2]
            attention_mask = torch.full((tokens, tokens), -math.inf).triu(1)
            for t in range(10, tokens):
                attention_mask[t, t - 1] = -math.inf
            attention_mask = attention_mask[None, None]
        return right(module, query, key, value, attention_mask, *args, **kwargs)
    modeling.eager_attention_forward = wrong
    return lambda: setattr(modeling, "eager_attention_forward", right)


def fp16_overflow(model):
    experts = model.model.layers[FIRST_BAD].mlp.experts

    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        for expert in range(self.num_experts):
            rank, token = torch.where((top_k_index == expert).T)
            if token.numel() == 0:
                continue
            gate, up = functional.linear(hidden_states[token], self.gate_up_proj[expert]).chunk(2, -1)
            product = (functional.silu(gate) * up).half().float()
            value = functional.linear(product, self.down_proj[expert]) * top_k_weights[token, rank, None]
            out.index_add_(0, token, value)
        return out
    experts.forward = forward.__get__(experts)


FAULTS = (router_logits_bf16, softmax_after_topk, gumbel_noise, expert_gate_up_swapped, expert_of_another_layer,
          expert_scales_transposed, rope_interleaved, epsilon_1e5, kv_cache_off_by_one, fp16_overflow)


def make(root, only):
    model_folder, folder = root / "compare_model", root / "compare_faults"
    for path in (model_folder, folder):
        path.mkdir(parents=True, exist_ok=True)
    config = make_config()
    qwen3.write_default(model_folder, config, make_weights(config))
    tokens = qwen3.make_tokens(config["vocab_size"], TOKENS, "compare faults")
    cases = []
    for name, fault in (("reference", None), *((f.__name__, f) for f in FAULTS)):
        if only and only not in name:
            continue
        model = qwen3.load(model_folder)
        undo = fault(model) if fault else None
        try:
            pointsman_trace.trace(model, tokens, str(folder / f"{name}.safetensors"), metadata={"fault": "", "version": "golden"})
        finally:
            if undo:
                undo()
        cases.append({"name": name, "folder": "compare_faults", "file": f"{name}.safetensors"})
    return cases, ["compare_model", "compare_faults"]


if __name__ == "__main__":
    common.main("compare_faults", make, PACKAGES, __doc__)
