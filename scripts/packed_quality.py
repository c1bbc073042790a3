#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far packed models are from the one they were made from, on text: Kullback-Leibler divergence of the next-token distribution from the
reference in fp32, share of equal greedy tokens, and the ratio of perplexities, each with the standard error over windows of tokens.

  scripts/packed_quality.py build/release/pointsman MODEL --tokens heldout_*.bin -- PACKED [PACKED ...]

Token files are uint16, as python/train/make_corpus.py writes them. Needs numpy."""

import argparse
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np


def logits_of(program, model, tokens, numerics, folder):
    out = os.path.join(folder, "trace.safetensors")
    ids = ",".join(str(t) for t in tokens)
    subprocess.run([program, "trace", model, "--tokens", ids, "--what", "logits", "--numerics", numerics, "--no-progress", "--out", out], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(out, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        entry = json.loads(f.read(size))["logits"]
        f.seek(8 + size + entry["data_offsets"][0])
        raw = f.read(entry["data_offsets"][1] - entry["data_offsets"][0])
    os.unlink(out)
    return np.frombuffer(raw, dtype=np.float32).reshape(entry["shape"]).astype(np.float64)


def log_softmax(x):
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def mean_and_error(values):
    v = np.array(values)
    return float(v.mean()), float(v.std(ddof=1) / math.sqrt(len(v))) if len(v) > 1 else math.nan


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("program")
    p.add_argument("model", help="the reference, computed in fp32")
    p.add_argument("packed", nargs="+")
    p.add_argument("--tokens", nargs="+", required=True, help="uint16 token files")
    p.add_argument("--window", type=int, default=256)
    p.add_argument("--windows", type=int, default=4, help="of each file, spread over it")
    p.add_argument("--numerics", default="bf16", help="of the packed models")
    a = p.parse_args()

    windows = []
    for path in a.tokens:
        ids = np.fromfile(path, dtype=np.uint16).astype(np.int64)
        n = min(a.windows, len(ids) // a.window)
        windows += [ids[i * (len(ids) // n):][:a.window] for i in range(n)]
    print(f"{len(windows)} windows of {a.window} tokens; {a.numerics} against fp32", file=sys.stderr)
    rows = {m: {"kl": [], "nll": [], "same": []} for m in a.packed}
    with tempfile.TemporaryDirectory() as folder:
        for w in windows:
            reference = log_softmax(logits_of(a.program, a.model, w, "fp32", folder))
            probability = np.exp(reference)
            at = np.arange(len(w) - 1)
            for m in a.packed:
                found = log_softmax(logits_of(a.program, m, w, a.numerics, folder))
                rows[m]["kl"].append((probability * (reference - found)).sum(-1).mean())
                rows[m]["nll"].append((reference[at, w[1:]] - found[at, w[1:]]).mean())
                rows[m]["same"].append((reference.argmax(-1) == found.argmax(-1)).mean())
    print("| model | KL (nats) | perplexity ratio | same greedy token |")
    print("|---|---:|---:|---:|")
    for m in a.packed:
        kl, kl_error = mean_and_error(rows[m]["kl"])
        nll, nll_error = mean_and_error(rows[m]["nll"])
        same, _ = mean_and_error(rows[m]["same"])
        ratio = math.exp(nll)
        print(f"| {os.path.basename(m.rstrip('/'))} | {kl:.5f} +- {kl_error:.5f} | {ratio:.4f} +- {ratio * nll_error:.4f} | {100 * same:.1f} % |")


if __name__ == "__main__":
    main()
