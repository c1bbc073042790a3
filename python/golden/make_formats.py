#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tables of the stored number formats: every element code, every E8M0 byte, products with a spread of scales, and whole weights with
partial edge blocks. FP8 comes from torch's own casts, FP4 and all products from float64 arithmetic rounded once to fp32."""

import math

import common

common.quiet()

import numpy as np  # noqa: E402
import torch  # noqa: E402

PACKAGES = ("torch", "numpy")
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def codes_of(torch_dtype):
    return torch.arange(256, dtype=torch.uint8).view(torch_dtype).to(torch.float32).numpy()


def e2m1(code):
    return math.copysign(E2M1[code & 7], -1.0 if code & 8 else 1.0)


def e8m0():
    values = np.array([2.0 ** (i - 127) for i in range(255)] + [math.nan], dtype=np.float64)
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu).to(torch.float32).numpy()
    assert np.array_equal(values.astype(np.float32)[1:255], theirs[1:255]) and np.isnan(theirs[255])
    return values


def once(product64):
    with np.errstate(over="ignore", invalid="ignore"):
        return product64.astype(np.float32)


def unpacked(packed):
    low, high = packed & 15, packed >> 4
    return np.stack([low, high], -1).reshape(packed.shape[0], -1)


def blocked(values, scales, rows, cols):
    """values * scales with blocks of rows x cols; partial blocks at the edges."""
    out = np.empty(values.shape, dtype=np.float64)
    for r in range(values.shape[0]):
        for c in range(values.shape[1]):
            out[r, c] = float(values[r, c]) * float(scales[r // rows, c // cols])
    return once(out)


def make(root, only):
    folder = root / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    rng = common.rng_of("formats")
    t = {}
    e4m3, e5m2 = codes_of(torch.float8_e4m3fn), codes_of(torch.float8_e5m2)
    fp4 = np.array([e2m1(i) for i in range(16)], dtype=np.float32)
    powers = e8m0()
    t["e4m3"], t["e5m2"], t["e2m1"], t["e8m0"] = e4m3, e5m2, fp4, powers.astype(np.float32)

    # All codes times scales that are no powers of two, tiny, huge, negative, denormal, infinite and NaN.
    scales = np.concatenate([
        np.float32(rng.uniform(1e-5, 3e-4, 24)), np.float32(10.0 ** rng.uniform(-37, 36, 24)),
        np.array([1, -0.37, 2.0 ** -126, 1e-44, 3e38, math.inf, math.nan, 0], dtype=np.float32)])
    t["scales"] = scales.astype(np.float32)
    with np.errstate(invalid="ignore"):
        t["e4m3_scaled"] = once(scales[:, None].astype(np.float64) * e4m3[None].astype(np.float64))
        t["e5m2_scaled"] = once(scales[:, None].astype(np.float64) * e5m2[None].astype(np.float64))
        t["e4m3_e8m0"] = once(powers[:, None] * e4m3[None].astype(np.float64))
        t["e2m1_e8m0"] = once(powers[:, None] * fp4[None].astype(np.float64))

    # [300, 200] with blocks of 128 x 128: a grid of 3 x 2 with partial blocks on both edges.
    codes = rng.integers(0, 256, (300, 200)).astype(np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x3C  # NaN has its own test
    values = e4m3[codes]
    grid = np.float32(rng.uniform(1e-5, 3e-4, (3, 2)))
    t["edge_codes"], t["edge_scales"], t["edge_values"] = codes, grid, blocked(values, grid, 128, 128)
    exponents = rng.integers(100, 140, (3, 2)).astype(np.uint8)
    t["edge_exponents"], t["edge_e8m0_values"] = exponents, blocked(values, powers[exponents], 128, 128)

    # MXFP4 [37, 80] and MXFP8 [37, 80]: blocks of 32, the last one half; bytes 0 and 255 among the scales.
    packed = rng.integers(0, 256, (37, 40)).astype(np.uint8)
    mx = rng.integers(110, 130, (37, 3)).astype(np.uint8)
    mx[3, 1], mx[5, 2], mx[9, 0], mx[11, 2] = 0, 0, 255, 255
    t["mx_exponents"] = mx
    t["mxfp4_packed"], t["mxfp4_values"] = packed, blocked(fp4[unpacked(packed)], powers[mx], 1, 32)
    codes8 = codes[:37, :80].copy()
    t["mxfp8_codes"], t["mxfp8_values"] = codes8, blocked(e4m3[codes8], powers[mx], 1, 32)

    # Activations as DeepSeek-V3's code quantises them, by 128 channels: fp32 scales, and V3.1's powers of two. Then their product with a weight
    # [20, 300]: the sum of codes times codes of each block, times both scales.
    x = torch.tensor(rng.standard_normal((24, 300)) * 10.0 ** rng.uniform(-9, 4, (24, 1)), dtype=torch.float32).to(torch.bfloat16).float()
    x[3, 128:256] = 0
    t["act_x"] = x.numpy()
    w_codes = codes[:60].reshape(-1)[: 20 * 300].reshape(20, 300)
    w_scales = np.float32(rng.uniform(1e-5, 3e-4, (1, 3)))
    t["act_w_codes"], t["act_w_scales"] = w_codes, w_scales
    for name in ("fp32", "ue8m0"):
        out, product = np.zeros(x.shape, dtype=np.float32), np.zeros((24, 20))
        for block in range(3):
            part = x[:, 128 * block: 128 * (block + 1)]
            scale = part.abs().amax(1, keepdim=True).clamp(min=1e-4) / 448.0
            if name == "ue8m0":
                mantissa, exponent = torch.frexp(scale)
                scale = torch.ldexp(torch.ones_like(scale), exponent - (mantissa == 0.5).int())
            q = (part / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).float()
            out[:, 128 * block: 128 * (block + 1)] = (q * scale).numpy()
            w = e4m3[w_codes[:, 128 * block: 128 * (block + 1)]].astype(np.float64)
            product += (q.double().numpy() @ w.T) * scale.double().numpy() * float(w_scales[0, block])
        t[f"act_{name}"], t[f"act_{name}_product"] = out, product

    tensors = {k: v.astype(np.int32) if v.dtype == np.uint8 else v.astype(np.float32) for k, v in t.items()}
    common.write_expected(folder / "tables.safetensors", tensors, {"about": "stored number formats"})
    return {"formats": {"tensors": sorted(tensors)}}, ["formats"]


if __name__ == "__main__":
    common.main("make_formats.py", make, PACKAGES, __doc__)
