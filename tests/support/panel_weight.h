// SPDX-License-Identifier: Apache-2.0
//
// Weights in panels: a weight in rows and the same in panels.
#pragma once

#include <vector>

#include "support/coded_weight.h"
#include "tensor/panel_layout.h"

namespace pointsman::testing {

// Formats that panels can have: coded ones whose blocks allow it, and the plain types.
inline std::vector<CodedFormat> panel_formats() {
  std::vector<CodedFormat> formats{{"bf16", DType::kBF16, {}}, {"f16", DType::kF16, {}}, {"f32", DType::kF32, {}}};
  for (const CodedFormat& f : all_formats()) {
    if (f.format.block_cols <= 128) formats.push_back(f);
  }
  formats.push_back({"int8 128x128 fp32", DType::kI8, {.block_rows = 128, .block_cols = 128}});
  formats.push_back({"mxfp4 fp32", DType::kF4, {.block_rows = 1, .block_cols = 32}});
  return formats;
}

class PanelWeight {
 public:
  explicit PanelWeight(const Weight& rows)
      : data_(static_cast<size_t>(rows.rows * rows.cols * dtype_bits(rows.dtype) / 8)), scales_(static_cast<size_t>(grid_bytes(rows.format, rows.rows, rows.cols))),
        weight_(rows) {
    to_panels(rows, data_.data(), scales_.data());
    weight_.data = data_.data(), weight_.scales = rows.format ? scales_.data() : nullptr;
    weight_.layout = WeightLayout::kPanel32;
  }
  const Weight& weight() const { return weight_; }

 private:
  std::vector<uint8_t> data_, scales_;
  Weight weight_;
};

// Plain weights of normal values.
template <class T>
TestMatrix<T> plain_weight(int64_t rows, int64_t cols, std::mt19937_64& rng) {
  TestMatrix<T> m(rows, cols);
  m.fill(rng, 0.1f);
  return m;
}

}  // namespace pointsman::testing
