// SPDX-License-Identifier: Apache-2.0
#include "tensor/panel_layout.h"

#include <cstring>

#include "base/check.h"

namespace pointsman {
namespace {

// One panel: lanes of `kLaneBytes` bytes go from [32 rows][groups] to [groups][32 rows], or back.
template <size_t kLaneBytes, bool kBack>
void turn_panel(const uint8_t* from, uint8_t* to, int64_t groups) {
  const int64_t row_bytes = groups * static_cast<int64_t>(kLaneBytes);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      const int64_t in_rows = r * row_bytes + g * static_cast<int64_t>(kLaneBytes);
      const int64_t in_panel = (g * kPanelRows + r) * static_cast<int64_t>(kLaneBytes);
      std::memcpy(to + (kBack ? in_rows : in_panel), from + (kBack ? in_panel : in_rows), kLaneBytes);
    }
  }
}

// Eight nibbles: pairs of neighbours against pairs four apart.
inline uint32_t nibbles_to_bytes(uint32_t four) {
  four = (four | four << 8) & 0x00ff00ffu;
  return (four | four << 4) & 0x0f0f0f0fu;
}
inline uint32_t bytes_to_nibbles(uint32_t four) {
  four = (four | four >> 4) & 0x00ff00ffu;
  return (four | four >> 8) & 0xffffu;
}
inline uint32_t spread_nibbles(uint32_t rows) { return nibbles_to_bytes(rows & 0xffffu) | nibbles_to_bytes(rows >> 16) << 4; }
inline uint32_t join_nibbles(uint32_t lane) { return bytes_to_nibbles(lane & 0x0f0f0f0fu) | bytes_to_nibbles(lane >> 4 & 0x0f0f0f0fu) << 16; }

template <bool kBack>
void turn_f4_panel(const uint8_t* from, uint8_t* to, int64_t groups) {
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t r = 0; r < kPanelRows; ++r) {
      const int64_t in_rows = (r * groups + g) * 4, in_panel = (g * kPanelRows + r) * 4;
      uint32_t v;
      std::memcpy(&v, from + (kBack ? in_panel : in_rows), 4);
      v = kBack ? join_nibbles(v) : spread_nibbles(v);
      std::memcpy(to + (kBack ? in_rows : in_panel), &v, 4);
    }
  }
}

template <bool kBack>
void turn(const Weight& w, void* data, void* scales) {
  const int64_t panel_bytes = kPanelRows * w.cols * dtype_bits(w.dtype) / 8;
  const int64_t groups = w.cols / panel_group(w.dtype);
  for (int64_t p = 0; p < w.rows / kPanelRows; ++p) {
    const uint8_t* from = static_cast<const uint8_t*>(w.data) + p * panel_bytes;
    uint8_t* to = static_cast<uint8_t*>(data) + p * panel_bytes;
    if (w.dtype == DType::kF4) {
      turn_f4_panel<kBack>(from, to, groups);
    } else {
      turn_panel<4, kBack>(from, to, groups);
    }
  }
  if (!w.format) return;
  const int64_t scale_bytes = dtype_bits(w.format.scale_dtype) / 8;
  if (w.format.block_rows != 1) {
    if (scales != nullptr) std::memcpy(scales, w.scales, static_cast<size_t>(grid_bytes(w.format, w.rows, w.cols)));
    return;
  }
  const int64_t blocks = w.format.grid_cols(w.cols);
  for (int64_t p = 0; p < w.rows / kPanelRows; ++p) {
    const uint8_t* from = static_cast<const uint8_t*>(w.scales) + p * kPanelRows * blocks * scale_bytes;
    uint8_t* to = static_cast<uint8_t*>(scales) + p * kPanelRows * blocks * scale_bytes;
    switch (scale_bytes) {
      case 1: turn_panel<1, kBack>(from, to, blocks); break;
      case 2: turn_panel<2, kBack>(from, to, blocks); break;
      default: turn_panel<4, kBack>(from, to, blocks); break;
    }
  }
}

}  // namespace

bool can_be_panels(const Weight& w) {
  if (w.rows % kPanelRows != 0 || w.cols % kPanelRows != 0 || w.rows == 0 || w.cols == 0) return false;
  if (w.first_row % kPanelRows != 0) return false;
  if (!w.format) return is_plain(w.dtype);
  const BlockFormat& f = w.format;
  const bool fine = f.block_rows == 1 && (f.block_cols == 32 || (f.block_cols == 128 && w.dtype == DType::kI8)) && !f.transposed;
  return is_coded(w.dtype) && (fine || (f.block_rows % kPanelRows == 0 && f.block_cols % 32 == 0));
}

bool is_panel_shape(const Weight& w) { return can_be_panels(w) && w.row_stride == w.cols; }

void to_panels(const Weight& from, void* data, void* scales) {
  PM_CHECK(from.layout == WeightLayout::kOutIn && can_be_panels(from) && from.row_stride == from.cols && from.first_row == 0);
  turn<false>(from, data, scales);
}

void from_panels(const Weight& from, void* data, void* scales) {
  PM_CHECK(from.layout == WeightLayout::kPanel32 && is_panel_shape(from) && from.first_row == 0);
  turn<true>(from, data, scales);
}

}  // namespace pointsman
