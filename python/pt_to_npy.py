#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Turns the .pt payloads of an msprobe dump folder into .npy beside them, and points dump.json at those.

    python pt_to_npy.py DUMP_FOLDER      # the folder with dump.json and dump_tensor_data/

Only tensors are unpickled (torch.load with weights_only). bfloat16 becomes float32, which holds every bfloat16.
"""

import json
import pathlib
import sys

import numpy as np
import torch


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    made = 0
    for path in sorted((folder / "dump_tensor_data").glob("*.pt")):
        value = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(value, torch.Tensor):
            print(f"{path.name}: no tensor, left alone", file=sys.stderr)
            continue
        value = value.detach()
        np.save(path.with_suffix(".npy"), (value.float() if value.dtype == torch.bfloat16 else value).contiguous().numpy())
        made += 1

    def point(value):
        if isinstance(value, dict):
            name = value.get("data_name")
            if isinstance(name, str) and name.endswith(".pt") and (folder / "dump_tensor_data" / name).with_suffix(".npy").exists():
                value["data_name"] = name[:-3] + ".npy"
            for inner in value.values():
                point(inner)
        elif isinstance(value, list):
            for inner in value:
                point(inner)
    dump = json.loads((folder / "dump.json").read_text())
    point(dump)
    (folder / "dump.json").write_text(json.dumps(dump, indent=1))
    print(f"{made} arrays", file=sys.stderr)


if __name__ == "__main__":
    main()
