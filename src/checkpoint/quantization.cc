// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/quantization.h"

#include <algorithm>
#include <vector>

#include "base/log.h"
#include "tensor/panel_layout.h"

namespace pointsman {
namespace {

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

struct Candidate {
  int64_t block_rows, block_cols;
};

// Which dtypes and blocks kernels take in panels, and packed folders of this version hold so.
bool has_panel_form(const Weight& w, bool wide) {
  if (!w.format) return w.dtype == DType::kBF16;
  if (w.format.block_rows > 1) return wide && w.dtype == DType::kF8E4M3 && !w.format.transposed;
  const bool fine = w.format.block_rows == 1 && (w.format.block_cols == 32 || (w.format.block_cols == 128 && w.dtype == DType::kI8));
  return fine && (w.dtype == DType::kI8 ? w.format.scale_dtype == DType::kBF16
                                        : (w.dtype == DType::kF8E4M3 || w.dtype == DType::kF4) && w.format.scale_dtype == DType::kF8E8M0);
}

}  // namespace

WeightLayout packed_layout(const QuantizationConfig& config, std::span<const Weight> together, bool interleaved) {
  const bool panels = config.is_packed() && config.panels && std::all_of(together.begin(), together.end(), [&](const Weight& w) {
    return can_be_panels(w) && has_panel_form(w, config.wide_panels);
  });
  if (panels) return WeightLayout::kPanel32;
  const bool plain = std::all_of(together.begin(), together.end(), [](const Weight& w) { return is_plain(w.dtype); });
  return interleaved && plain ? WeightLayout::kInOut : WeightLayout::kOutIn;
}

Result<DType> describe_codes(std::string_view name, DType dtype, std::span<const int64_t> shape, int64_t rows, int64_t cols,
                             const QuantizationConfig& config) {
  const bool int8 = dtype == DType::kI8 && config.is_packed();
  const bool packed_bytes = !int8 && (dtype == DType::kI8 || dtype == DType::kU8);
  if ((!packed_bytes && !is_coded(dtype)) || (packed_bytes && config.is_packed())) {
    return error(StatusCode::kUnsupported,
                 "{}: stored as {}, which this build cannot compute with (BF16, F16, F32, F8_E4M3, F8_E5M2 and packed FP4 can be)", name,
                 dtype_name(dtype));
  }
  if ((packed_bytes || dtype == DType::kF4) && cols % 2 != 0) {
    return error(StatusCode::kCorrupt, "{}: FP4 rows of {} elements: an odd number cannot be packed two to a byte", name, cols);
  }
  const int64_t stored_cols = packed_bytes ? cols / 2 : cols;
  if (shape.size() != 2 || shape[0] != rows || shape[1] != stored_cols) {
    return error(StatusCode::kCorrupt, "{}: shape {}, but config.json implies [{}, {}]{}", name, shape_text(shape), rows, stored_cols,
                 packed_bytes ? " of packed FP4" : "");
  }
  return packed_bytes ? DType::kF4 : dtype;
}

Result<ScaleDescription> describe_scales(std::string_view name, DType code, int64_t rows, int64_t cols, DType scale_dtype,
                                         std::span<const int64_t> scale_shape, const QuantizationConfig& config) {
  if (rows < 1 || cols < 1 || rows > INT32_MAX || cols > INT32_MAX) {
    return error(StatusCode::kCorrupt, "{}: scales of a weight of {} x {}", name, rows, cols);
  }
  DType scales = scale_dtype;
  if (scales == DType::kU8) scales = DType::kF8E8M0;
  if (scales != DType::kF32 && scales != DType::kBF16 && scales != DType::kF8E8M0) {
    return error(StatusCode::kUnsupported, "{}: scales stored as {}; F32, BF16, F8_E8M0 and U8 (read as E8M0) are known", name, dtype_name(scale_dtype));
  }
  // A vector is a column: one scale for every row of blocks. A scalar is one block.
  int64_t grid[2] = {1, 1};
  if (scale_shape.size() > 2) {
    return error(StatusCode::kCorrupt, "{}: scales of shape {}, expected two dimensions", name, shape_text(scale_shape));
  }
  for (size_t i = 0; i < scale_shape.size(); ++i) grid[i] = scale_shape[i];

  const bool fp4 = code == DType::kF4;
  const bool said = !fp4 && config.block_rows > 0;
  std::vector<Candidate> candidates;
  const auto is_straight = [&](int64_t block_rows, int64_t block_cols) {
    return grid[0] == ceil_div(rows, block_rows) && grid[1] == ceil_div(cols, block_cols);
  };
  if (code == DType::kI8) {
    candidates = {{1, 32}, {1, 128}};
  } else if (config.is_packed() && is_straight(1, 32)) {
    candidates = {{1, 32}};
  } else if (fp4 || (!said && config.method == "mxfp8")) {
    if (fp4 && grid[0] == rows && grid[1] == ceil_div(cols, 16) && ceil_div(cols, 16) != ceil_div(cols, 32)) {
      return error(StatusCode::kUnsupported, "{}: FP4 with a scale for every 16 elements is NVFP4, which is not supported; MXFP4 has one for every 32", name);
    }
    candidates = {{1, 32}};
  } else if (said) {
    candidates = {{config.block_rows, config.block_cols}};
  } else {
    candidates = {{128, 128}, {32, 32}, {1, 32}, {1, 128}, {1, cols}, {rows, cols}};
  }

  struct Match {
    Candidate block;
    bool straight, transposed;
  };
  std::vector<Match> matches;
  for (const Candidate& c : candidates) {
    const int64_t r = ceil_div(rows, c.block_rows), k = ceil_div(cols, c.block_cols);
    const bool straight = grid[0] == r && grid[1] == k, transposed = grid[0] == k && grid[1] == r;
    if (!straight && !transposed) continue;
    // Blocks that cover the same elements are one candidate: 1 x 128 and one per row of at most 128 columns.
    bool known = false;
    for (const Match& m : matches) {
      known = known || (std::min(m.block.block_rows, rows) == std::min(c.block_rows, rows) && std::min(m.block.block_cols, cols) == std::min(c.block_cols, cols));
    }
    if (!known) matches.push_back({c, straight, transposed});
  }
  // What pack writes is never transposed.
  if (config.is_packed()) std::erase_if(matches, [](const Match& m) { return !m.straight; });
  if (matches.empty()) {
    std::string expected;
    for (const Candidate& c : candidates) {
      expected += format("{}[{}, {}] (blocks of {} x {})", expected.empty() ? "" : ", ", ceil_div(rows, c.block_rows), ceil_div(cols, c.block_cols),
                         c.block_rows, c.block_cols);
    }
    return error(StatusCode::kCorrupt, "{}: scales of shape {} for a weight of [{}, {}]; expected {}{}", name, shape_text(scale_shape), rows, cols,
                 expected, said ? " as weight_block_size in config.json says" : "");
  }
  if (matches.size() > 1) {
    return error(StatusCode::kUnsupported,
                 "{}: scales of shape {} for a weight of [{}, {}] fit blocks of {} x {} and of {} x {}; say which with "
                 "quantization_config.weight_block_size in config.json",
                 name, shape_text(scale_shape), rows, cols, matches[0].block.block_rows, matches[0].block.block_cols, matches[1].block.block_rows,
                 matches[1].block.block_cols);
  }
  const Match& m = matches.front();
  ScaleDescription d;
  d.format = {.scale_dtype = scales,
              .transposed = !m.straight,
              .block_rows = static_cast<int32_t>(m.block.block_rows),
              .block_cols = static_cast<int32_t>(m.block.block_cols)};
  // A row or a column of blocks reads the same both ways.
  const bool flat = grid[0] == 1 && grid[1] == 1;
  d.orientation = m.straight && m.transposed && !flat ? GridOrientation::kUndecided : m.straight ? GridOrientation::kStraight : GridOrientation::kTransposed;
  if (d.format.block_cols % 16 != 0 && d.format.block_cols < cols) {
    return error(StatusCode::kUnsupported, "{}: blocks of {} columns; a multiple of 16, or whole rows, can be computed with", name, d.format.block_cols);
  }
  return d;
}

}  // namespace pointsman
