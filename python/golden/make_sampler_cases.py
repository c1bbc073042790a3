#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Surviving ids and probabilities after the logits processors of transformers, in fp32: tests/golden/sampler/cases.json.

Order: repetition penalty, temperature (unless 1), top_k (unless 0), top_p (if < 1), min_p (if given).
Cases whose answer hangs on rounding or on the order of equal logits are replaced by others.
"""

import json

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers.generation import logits_process as lp  # noqa: E402

torch.set_num_threads(1)
PACKAGES = ("torch", "transformers", "numpy")
COUNT = 220
UNIT = 64  # logits are multiples of 1/64: exact in fp32 and in JSON


def processors(p):
    out = []
    if p["repetition_penalty"] != 1.0:
        out.append(lp.RepetitionPenaltyLogitsProcessor(p["repetition_penalty"]))
    if p["temperature"] != 1.0:
        out.append(lp.TemperatureLogitsWarper(p["temperature"]))
    if p["top_k"] != 0:
        out.append(lp.TopKLogitsWarper(p["top_k"]))
    if p["top_p"] < 1.0:
        out.append(lp.TopPLogitsWarper(p["top_p"]))
    if p["min_p"] is not None:
        out.append(lp.MinPLogitsWarper(p["min_p"]))
    return out


def reference(values, previous, p):
    """The same in float64, from the definitions. Returns (survivors, probabilities, fair)."""
    x = values.astype(np.float64).copy()
    for i in set(previous):
        x[i] = x[i] * p["repetition_penalty"] if x[i] < 0 else x[i] / p["repetition_penalty"]
    x /= p["temperature"]
    keep = np.isfinite(x)
    fair = True

    def softmax():
        e = np.where(keep, np.exp(np.where(keep, x, 0) - x[keep].max()), 0.0)
        return e / e.sum()

    if p["top_k"]:
        kth = np.sort(x)[::-1][min(p["top_k"], len(x)) - 1]
        with np.errstate(invalid="ignore"):
            near = np.abs(x - kth)
        fair &= not np.any((near > 0) & (near < 1e-4 * max(1, abs(kth))) & np.isfinite(x))
        keep &= x >= kth
    if p["top_p"] < 1.0:
        q = softmax()
        order = np.argsort(q, kind="stable")
        cumulative = np.cumsum(q[order])
        removed = cumulative <= 1 - p["top_p"]
        removed[-1] = False
        edge = np.abs(cumulative[:-1] - (1 - p["top_p"]))
        fair &= not np.any(edge[q[order][:-1] > 1e-9] < 1e-5)
        gone, kept = order[removed], order[~removed]
        if len(gone) and len(kept) and x[gone].max() == x[kept].min() and np.isfinite(x[gone].max()):
            fair = False  # equal logits on both sides of the cut
        keep[gone] = False
    if p["min_p"] is not None:
        q = softmax()
        limit = p["min_p"] * q.max()
        fair &= not np.any((np.abs(q - limit) < 1e-4 * limit) & (q < q.max() * (1 - 1e-9)))
        cut = q < limit
        cut[q.argmax()] = False
        keep &= ~cut
    return keep, softmax(), fair


def one(rng, index):
    vocab = int(rng.integers(50, 301))
    kind = index % 4
    if kind == 0:
        values = rng.standard_normal(vocab) * 3
    elif kind == 1:
        values = rng.standard_normal(vocab) * 1.2
    elif kind == 2:
        values = np.round(rng.standard_normal(vocab) * 2)          # many ties
    else:
        values = rng.standard_normal(vocab) * 8 - 20               # all negative, steep
    values = np.round(values * UNIT) / UNIT
    if index % 11 == 0:
        values[rng.integers(0, vocab, 5)] = 0.0
    masked = rng.integers(0, vocab, 6).tolist() if index % 9 == 0 else []
    values[masked] = -np.inf
    pick = lambda *items: items[int(rng.integers(0, len(items)))]  # noqa: E731
    p = {
        "temperature": pick(1.0, 1.0, 0.7, 0.3, 1.5, 2.5, 0.05),
        "top_k": pick(0, 0, 1, 2, 5, 20, 50, 1000),
        "top_p": pick(1.0, 1.0, 0.95, 0.9, 0.5, 0.1, 1e-6),
        "min_p": pick(None, None, None, 0.0, 0.02, 0.1, 0.5, 1.0),
        "repetition_penalty": pick(1.0, 1.0, 1.1, 1.5, 0.8),
    }
    previous = rng.integers(0, vocab, int(rng.integers(1, 30))).tolist() if p["repetition_penalty"] != 1.0 else []
    previous += previous[:3]  # repeated ids count once
    return values.astype(np.float32), previous, p


def case_of(values, previous, p):
    keep, exact, fair = reference(values, previous, p)
    scores = torch.from_numpy(values.copy())[None]
    ids = torch.tensor([previous], dtype=torch.long)
    for processor in processors(p):
        scores = processor(ids, scores)
    probabilities = torch.softmax(scores, -1)[0].numpy()
    survivors = np.nonzero(np.isfinite(scores[0].numpy()))[0]
    if not fair:
        return None
    assert survivors.tolist() == np.nonzero(keep)[0].tolist(), (p, survivors, np.nonzero(keep)[0])
    assert np.abs(probabilities - exact).max() < 2e-5, np.abs(probabilities - exact).max()
    return {
        "vocab": len(values),
        "logits_64ths": [int(round(float(v) * UNIT)) if np.isfinite(v) else None for v in values],
        "previous": previous, **p,
        "survivors": survivors.tolist(),
        "probabilities": [float(f"{probabilities[i]:.7g}") for i in survivors],
    }


def make(root, only):
    rng = common.rng_of("sampler")
    cases, replaced, single = [], 0, 0
    while len(cases) < COUNT:
        case = case_of(*one(rng, len(cases)))
        if case is None:
            replaced += 1
            continue
        if len(case["survivors"]) == 1:
            single += 1
            if single > COUNT // 6:  # enough of those
                continue
        cases.append(case)
    text = "[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n"
    common.write_text(root / "sampler" / "cases.json", text)
    return {"sampler": {"cases": len(cases), "replaced_as_unfair": replaced}}, ["sampler"]


if __name__ == "__main__":
    common.main("sampler", make, PACKAGES, __doc__)
