#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Blocks of 32 fp32 values and their INT8, MXFP8 and MXFP4 codes and scales: every boundary between neighbouring codes and the floats beside
it, scales at their thresholds, zeros, denormals, the largest floats, random blocks. Codes come from a search for the nearest one among all in
float64, ties to the even code, and are held against torch's FP8 cast and, where it is installed, ml_dtypes' FP4."""

import math

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402

try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

PACKAGES = ("torch", "numpy")
E4M3 = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy().astype(np.float64)
E2M1 = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def nearest(values, codes):
    """Index of the nearest code of each magnitude, ties to the even index, beyond the last one the last one."""
    magnitude = np.abs(values)
    distance = np.abs(magnitude[:, None] - codes[None])
    low = np.argmin(distance, axis=1)
    high = len(codes) - 1 - np.argmin(distance[:, ::-1], axis=1)
    return np.where(low % 2 == 0, low, high)


def mx(block, codes, rule):
    largest = float(codes[-1])
    amax = float(np.max(np.abs(block.astype(np.float64))))
    if amax == 0:
        e = 0
    elif rule == "up":
        e = math.frexp(amax)[1] - math.frexp(largest)[1] - 2
        while math.ldexp(largest, e) < amax:
            e += 1
    else:
        e = (math.frexp(amax)[1] - 1) - (math.frexp(largest)[1] - 1)
    e = max(-127, min(127, e))
    scaled = block.astype(np.float64) * 2.0 ** -e
    index = nearest(scaled, codes)
    sign = np.signbit(block)
    if len(codes) == 8:
        if ml_dtypes is not None:
            theirs = np.clip(scaled, -6, 6).astype(np.float32).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
            assert np.array_equal(np.abs(theirs), codes[index].astype(np.float32))
        return index | np.where(sign, 8, 0), e + 127
    theirs = torch.from_numpy(np.clip(scaled, -448, 448).astype(np.float32)).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    made = index | np.where(sign, 128, 0)
    assert np.array_equal(theirs, made)
    return made, e + 127


def int8(block):
    amax = np.max(np.abs(block))
    if amax == 0:
        return np.zeros(32, dtype=np.int64), 0x3F80
    bits = int((amax / np.float32(127)).astype(np.float32).view(np.uint32))
    scale_bits = max((bits + 0xFFFF) >> 16, 1)
    scale = np.array([scale_bits << 16], dtype=np.uint32).view(np.float32)[0]
    codes = torch.round(torch.from_numpy(block) / float(scale)).numpy()
    assert np.max(np.abs(codes)) <= 127 and scale.astype(np.float64) * 127.001 >= amax
    return codes.astype(np.int64) & 0xFF, scale_bits


def around(v):
    v = np.float32(v)
    return [np.nextafter(v, np.float32(-math.inf)), v, np.nextafter(v, np.float32(math.inf))]


def blocks_of(values, anchor):
    """Blocks of 31 values and the anchor, which decides the scale; signs in turn."""
    out = []
    for i in range(0, len(values), 31):
        part = [v if j % 2 == 0 else -v for j, v in enumerate(values[i:i + 31])]
        out.append(np.array(part + [0.0] * (31 - len(part)) + [anchor], dtype=np.float32))
    return out


def make(root, only):
    folder = root / "quantise"
    folder.mkdir(parents=True, exist_ok=True)
    rng = common.rng_of("quantise")
    blocks = []
    for codes in (E4M3, E2M1):
        for e in (-20, 0, 7):
            boundaries = [around((a + b) / 2 * 2.0 ** e) for a, b in zip(codes, codes[1:])]
            exact = [np.float32(c * 2.0 ** e) for c in codes]
            blocks += blocks_of([v for three in boundaries for v in three] + exact, np.float32(codes[-1] * 2.0 ** e))
    for scale in (1.0, 0.0078125 * 1.5, 2.0 ** 40 * 1.9921875):
        boundaries = [around((k + 0.5) * scale) for k in range(127)]
        blocks += blocks_of([v for three in boundaries for v in three], np.float32(127 * scale))
    # Scales at their thresholds.
    for m in (1.0, 1.5, 1.75, 1.9999999):
        for e in (-140, -127, -120, -9, 0, 30, 127):
            for v in around(m * 2.0 ** e):
                if np.isfinite(v):
                    row = np.float32(rng.uniform(-1, 1, 32)) * v
                    row[5] = v
                    blocks.append(row.astype(np.float32))
    blocks.append(np.zeros(32, dtype=np.float32))
    blocks.append(np.array([-0.0] * 32, dtype=np.float32))
    blocks.append(np.array([1e-45] + [0.0] * 31, dtype=np.float32))
    blocks.append(np.array([3.4028235e38, -3.4028235e38] * 16, dtype=np.float32))
    for sd in (1e-30, 1e-6, 0.02, 1.0, 5e4):
        blocks += [np.float32(rng.normal(0, sd, 32)) for _ in range(24)]
        blocks += [torch.from_numpy(np.float32(rng.normal(0, sd, 32))).to(torch.bfloat16).to(torch.float32).numpy() for _ in range(8)]
    x = np.stack(blocks)
    t = {"x": x}
    made = [int8(b) for b in x]
    t["int8_codes"], t["int8_scales"] = np.stack([c for c, _ in made]), np.array([s for _, s in made])
    for name, codes in (("mxfp8", E4M3), ("mxfp4", E2M1)):
        for rule in ("up", "down"):
            made = [mx(b, codes, rule) for b in x]
            t[f"{name}_{rule}_codes"], t[f"{name}_{rule}_scales"] = np.stack([c for c, _ in made]), np.array([s for _, s in made])
    tensors = {k: v.astype(np.float32 if k == "x" else np.int32) for k, v in t.items()}
    common.write_expected(folder / "tables.safetensors", tensors, {"about": "from fp32 to block-scaled codes"})
    return {"quantise": {"blocks": len(blocks)}}, ["quantise"]


if __name__ == "__main__":
    common.main("make_quantise.py", make, PACKAGES, __doc__)
