// SPDX-License-Identifier: Apache-2.0
#include "pack/matrix_reader.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "tensor/panel_layout.h"

namespace pointsman {
namespace {

// [rows, cols] of `size` bytes each to [cols, rows].
template <class T>
void transpose(const std::byte* from, int64_t rows, int64_t cols, std::byte* to) {
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) std::memcpy(to + (c * rows + r) * int64_t{sizeof(T)}, from + (r * cols + c) * int64_t{sizeof(T)}, sizeof(T));
      }
    }
  }
}
}  // namespace

void transpose_elements(int bytes, const std::byte* from, int64_t rows, int64_t cols, std::byte* to) {
  switch (bytes) {
    case 1: return transpose<uint8_t>(from, rows, cols, to);
    case 2: return transpose<uint16_t>(from, rows, cols, to);
    default: return transpose<uint32_t>(from, rows, cols, to);
  }
}

Status MatrixReader::open(const Weight& w, const SourceRange& data, const SourceRange& scales) {
  w_ = w;
  data_ = data;
  grid_stored_.clear();
  grid_rows_.clear();
  if (!w.format) return ok_status();
  const auto bytes = static_cast<size_t>(grid_bytes(w.format, w.rows, w.cols));
  PM_CHECK(bytes == scales.size_bytes);
  grid_stored_.resize(bytes);
  PM_RETURN_IF_ERROR(checkpoint_.read(scales.file_idx, scales.offset, grid_stored_));
  if (w.format.transposed) {
    grid_rows_.resize(bytes);
    transpose_elements(dtype_bits(w.format.scale_dtype) / 8, grid_stored_.data(), w.format.grid_cols(w.cols), w.format.grid_rows(w.rows), grid_rows_.data());
    w_.format.transposed = false;
  } else if (w.layout == WeightLayout::kPanel32 && w.format.block_rows == 1) {
    grid_rows_.resize(bytes);
  } else {
    std::swap(grid_rows_, grid_stored_);
  }
  return ok_status();
}

int64_t MatrixReader::piece_rows() const {
  if (w_.layout == WeightLayout::kInOut) return w_.rows;
  const int64_t row_bits = std::max<int64_t>(1, w_.cols * dtype_bits(w_.dtype));
  const int64_t rows = std::max<int64_t>(1, kPieceBytes * 8 / row_bits / kPanelRows) * kPanelRows;
  return std::min(rows, w_.rows);
}

Result<Weight> MatrixReader::read(int64_t first, int64_t count) {
  const int64_t bits = dtype_bits(w_.dtype);
  const auto bytes = static_cast<size_t>(count * w_.cols * bits / 8);
  raw_.resize(bytes);
  PM_RETURN_IF_ERROR(checkpoint_.read(data_.file_idx, data_.offset + static_cast<uint64_t>(first * w_.cols * bits / 8), raw_));
  checkpoint_.forget(data_.file_idx, data_.offset + static_cast<uint64_t>(first * w_.cols * bits / 8), bytes);
  Weight out(Tensor::matrix(raw_.data(), w_.dtype, count, w_.cols));
  out.format = w_.format;
  if (w_.layout == WeightLayout::kInOut) {
    rows_.resize(bytes);
    transpose_elements(static_cast<int>(bits / 8), raw_.data(), w_.cols, w_.rows, rows_.data());
    out.data = rows_.data();
  } else if (w_.layout == WeightLayout::kPanel32) {
    rows_.resize(bytes);
    Weight panels = out;
    panels.layout = WeightLayout::kPanel32;
    std::byte* scales = nullptr;
    if (w_.format.block_rows == 1) {
      const int64_t at = first * w_.format.grid_cols(w_.cols) * dtype_bits(w_.format.scale_dtype) / 8;
      panels.scales = grid_stored_.data() + at;
      scales = grid_rows_.data() + at;
    }
    from_panels(panels, rows_.data(), scales);
    out.data = rows_.data();
  }
  if (out.format) {
    out.scales = grid_rows_.data();
    out.first_row = first;
    out.grid_of_rows = w_.rows;
  }
  return out;
}

}  // namespace pointsman
