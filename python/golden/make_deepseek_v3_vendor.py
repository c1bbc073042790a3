#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the vendor's numerics make of the committed deepseek_v3 checkpoints, by the float64 reference (deepseek_v3_vendor.py).

The reference is trusted when it gives transformers' numbers with all rounding off. The checkpoints are read from tests/golden, not made here.
"""

import json

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from deepseek_v3_vendor import Vendor  # noqa: E402
from safetensors import safe_open  # noqa: E402

PACKAGES = ("torch", "safetensors", "numpy")
EXACT_ATOL = 1e-4
CASES = ("deepseek_v3_bf16", "deepseek_v3_fp8", "deepseek_v3_fp8_ue8m0")


def read(path):
    tensors = {}
    with safe_open(path, "pt") as f:
        for name in f.keys():
            tensors[name] = f.get_tensor(name)
    return tensors


def distance(a, b):
    return float((a - b).norm() / b.norm())


def make(root, only):
    torch.set_num_threads(1)
    facts, folders = {}, []
    for case in CASES:
        source = common.GOLDEN / case
        config = json.loads((source / "config.json").read_text())
        tensors = {}
        for shard in sorted(source.glob("model*.safetensors")):
            tensors.update(read(shard))
        kept = read(source / "expected.safetensors")
        tokens = kept["tokens"].tolist()
        exact = Vendor(config, tensors, exact=True).run(tokens)["logits"]
        for naive in (False, True):
            folder = f"deepseek_v3_vendor/{case}_{'naive' if naive else 'absorbed'}"
            if only is not None and only not in folder:
                continue
            worst = float((Vendor(config, tensors, naive, exact=True).run(tokens)["logits"] - kept["logits"].double()).abs().max())
            assert worst <= EXACT_ATOL, f"{folder}: with nothing rounded {worst} from transformers"
            out = Vendor(config, tensors, naive).run(tokens)
            changed = sum(int((v.sort(-1).values != kept[k].sort(-1).values).any(-1).sum()) for k, v in out.items() if k.endswith("router.ids"))
            facts[folder] = {"exact_to_transformers": round(worst, 7), "vendor_to_exact": round(distance(out["logits"], exact), 5),
                             "router_sets_changed": changed, "same_argmax": float((out["logits"].argmax(-1) == exact.argmax(-1)).double().mean())}
            (root / folder).mkdir(parents=True, exist_ok=True)
            values = {k: v.numpy() if v.dtype == torch.int32 else v.numpy().astype(np.float32) for k, v in out.items()}
            values["tokens"] = np.array(tokens, dtype=np.int32)
            common.write_expected(root / folder / "expected.safetensors", values, {"about": "vendor numerics, float64 reference"})
            folders.append(folder)
            print(folder, json.dumps(facts[folder]), flush=True)
    return facts, folders


if __name__ == "__main__":
    common.main("deepseek_v3_vendor", make, PACKAGES, __doc__)
