#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Expert choice and weights for every kind of router, in float64, checked against transformers: tests/golden/router/cases.json.

A case has a contract, logits [tokens][experts], a selection bias or null, ids and weights [tokens][top_k] in the order of
decreasing selection score (ties: the lower id). `checked_with` names the transformers class that gave the same answer.
"""

import json

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from types import SimpleNamespace  # noqa: E402

torch.set_num_threads(1)
PACKAGES = ("torch", "transformers", "numpy")
MIN_GAP = 2e-5  # relative, between the scores that decide
UNIT = 256  # logits and biases are multiples of 1/256: exact in fp32


def contract(score, experts, top_k, *, n_group=1, topk_group=1, group_score="max", normalize=False, norm_epsilon=0.0, scale=1.0):
    return {"score": score, "num_experts": experts, "top_k": top_k, "n_group": n_group, "topk_group": topk_group,
            "group_score": group_score, "normalize": normalize, "norm_epsilon": norm_epsilon, "scale": scale}


def relative(a, b):
    return (a - b) / max(abs(a), abs(b), 1e-300)


def route(c, logits, bias):
    """One token, float64. Returns ids, weights, the smallest relative gap that decided something (inf when none did)."""
    z = np.asarray(logits, np.float64)
    if c["score"] == "softmax":
        s = np.exp(z - z.max())
        s /= s.sum()
    elif c["score"] == "sigmoid":
        s = np.where(z >= 0, 1 / (1 + np.exp(-np.abs(z))), np.exp(-np.abs(z)) / (1 + np.exp(-np.abs(z))))
    elif c["score"] == "sqrt_softplus":
        s = np.sqrt(np.log1p(np.exp(-np.abs(z))) + np.maximum(z, 0))
    else:  # softmax_over_top_k: chosen by the logits
        s = z.copy()
    choice = s + (np.asarray(bias, np.float64) if bias is not None else 0.0)
    gap = np.inf
    if c["n_group"] > 1:
        groups = choice.reshape(c["n_group"], -1)
        value = groups.max(1) if c["group_score"] == "max" else np.sort(groups, 1)[:, -2:].sum(1)
        order = sorted(range(c["n_group"]), key=lambda g: (-value[g], g))
        if c["topk_group"] < c["n_group"]:
            gap = min(gap, relative(value[order[c["topk_group"] - 1]], value[order[c["topk_group"]]]))
        kept = set(order[: c["topk_group"]])
        mask = np.repeat([g in kept for g in range(c["n_group"])], c["num_experts"] // c["n_group"])
        choice = np.where(mask, choice, -np.inf)
    ids = sorted(range(c["num_experts"]), key=lambda e: (-choice[e], e))
    for a, b in zip(ids[: c["top_k"]], ids[1: c["top_k"] + 1]):
        if np.isfinite(choice[b]):
            gap = min(gap, relative(choice[a], choice[b]))
    ids = ids[: c["top_k"]]
    if c["score"] == "softmax_over_top_k":
        w = np.exp(z[ids] - z[ids].max())
        w /= w.sum()
    else:
        w = s[ids]
        if c["normalize"]:
            w = w / (w.sum() + c["norm_epsilon"])
    return ids, w * c["scale"], gap


def transformers_router(c, bias):
    """A module of transformers that does what the contract says, or None."""
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as v3
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4
    from transformers.models.gpt_oss import modeling_gpt_oss as oss
    from transformers.models.minimax_m2 import modeling_minimax_m2 as m2
    from transformers.models.mixtral import modeling_mixtral as mixtral
    from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen

    n = c["num_experts"]
    config = SimpleNamespace(num_experts_per_tok=c["top_k"], num_experts=n, num_local_experts=n, n_routed_experts=n, hidden_size=n,
                             routed_scaling_factor=c["scale"], n_group=c["n_group"], topk_group=c["topk_group"],
                             norm_topk_prob=c["normalize"], scoring_func="sqrtsoftplus",
                             topk_method="group_limited_greedy" if c["n_group"] > 1 else "greedy")
    grouped, eps = c["n_group"] > 1, c["norm_epsilon"]
    kind = (c["score"], c["normalize"], grouped, bias is not None)
    module = None
    if c["score"] == "sigmoid" and c["group_score"] == "top2_sum" and n // c["n_group"] >= 2 and (eps == 1e-20 or not c["normalize"]):
        module = v3.DeepseekV3TopkRouter(config)
    elif c["score"] == "sigmoid" and not grouped and c["normalize"] and eps == 0 and c["scale"] == 1:
        module = m2.MiniMaxM2TopKRouter(config)
    elif c["score"] == "softmax" and bias is None and not c["normalize"] and c["group_score"] == "max" and (grouped or c["scale"] != 1):
        module = v2.DeepseekV2TopkRouter(config)
    elif kind[0] == "softmax" and not grouped and bias is None and c["scale"] == 1 and eps == 0:
        module = qwen.Qwen3MoeTopKRouter(config)
    elif c["score"] == "sqrt_softplus" and c["normalize"] and eps == 1e-20 and not grouped:
        module = v4.DeepseekV4TopKRouter(config)
    elif c["score"] == "softmax_over_top_k" and bias is None and c["scale"] == 1:
        module = oss.GptOssTopKRouter(config)
    if module is None:
        return None, None
    with torch.no_grad():
        module.weight.copy_(torch.eye(n))  # hidden states are then the logits
        if getattr(module, "e_score_correction_bias", None) is not None:
            module.e_score_correction_bias.copy_(torch.tensor(bias if bias is not None else [0.0] * n))
    name = type(module).__name__
    if isinstance(module, m2.MiniMaxM2TopKRouter):
        b = torch.tensor(bias if bias is not None else [0.0] * n)
        return name, lambda x: module(x, b)[1:]
    if isinstance(module, oss.GptOssTopKRouter):
        mixtral_twin = mixtral.MixtralTopKRouter(config)
        with torch.no_grad():
            mixtral_twin.weight.copy_(torch.eye(n))
        name += ", MixtralTopKRouter"

        def both(x):
            a, b = module(x)[1:], mixtral_twin(x)[1:]
            assert torch.equal(a[1], b[1]) and torch.allclose(a[0], b[0], atol=1e-6)
            return a
        return name, both
    return name, lambda x: module(x)[1:]


def grid(values):
    return (np.round(np.asarray(values) * UNIT) / UNIT).tolist()


def plan():
    """(name, contract, tokens, spread and offset of the logits, bias spread and offset or None, given logits)"""
    out = []

    def add(name, c, tokens=6, spread=1.5, offset=0.0, bias=None, logits=None, given_bias=None):
        out.append((name, c, tokens, spread, offset, bias, logits, given_bias))

    v3 = dict(n_group=4, topk_group=2, group_score="top2_sum", norm_epsilon=1e-20)
    for normalize in (True, False):                       # the norm flag times the scaling factor
        for scale in (1.0, 2.5):
            tag = f"{'norm' if normalize else 'raw'}_{scale:g}"
            add(f"deepseek_v3_{tag}", contract("sigmoid", 16, 4, normalize=normalize, scale=scale, **v3), bias=(0.3, 0.0))
            add(f"sigmoid_no_groups_{tag}", contract("sigmoid", 12, 3, group_score="top2_sum", normalize=normalize, norm_epsilon=1e-20, scale=scale), bias=(0.2, 0.0))
            add(f"softmax_{tag}", contract("softmax", 12, 3, normalize=normalize, scale=scale))
            add(f"sqrt_softplus_{tag}", contract("sqrt_softplus", 12, 3, normalize=normalize, norm_epsilon=1e-20, scale=scale), bias=(0.4, 0.0))
    add("negative_biased_groups", contract("sigmoid", 8, 2, normalize=True, scale=2.5, **v3), tokens=12, bias=(0.0, -5.0))
    add("negative_biased_groups_spread", contract("sigmoid", 32, 6, normalize=True, scale=2.5, n_group=8, topk_group=3, group_score="top2_sum", norm_epsilon=1e-20), tokens=12, bias=(0.5, -5.0))
    add("negative_biased_groups_raw", contract("sigmoid", 8, 3, normalize=False, **v3), tokens=8, bias=(0.2, -2.0))
    add("deepseek_v3_full_size", contract("sigmoid", 256, 8, normalize=True, scale=2.5, n_group=8, topk_group=4, group_score="top2_sum", norm_epsilon=1e-20), tokens=3, bias=(0.1, 0.0))
    add("deepseek_v3_all_groups", contract("sigmoid", 16, 4, normalize=True, n_group=4, topk_group=4, group_score="top2_sum", norm_epsilon=1e-20), bias=(0.2, 0.0))
    add("deepseek_v3_one_group_kept", contract("sigmoid", 16, 4, normalize=True, scale=2.5, n_group=4, topk_group=1, group_score="top2_sum", norm_epsilon=1e-20), bias=(0.2, 0.0))
    add("deepseek_v3_groups_of_two", contract("sigmoid", 16, 4, normalize=True, n_group=8, topk_group=3, group_score="top2_sum", norm_epsilon=1e-20), bias=(0.2, 0.0))
    add("deepseek_v3_no_bias", contract("sigmoid", 16, 4, normalize=True, scale=2.5, **v3))
    add("deepseek_v3_big_bias", contract("sigmoid", 16, 4, normalize=True, **v3), bias=(4.0, 0.0))
    add("deepseek_v3_flat_logits", contract("sigmoid", 16, 4, normalize=True, **v3), spread=0.2, bias=(0.5, 0.0))
    add("sigmoid_group_max", contract("sigmoid", 16, 4, normalize=True, n_group=4, topk_group=2, group_score="max", norm_epsilon=1e-20), bias=(0.3, 0.0))
    add("sigmoid_very_negative", contract("sigmoid", 12, 3, group_score="top2_sum", normalize=True, norm_epsilon=1e-20), offset=-60.0, spread=4.0)
    add("sigmoid_very_negative_raw", contract("sigmoid", 12, 3, group_score="top2_sum", normalize=False), offset=-20.0, spread=3.0)
    add("sigmoid_very_positive", contract("sigmoid", 12, 3, group_score="top2_sum", normalize=True, norm_epsilon=1e-20), offset=6.0, spread=2.0)
    add("sigmoid_minimax", contract("sigmoid", 12, 3, normalize=True), bias=(0.2, 0.0))
    add("sigmoid_minimax_no_bias", contract("sigmoid", 12, 4, normalize=True))
    add("sigmoid_top1_norm", contract("sigmoid", 8, 1, group_score="top2_sum", normalize=True, norm_epsilon=1e-20, scale=2.5), bias=(0.2, 0.0))
    add("sigmoid_top1_raw", contract("sigmoid", 8, 1, group_score="top2_sum", normalize=False, scale=2.5), bias=(0.2, 0.0))
    for k in (1, 2, 7, 8):
        add(f"softmax_norm_8_top{k}", contract("softmax", 8, k, normalize=True))
        add(f"softmax_raw_8_top{k}", contract("softmax", 8, k, normalize=False))
    add("softmax_128_top8", contract("softmax", 128, 8, normalize=True), tokens=4)
    add("softmax_60_top4_raw", contract("softmax", 60, 4, normalize=False), tokens=4)
    add("softmax_steep", contract("softmax", 12, 3, normalize=True), spread=25.0)
    add("softmax_offset", contract("softmax", 12, 3, normalize=True), offset=80.0)
    add("softmax_negative_offset", contract("softmax", 12, 3, normalize=False), offset=-120.0)
    add("softmax_odd_7_top3", contract("softmax", 7, 3, normalize=True))
    add("softmax_groups_max", contract("softmax", 16, 4, n_group=4, topk_group=2, scale=16.0))
    add("softmax_groups_max_6", contract("softmax", 24, 6, n_group=8, topk_group=3, scale=1.0))
    add("softmax_scaled", contract("softmax", 12, 3, normalize=False, scale=16.0))
    for k in (1, 2, 4, 8):
        add(f"softmax_over_top_k_8_top{k}", contract("softmax_over_top_k", 8, k))
    add("softmax_over_top_k_32_top4", contract("softmax_over_top_k", 32, 4), tokens=4)
    add("softmax_over_top_k_steep", contract("softmax_over_top_k", 8, 2), spread=30.0, offset=-50.0)
    add("sqrt_softplus_very_negative", contract("sqrt_softplus", 12, 3, normalize=True, norm_epsilon=1e-20, scale=1.5), offset=-30.0, spread=2.0)
    add("sqrt_softplus_very_positive", contract("sqrt_softplus", 12, 3, normalize=True, norm_epsilon=1e-20), offset=30.0, spread=4.0)
    add("sqrt_softplus_64_top6", contract("sqrt_softplus", 64, 6, normalize=True, norm_epsilon=1e-20, scale=2.5), tokens=4, bias=(0.5, 0.0))
    add("sqrt_softplus_top1", contract("sqrt_softplus", 8, 1, normalize=True, norm_epsilon=1e-20, scale=1.5), bias=(0.3, 0.0))
    # ties: the lower id wins; transformers leaves the order open
    tie = [[1.0] * 8, [0.0, 2.0, 2.0, 0.0, 2.0, 2.0, 0.0, 2.0], [3.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0, 1.0], [-1.0] * 7 + [0.5]]
    add("ties_softmax", contract("softmax", 8, 3, normalize=True), logits=tie)
    add("ties_sigmoid", contract("sigmoid", 8, 3, group_score="top2_sum", normalize=True, norm_epsilon=1e-20), logits=tie)
    add("ties_softmax_over_top_k", contract("softmax_over_top_k", 8, 3), logits=tie)
    add("ties_of_groups", contract("sigmoid", 8, 2, normalize=True, **v3), logits=tie + [[0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]])
    # the bias decides, the weights do not see it
    add("bias_flips_choice", contract("sigmoid", 6, 2, group_score="top2_sum", normalize=True, norm_epsilon=1e-20), logits=[[2.0, 1.5, 1.0, 0.5, 0.0, -0.5]],
        given_bias=[0.0, 0.0, 0.0, 0.0, 3.0, 2.0])
    add("group_with_two_good_beats_best", contract("sigmoid", 8, 2, n_group=4, topk_group=1, group_score="top2_sum", normalize=True, norm_epsilon=1e-20),
        logits=[[4.0, -4.0, 1.0, 1.25, 0.0, 0.5, -1.0, -2.0]])
    add("group_max_takes_best", contract("sigmoid", 8, 2, n_group=4, topk_group=1, group_score="max", normalize=True, norm_epsilon=1e-20),
        logits=[[4.0, -4.0, 1.0, 1.25, 0.0, 0.5, -1.0, -2.0]])
    return out


def make(root, only):
    cases, checked, smallest = [], 0, np.inf
    for name, c, tokens, spread, offset, bias_shape, given, given_bias in plan():
        for attempt in range(200):
            rng = common.rng_of("router", name, attempt)
            logits = given or grid(rng.standard_normal((tokens, c["num_experts"])) * spread + offset)
            bias = given_bias
            if bias_shape:
                bias = grid(rng.standard_normal(c["num_experts"]) * bias_shape[0] + bias_shape[1])
            rows = [route(c, row, bias) for row in logits]
            gap = min(row[2] for row in rows)
            if given or gap > MIN_GAP:
                break
        else:
            raise RuntimeError(f"{name}: no clear choice found")
        case = {"name": name, "contract": c, "bias": bias, "logits": logits, "ids": [row[0] for row in rows],
                "weights": [[float(f"{w:.12g}") for w in row[1]] for row in rows]}
        label, module = transformers_router(c, bias)
        if module is not None and not name.startswith("ties"):
            with torch.no_grad():
                weights, ids = module(torch.tensor(logits, dtype=torch.float32))
            for t in range(len(logits)):
                theirs = dict(zip(ids[t].tolist(), weights[t].tolist()))
                ours = dict(zip(rows[t][0], rows[t][1]))
                assert theirs.keys() == ours.keys(), (name, t, theirs, ours)
                for e in ours:
                    assert abs(theirs[e] - ours[e]) <= 1e-5 * max(abs(ours[e]), 1e-12), (name, t, e, theirs[e], ours[e])
            case["checked_with"] = label
            checked += 1
        if not name.startswith("ties"):
            smallest = min(smallest, gap)
        cases.append(case)
    text = "[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n"
    common.write_text(root / "router" / "cases.json", text)
    return {"router": {"cases": len(cases), "checked_with_transformers": checked, "smallest_relative_gap": float(f"{smallest:.3g}")}}, ["router"]


if __name__ == "__main__":
    common.main("router", make, PACKAGES, __doc__)
