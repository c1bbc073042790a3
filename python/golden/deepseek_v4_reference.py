# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's forward pass in float64, written from the published formulas (arXiv 2606.19348), token by token where the model has
state. Slow and plain on purpose: it is what transformers' class is checked against before its numbers are trusted.

Weights come under the native names (layers.N.attn.wq_a.weight, ...). `wrong` names one deliberate mistake, to show that the check
would see it: see MISTAKES.
"""

import math

import torch

MISTAKES = ("rope_base", "comb_transposed", "post_without_two", "comb_sigmoid", "shared_unclamped", "no_inverse_rope",
            "half_split_rope", "entry_position", "biased_weights", "window_off_by_one", "sink_ignored", "ca_cb_swapped")


def frequencies(rope, dim):
    """inv_freq in fp32, as every implementation has them; YaRN by parts without any attention factor."""
    theta = rope["rope_theta"]
    inv = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
    if rope.get("rope_type", rope.get("type", "default")) == "yarn":
        context, factor = rope["original_max_position_embeddings"], rope["factor"]
        bound = lambda beta: dim * math.log(context / (beta * 2 * math.pi)) / (2 * math.log(theta))  # noqa: E731
        low = max(math.floor(bound(rope.get("beta_fast", 32))), 0)
        high = min(math.ceil(bound(rope.get("beta_slow", 1))), dim - 1)
        if low == high:
            high += 0.001
        ramp = ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
        inv = inv / factor * ramp + inv * (1 - ramp)
    return inv


def softplus(z):
    return torch.log1p(torch.exp(-z.abs())) + z.clamp(min=0)


class Reference:
    def __init__(self, config, weights, wrong=None):
        """config: the normalised dictionary of make_deepseek_v4.shape_of(); weights: native name -> tensor."""
        self.c, self.wrong = config, wrong
        self.w = {k: (v if v.dtype == torch.int64 else v.double()) for k, v in weights.items()}
        self.main = frequencies({"rope_theta": config["rope_theta"]}, config["rope_dim"])
        self.compress = frequencies(config["compress_rope"], config["rope_dim"])

    def rms(self, x, name=None, eps=None):
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + (self.c["eps"] if eps is None else eps))
        return y if name is None else y * self.w[name]

    def rotate(self, x, position, inv):
        """The last rope_dim channels of x [..., d]; position may be negative (the inverse)."""
        d = self.c["rope_dim"]
        angle = (torch.tensor(float(abs(position)), dtype=torch.float32) * inv).double()
        cos, sin = angle.cos(), angle.sin() * (1 if position >= 0 else -1)
        tail = x[..., -d:]
        if self.wrong == "half_split_rope":
            a, b = tail[..., :d // 2], tail[..., d // 2:]
            out = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
        else:
            a, b = tail[..., 0::2], tail[..., 1::2]
            out = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
        return torch.cat([x[..., :-d], out], -1)

    # ------------------------------------------------------------------ hyper-connections
    def mixes(self, X, name):
        v = X.flatten(-2)
        return (v * torch.rsqrt((v * v).mean(-1, keepdim=True) + self.c["eps"])) @ self.w[name].T

    def hc(self, X, name):
        n, eps = self.c["hc_mult"], self.c["hc_eps"]
        m = self.mixes(X, name + "_fn")
        base, scale = self.w[name + "_base"], self.w[name + "_scale"]
        pre = torch.sigmoid(m[..., :n] * scale[0] + base[:n]) + eps
        post = (1 if self.wrong == "post_without_two" else 2) * torch.sigmoid(m[..., n:2 * n] * scale[1] + base[n:2 * n])
        comb = (m[..., 2 * n:] * scale[2] + base[2 * n:]).unflatten(-1, (n, n))
        comb = (torch.sigmoid(comb) if self.wrong == "comb_sigmoid" else comb.softmax(-1)) + eps
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
        for _ in range(self.c["hc_iters"] - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
            comb = comb / (comb.sum(-2, keepdim=True) + eps)
        return pre, post, comb

    def site(self, X, name, norm, sublayer):
        pre, post, comb = self.hc(X, name)
        y = sublayer(self.rms((pre[..., None] * X).sum(-2), norm))
        mixed = torch.einsum("tkj,tjd->tkd" if self.wrong == "comb_transposed" else "tjk,tjd->tkd", comb, X)
        return post[..., None] * y[..., None, :] + mixed

    # ------------------------------------------------------------------ attention
    def compressed(self, x, at, ratio, overlap, dim):
        """All closed entries [entries, dim] of the compressor `at`."""
        a, s = x @ self.w[at + "wkv.weight"].T, x @ self.w[at + "wgate.weight"].T
        ape = self.w[at + "ape"]
        entries = []
        for e in range(x.shape[0] // ratio):
            now = range(e * ratio, (e + 1) * ratio)
            if not overlap:
                rows = [(a[t], s[t] + ape[t % ratio]) for t in now]
            else:
                first, second = (slice(dim, None), slice(0, dim)) if self.wrong == "ca_cb_swapped" else (slice(0, dim), slice(dim, None))
                before = range((e - 1) * ratio, e * ratio) if e > 0 else []
                rows = [(a[t][first], (s[t] + ape[t % ratio])[first]) for t in before]
                rows += [(a[t][second], (s[t] + ape[t % ratio])[second]) for t in now]
            p = torch.stack([r[1] for r in rows]).softmax(0)
            pooled = (p * torch.stack([r[0] for r in rows])).sum(0)
            position = e * ratio + (ratio - 1 if self.wrong == "entry_position" else 0)
            inv = self.main if self.wrong == "rope_base" else self.compress
            entries.append(self.rotate(self.rms(pooled, at + "norm.weight"), position, inv))
        return torch.stack(entries) if entries else x.new_zeros(0, dim)

    def attention(self, layer, x):
        c, at = self.c, f"layers.{layer}.attn."
        kind, heads, d = c["kinds"][layer], c["heads"], c["head_dim"]
        inv = self.main if kind == "window" or self.wrong == "rope_base" else self.compress
        qr = self.rms(x @ self.w[at + "wq_a.weight"].T, at + "q_norm.weight")
        q = self.rms((qr @ self.w[at + "wq_b.weight"].T).unflatten(-1, (heads, d)), eps=c["eps"])
        kv = self.rms(x @ self.w[at + "wkv.weight"].T, at + "kv_norm.weight")
        entries = scores = ratio = None
        if kind != "window":
            ratio = c["csa_ratio"] if kind == "csa" else c["hca_ratio"]
            entries = self.compressed(x, at + "compressor.", ratio, kind == "csa", d)
        if kind == "csa":
            ix = at + "indexer."
            keys = self.compressed(x, ix + "compressor.", ratio, True, c["index_dim"])
            Q = (qr @ self.w[ix + "wq_b.weight"].T).unflatten(-1, (c["index_heads"], c["index_dim"]))
            Q = torch.stack([self.rotate(Q[t], t, self.compress) for t in range(x.shape[0])])
            weight = x @ self.w[ix + "weights_proj.weight"].T * c["index_heads"] ** -0.5 * c["index_dim"] ** -0.5
            scores = (weight[:, :, None] * torch.relu(Q @ keys.T)).sum(1)
        keys = torch.stack([self.rotate(kv[t], t, inv) for t in range(x.shape[0])])
        sink = self.w[at + "attn_sink"]
        out = []
        for t in range(x.shape[0]):
            window = c["window"] + (1 if self.wrong == "window_off_by_one" else 0)
            candidates = [keys[max(0, t - window + 1):t + 1]]
            if kind != "window":
                visible = (t + 1) // ratio
                chosen = torch.arange(visible)
                if kind == "csa" and visible > c["index_topk"]:
                    order = scores[t, :visible].sort(dim=-1, descending=True, stable=True)
                    self.cut = min(self.cut, (order.values[c["index_topk"] - 1] - order.values[c["index_topk"]]).item())
                    chosen = order.indices[:c["index_topk"]]
                candidates.append(entries[chosen])
            k = torch.cat(candidates)
            logits = self.rotate(q[t], t, inv) @ k.T / math.sqrt(d)
            if self.wrong != "sink_ignored":
                logits = torch.cat([logits, sink[:, None]], -1)
            o = logits.softmax(-1)[:, :k.shape[0]] @ k
            out.append(o if self.wrong == "no_inverse_rope" else self.rotate(o, -t, inv))
        g = c["groups"]
        grouped = torch.stack(out).flatten(-2).unflatten(-1, (g, heads * d // g))
        z = torch.einsum("tgi,goi->tgo", grouped, self.w[at + "wo_a.weight"].unflatten(0, (g, c["o_lora"])))
        return z.flatten(-2) @ self.w[at + "wo_b.weight"].T

    # ------------------------------------------------------------------ experts
    def expert(self, x, at, clamp=True):
        g, u = x @ self.w[at + "w1.weight"].T, x @ self.w[at + "w3.weight"].T
        limit = self.c["swiglu_limit"]
        if clamp and limit:
            g, u = g.clamp(max=limit), u.clamp(-limit, limit)
        return (torch.nn.functional.silu(g) * u) @ self.w[at + "w2.weight"].T

    def moe(self, layer, x, tokens):
        c, at, k = self.c, f"layers.{layer}.ffn.", self.c["top_k"]
        z = x @ self.w[at + "gate.weight"].T
        s = {"sqrtsoftplus": lambda: softplus(z).sqrt(), "sigmoid": lambda: torch.sigmoid(z), "softmax": lambda: z.softmax(-1)}[c["score"]]()
        if layer < c["hash_layers"]:
            ids = self.w[at + "gate.tid2eid"][tokens]
        else:
            biased = s + self.w[at + "gate.bias"]
            order = biased.sort(dim=-1, descending=True, stable=True)
            ids = order.indices[:, :k]
            gaps = order.values[:, :-1] - order.values[:, 1:]
            if k < z.shape[1]:
                self.route_cut = min(self.route_cut, gaps[:, k - 1].min().item())
            if k > 1:
                self.route_order = min(self.route_order, gaps[:, :k - 1].min().item())
            plain = s.sort(dim=-1, descending=True).indices[:, :k]
            self.changed_by_bias += int((plain.sort(-1).values != ids.sort(-1).values).any(-1).sum())
        base = biased if self.wrong == "biased_weights" and layer >= c["hash_layers"] else s
        weights = base.gather(-1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * c["scale"]
        self.out[f"layers.{layer}.router.logits"], self.out[f"layers.{layer}.router.ids"] = z, ids.to(torch.int32)
        self.out[f"layers.{layer}.router.weights"] = weights
        y = self.expert(x, at + "shared_experts.", clamp=self.wrong != "shared_unclamped")
        rows = [sum(weights[t, i] * self.expert(x[t], f"{at}experts.{int(ids[t, i])}.") for i in range(k)) for t in range(len(tokens))]
        return y + torch.stack(rows)

    def run(self, tokens):
        """name -> values, as `pointsman trace` writes them; facts about margins in self.*"""
        self.out, self.cut, self.route_cut, self.route_order, self.changed_by_bias = {}, math.inf, math.inf, math.inf, 0
        ids = torch.tensor(tokens)
        X = self.w["embed.weight"][ids][:, None, :].repeat(1, self.c["hc_mult"], 1)
        for layer in range(self.c["layers"]):
            at = f"layers.{layer}."
            X = self.site(X, at + "hc_attn", at + "attn_norm.weight", lambda x: self.attention(layer, x))
            X = self.site(X, at + "hc_ffn", at + "ffn_norm.weight", lambda x: self.moe(layer, x, ids))
            self.out[f"layers.{layer}.hidden"] = X.flatten(-2)
        w = torch.sigmoid(self.mixes(X, "hc_head_fn") * self.w["hc_head_scale"] + self.w["hc_head_base"]) + self.c["hc_eps"]
        h = (w[..., None] * X).sum(-2)
        self.out["logits"] = self.rms(h, "norm.weight") @ self.w["head.weight"].T
        return self.out
