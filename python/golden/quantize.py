# SPDX-License-Identifier: Apache-2.0
"""Weights as quantised checkpoints store them, and what they stand for: stored(weights) and dequantised(weights) of a generator."""

import math

import numpy as np
import torch

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def fp8_blocks(weight, block, power_of_two=False):
    """E4M3 codes, scales [ceil(o / block), ceil(i / block)], and the fp32 values they stand for. Scales are odd unless told otherwise."""
    rows, cols = weight.shape
    grid = torch.empty(math.ceil(rows / block), math.ceil(cols / block))
    codes = torch.empty(rows, cols, dtype=torch.float8_e4m3fn)
    values = torch.empty(rows, cols)
    for r in range(grid.shape[0]):
        for c in range(grid.shape[1]):
            at = (slice(r * block, (r + 1) * block), slice(c * block, (c + 1) * block))
            scale = weight[at].abs().max().clamp(min=1e-4) / 448
            if power_of_two:
                scale = torch.exp2(torch.ceil(torch.log2(scale)))
            grid[r, c] = scale
            codes[at] = (weight[at] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
            values[at] = codes[at].float() * scale
    return codes, grid, values


def mxfp8_rows(weight):
    """weight [out, in] -> E4M3 codes, E8M0 exponents [out, ceil(in / 32)] by OCP's rule, and the values they stand for."""
    rows, cols = weight.shape
    codes, exponents = torch.empty(rows, cols, dtype=torch.float8_e4m3fn), torch.empty(rows, math.ceil(cols / 32), dtype=torch.uint8)
    values = torch.empty(rows, cols)
    for b in range(exponents.shape[1]):
        at = (slice(None), slice(32 * b, 32 * (b + 1)))
        exponent = torch.floor(torch.log2(weight[at].abs().amax(1).clamp(min=2.0 ** -100))) - 8
        exponents[:, b] = (exponent + 127).to(torch.uint8)
        scale = torch.exp2(exponent)[:, None]
        codes[at] = (weight[at] / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
        values[at] = codes[at].float() * scale
    return codes, exponents, values


def mxfp4_rows(weight):
    """weight [..., out, in] -> packed bytes [..., out, in / 32, 16], exponents [..., out, in / 32], values [..., out, in]."""
    groups = weight.reshape(*weight.shape[:-1], -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1).clamp(min=2.0 ** -100))) - 2
    scale = torch.exp2(exponent)
    scaled = (groups / scale[..., None]).clamp(-6, 6)
    code = (scaled.abs()[..., None] - E2M1).abs().argmin(-1)
    values = torch.copysign(E2M1[code], scaled) * scale[..., None]
    code = code + 8 * torch.signbit(scaled)
    packed = (code[..., 0::2] + 16 * code[..., 1::2]).to(torch.uint8)
    return packed, (exponent + 127).to(torch.uint8), values.reshape(weight.shape)
