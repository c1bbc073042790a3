#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Small .npy files as NumPy writes them, for the reader of foreign traces."""

import common
import numpy as np
from numpy.lib import format as npy

PACKAGES = ("numpy",)


def make(root, only):
    folder = root / "npy"
    folder.mkdir(parents=True, exist_ok=True)
    values = np.arange(12).reshape(3, 4)
    np.save(folder / "f4.npy", (values / 8).astype("<f4"))
    np.save(folder / "f2.npy", (values / 8).astype("<f2"))
    np.save(folder / "f8.npy", (values / 8).astype("<f8"))
    np.save(folder / "i8.npy", values.astype("<i8"))
    np.save(folder / "batch.npy", values.astype("<f4")[None])
    np.save(folder / "scalar.npy", np.float32(2.5))
    np.save(folder / "vector.npy", values.astype("<f4").ravel())
    np.save(folder / "empty.npy", np.zeros((0, 4), "<f4"))
    np.save(folder / "columns.npy", np.asfortranarray(values.astype("<f4")))
    np.save(folder / "big_endian.npy", values.astype(">f4"))
    np.save(folder / "complex.npy", values.astype("<c8"))
    for version in ((2, 0), (3, 0)):
        with open(folder / f"version{version[0]}.npy", "wb") as out:
            npy.write_array(out, values.astype("<f4"), version=version)
    return [{"name": p.name} for p in sorted(folder.iterdir())], ["npy"]


if __name__ == "__main__":
    common.main("npy", make, PACKAGES, __doc__)
