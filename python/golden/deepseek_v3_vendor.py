# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3's forward pass with the vendor's numerics in float64, written from the rules (docs/design/numerics.md), not from the engine.

Tensors come as a checkpoint stores them. Sums of products are float64; what the vendor's code rounds is rounded: to bf16, and what meets an FP8
weight to E4M3 codes with a scale for each 128 channels. `exact=True` rounds nothing: that is the plain model, which is held against transformers.
"""

import math

import torch

TILE = 128
NORM_EPS = 1e-6  # of the two inner norms, whatever the config says


def yarn(config):
    """(inverse frequencies in fp32, scale of the scores)."""
    dim, theta = config["qk_rope_head_dim"], config["rope_theta"]
    inv = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    scale = (config["qk_nope_head_dim"] + dim) ** -0.5
    rope = config.get("rope_scaling")
    if rope is None:
        return inv, scale
    assert rope["type"] == "yarn" and rope["mscale"] == rope["mscale_all_dim"] == 1.0, "cos and sin would need a factor"
    context, factor = rope["original_max_position_embeddings"], rope["factor"]

    def bound(turns):
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(bound(rope["beta_fast"])), 0), min(math.ceil(bound(rope["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low if high != low else 0.001)).clamp(0, 1)
    return inv / factor * ramp + inv * (1 - ramp), scale * (0.1 * math.log(factor) + 1) ** 2


def quantised(x, power_of_two):
    """x [..., n] of bf16 values -> E4M3 codes times their scales, in float64. Scales and quotients are fp32, as in the vendor's kernel."""
    parts = []
    for part in x.float().split(TILE, -1):
        scale = part.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0
        if power_of_two:
            mantissa, exponent = torch.frexp(scale)
            scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
        parts.append((part / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).double() * scale.double())
    return torch.cat(parts, -1)


class Vendor:
    def __init__(self, config, tensors, naive=False, exact=False):
        assert config.get("rope_interleave", True) and config["q_lora_rank"] is not None and not config["attention_bias"]
        self.c, self.t, self.naive, self.exact = config, tensors, naive, exact
        quantization = config.get("quantization_config", {})
        self.power_of_two = quantization.get("scale_fmt") == "ue8m0"
        self.block = quantization.get("weight_block_size", [1, 1])
        self.inv, self.scale = yarn(config)
        self.out = {}

    def bf16(self, x):
        return x if self.exact else x.float().to(torch.bfloat16).double()

    def is_fp8(self, name):
        return self.t[name + ".weight"].dtype == torch.float8_e4m3fn

    def weight(self, name):
        w = self.t[name + ".weight"].double()
        if not self.is_fp8(name):
            return w
        grid = self.t[name + ".weight_scale_inv"].double()
        rows, cols = torch.arange(w.shape[0]) // self.block[0], torch.arange(w.shape[1]) // self.block[1]
        return w * grid[rows][:, cols]

    def linear(self, name, x):
        if self.is_fp8(name) and not self.exact:
            x = quantised(x, self.power_of_two)
        return self.bf16(x @ self.weight(name).T)

    def norm(self, name, x, eps):
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps)
        return self.bf16(y * self.t[name + ".weight"].double())

    def rotated(self, x):
        """x [tokens, ..., dim]: neighbouring channels are a pair."""
        angle = (torch.arange(x.shape[0]).float()[:, None] * self.inv).double()
        angle = angle.reshape(x.shape[0], *[1] * (x.dim() - 2), -1)
        a, b = x[..., 0::2], x[..., 1::2]
        return self.bf16(torch.stack([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1).flatten(-2))

    def attention(self, at, x):
        c, tokens = self.c, x.shape[0]
        heads, nope, rank, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["kv_lora_rank"], c["v_head_dim"]
        q = self.linear(at + "q_b_proj", self.norm(at + "q_a_layernorm", self.linear(at + "q_a_proj", x), NORM_EPS)).view(tokens, heads, -1)
        q_nope, q_rope = q[..., :nope], self.rotated(q[..., nope:])
        kv = self.linear(at + "kv_a_proj_with_mqa", x)
        latent, k_rope = self.norm(at + "kv_a_layernorm", kv[:, :rank], NORM_EPS), self.rotated(kv[:, rank:])
        if self.naive:
            both = self.linear(at + "kv_b_proj", latent).view(tokens, heads, nope + value)
            scores = torch.einsum("thd,shd->hts", q_nope, both[..., :nope])
        else:
            b = self.weight(at + "kv_b_proj").view(heads, nope + value, rank)
            scores = torch.einsum("thr,sr->hts", self.bf16(torch.einsum("thd,hdr->thr", q_nope, b[:, :nope])), latent)
        scores = (scores + torch.einsum("thd,sd->hts", q_rope, k_rope)) * self.scale
        p = scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -math.inf).softmax(-1)
        if self.naive:
            context = torch.einsum("hts,shd->thd", p, both[..., nope:])
        else:
            context = torch.einsum("thr,hdr->thd", self.bf16(torch.einsum("hts,sr->thr", p, latent)), b[:, nope:])
        return self.linear(at + "o_proj", self.bf16(context.flatten(1)))

    def mlp(self, at, x):
        # The engine rounds gate and up of FP8 weights, as the vendor does, and leaves those of others in fp32.
        def part(name):
            return self.linear(at + name, x) if self.is_fp8(at + name) else x @ self.weight(at + name).T
        gate = part("gate_proj")
        return self.linear(at + "down_proj", self.bf16(gate * torch.sigmoid(gate) * part("up_proj")))

    def moe(self, layer, at, x):
        c = self.c
        logits = x @ self.weight(at + "gate").T
        score = torch.sigmoid(logits)
        choice = score + self.t[at + "gate.e_score_correction_bias"].double()
        groups = choice.view(x.shape[0], c["n_group"], -1)
        kept = groups.topk(2, -1).values.sum(-1).topk(c["topk_group"], -1).indices
        dropped = torch.ones(groups.shape[:2]).scatter(1, kept, 0.0).bool()
        ids = groups.masked_fill(dropped[..., None], -math.inf).flatten(1).topk(c["num_experts_per_tok"], -1).indices
        weights = score.gather(1, ids)
        if c["norm_topk_prob"]:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * c["routed_scaling_factor"]
        self.out[f"layers.{layer}.router.ids"] = ids.to(torch.int32)
        self.out[f"layers.{layer}.router.weights"] = weights
        y = self.mlp(at + "shared_experts.", x)
        for expert in range(c["n_routed_experts"]):
            tokens, slot = (ids == expert).nonzero(as_tuple=True)
            if len(tokens):
                y = y.index_add(0, tokens, weights[tokens, slot, None] * self.mlp(f"{at}experts.{expert}.", x[tokens]))
        return self.bf16(y)

    @torch.no_grad()
    def run(self, tokens):
        """Values by their names in a trace; `attention.residual` is the stream between attention and feed-forward."""
        c = self.c
        h = self.t["model.embed_tokens.weight"].double()[torch.tensor(tokens)]
        self.out = {"embedding": h}
        for layer in range(c["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            h = self.bf16(h + self.attention(at + "self_attn.", self.norm(at + "input_layernorm", h, c["rms_norm_eps"])))
            self.out[f"layers.{layer}.attention.residual"] = h
            x = self.norm(at + "post_attention_layernorm", h, c["rms_norm_eps"])
            h = self.bf16(h + (self.mlp(at + "mlp.", x) if layer < c["first_k_dense_replace"] else self.moe(layer, at + "mlp.", x)))
            self.out[f"layers.{layer}.hidden"] = h
        self.out["logits"] = self.norm("model.norm", h, c["rms_norm_eps"]) @ self.weight("lm_head").T
        return self.out
