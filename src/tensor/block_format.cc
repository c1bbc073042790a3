// SPDX-License-Identifier: Apache-2.0
#include "tensor/block_format.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/log.h"
#include "tensor/panel_layout.h"

namespace pointsman {

float weight_value(const Weight& w, int64_t row, int64_t col) {
  const int64_t at = w.layout == WeightLayout::kOutIn  ? row * w.row_stride + col
                     : w.layout == WeightLayout::kInOut ? col * w.row_stride + row
                                                        : panel_index(w.dtype, w.cols, row, col);
  const auto* bytes = static_cast<const uint8_t*>(w.data);
  float code = 0;
  switch (w.dtype) {
    case DType::kF4: code = e2m1_to_float(static_cast<uint8_t>(bytes[at / 2] >> (at % 2 * 4))); break;
    case DType::kF8E4M3: code = e4m3_to_float(bytes[at]); break;
    case DType::kF8E5M2: code = e5m2_to_float(bytes[at]); break;
    case DType::kI8: code = static_cast<float>(static_cast<int8_t>(bytes[at])); break;
    case DType::kBF16: code = to_float(w.as<const bf16>()[at]); break;
    case DType::kF16: code = to_float(w.as<const f16>()[at]); break;
    case DType::kF32: code = w.as<const float>()[at]; break;
    default: PM_CHECK(false, "not a weight dtype");
  }
  return w.format ? code * scale_to_float(w.scales, w.format.scale_dtype, scale_index(w, row, col)) : code;
}

std::string magnitude_problem(const Weight& w) {
  constexpr int64_t kSamples = 48;  // rows, and columns: enough that every 128 x 128 block of 6144 x 6144 is met
  double sum = 0;
  int64_t count = 0, bad = 0;
  for (int64_t i = 0; i < std::min(kSamples, w.rows); ++i) {
    for (int64_t j = 0; j < std::min(kSamples, w.cols); ++j) {
      const double v = double{weight_value(w, i * w.rows / std::min(kSamples, w.rows), j * w.cols / std::min(kSamples, w.cols))};
      ++count;
      if (std::isfinite(v)) {
        sum += v * v;
      } else {
        ++bad;
      }
    }
  }
  if (bad > 0) return format("{} of {} sampled values are NaN or infinite", bad, count);
  const double rms = count > 0 ? std::sqrt(sum / static_cast<double>(count)) : 0;
  if (rms > 0x1p6 || (rms < 0x1p-24 && count > 0)) {
    return format("the root mean square of {} sampled values is {:.3g}; weights are usually between 1e-4 and 1: are these the scales of these codes?",
                  count, rms);
  }
  return "";
}

}  // namespace pointsman
