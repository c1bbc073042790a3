// SPDX-License-Identifier: Apache-2.0
//
// kPanel32: weights pre-arranged for kernels that keep 32 outputs in lanes and walk along the inputs. A panel is 32 outputs; within it
// lies, group after group of inputs, what one 32-bit lane multiplies at once:
//
//   8-bit codes   [rows / 32][cols / 4][32][4]      four inputs to a lane (vpdpbusd)
//   BF16, F16     [rows / 32][cols / 2][32][2]      two inputs to a lane (vdpbf16ps)
//   F32           [rows / 32][cols][32]
//   F4            [rows / 32][cols / 8][32][4]      bytes: low nibble input 8 g + j, high nibble input 8 g + 4 + j, so that the low nibbles
//                                                   of 64 bytes are one 8-bit group and the high ones the next
//   scales of 1 x 32 and 1 x 128 blocks  [rows / 32][blocks of a row][32]; other grids stay as they are
//
// A pure permutation of the rows' elements and of the scales: it can be undone bit for bit. Rows and inputs must be multiples of 32; blocks
// are 1 x 32, with I8 also 1 x 128 (the last one of a row: what is left), or multiples of 32 in both directions.
#pragma once

#include <cstdint>

#include "tensor/block_format.h"

namespace pointsman {

// Elements of one lane's group, along the inputs.
inline int64_t panel_group(DType dtype) {
  switch (dtype_bits(dtype)) {
    case 4: return 8;
    case 8: return 4;
    case 16: return 2;
    default: return 1;
  }
}

// Where element (row, col) of a [*, cols] matrix lies, in elements; for F4 the low nibble of byte b is element 2 b.
inline int64_t panel_index(DType dtype, int64_t cols, int64_t row, int64_t col) {
  const int64_t group = panel_group(dtype);
  const int64_t lane = (row / kPanelRows * (cols / group) + col / group) * kPanelRows + row % kPanelRows;
  const int64_t within = col % group;
  return lane * group + (group == 8 ? within % 4 * 2 + within / 4 : within);
}

// `from` [rows, cols] in rows (contiguous, whole) rearranged into `data` and, with scales, `scales`; both of the same size as the source's.
// A grid that stays as it is may be left alone: `scales` null. Then `from` may be some rows of a larger matrix.
// Nothing may overlap. REQUIRES: kOutIn and can_be_panels(from).
void to_panels(const Weight& from, void* data, void* scales);
// The inverse. REQUIRES: kPanel32.
void from_panels(const Weight& from, void* data, void* scales);

// Does the shape allow panels, whatever its layout is now?
bool can_be_panels(const Weight& w);

}  // namespace pointsman
