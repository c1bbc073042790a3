// SPDX-License-Identifier: Apache-2.0
#include "tensor/block_format.h"

#include "base/check.h"

namespace pointsman {

float weight_value(const Weight& w, int64_t row, int64_t col) {
  const int64_t at = w.layout == WeightLayout::kOutIn ? row * w.row_stride + col : col * w.row_stride + row;
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  float code = 0;
  switch (w.dtype) {
    case DType::kF4: code = e2m1_to_float(static_cast<uint8_t>(bytes[at / 2] >> (at % 2 * 4))); break;
    case DType::kF8E4M3: code = e4m3_to_float(bytes[at]); break;
    case DType::kF8E5M2: code = e5m2_to_float(bytes[at]); break;
    case DType::kBF16: code = to_float(w.as<const bf16>()[at]); break;
    case DType::kF16: code = to_float(w.as<const f16>()[at]); break;
    case DType::kF32: code = w.as<const float>()[at]; break;
    default: PM_CHECK(false, "not a weight dtype");
  }
  return w.format ? code * scale_to_float(w.scales, w.format.scale_dtype, scale_index(w.format, w.rows, w.cols, row, col)) : code;
}

}  // namespace pointsman
