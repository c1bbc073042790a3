// SPDX-License-Identifier: Apache-2.0
#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace pointsman {

RopeTable::RopeTable(const RopeConfig& rope, int64_t rotary_dim) : inv_freq_(static_cast<size_t>(rotary_dim / 2)) {
  const double dim = static_cast<double>(rotary_dim);
  const auto frequency = [&](size_t i) {
    return static_cast<float>(1.0 / static_cast<float>(std::pow(rope.theta, 2.0 * static_cast<double>(i) / dim)));
  };
  for (size_t i = 0; i < inv_freq_.size(); ++i) inv_freq_[i] = frequency(i);

  if (rope.type == RopeType::kLinear) {
    for (float& f : inv_freq_) f /= static_cast<float>(rope.factor);
  } else if (rope.type == RopeType::kLlama3) {
    const float factor = static_cast<float>(rope.factor);
    const float low = static_cast<float>(rope.low_freq_factor), high = static_cast<float>(rope.high_freq_factor);
    const float context = static_cast<float>(rope.original_max_position_embeddings);
    for (float& f : inv_freq_) {
      const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
      if (wavelength > context / low) {
        f /= factor;
      } else if (!(wavelength < context / high)) {
        const float kept = (context / wavelength - low) / (high - low);
        f = (1 - kept) * f / factor + kept * f;
      }
    }
  } else if (rope.type == RopeType::kYarn) {
    // The channel that turns `rotations` times within the original context.
    const auto channel = [&](double rotations) {
      const double context = static_cast<double>(rope.original_max_position_embeddings);
      return dim * std::log(context / (rotations * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
    };
    double low = channel(rope.beta_fast);
    double high = channel(rope.beta_slow);
    if (rope.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    if (low == high) high += 0.001;
    for (size_t i = 0; i < inv_freq_.size(); ++i) {
      const float ramp =
          std::clamp(static_cast<float>((static_cast<double>(i) - low) / (high - low)), 0.0f, 1.0f);  // 0: keep, 1: interpolate
      const float kept = inv_freq_[i];
      const float interpolated = kept / static_cast<float>(rope.factor);
      inv_freq_[i] = interpolated * ramp + kept * (1 - ramp);
    }
    attention_factor_ = static_cast<float>(rope.attention_factor > 0 ? rope.attention_factor
                                           : rope.factor > 1         ? 0.1 * std::log(rope.factor) + 1
                                                                     : 1.0);
  }
}

void RopeTable::fill(int64_t first, int64_t tokens, float* cos, float* sin, int64_t stride) const {
  for (int64_t t = 0; t < tokens; ++t) {
    const float position = static_cast<float>((first + t) * stride);
    for (const float f : inv_freq_) {
      const float angle = position * f;
      *cos++ = std::cos(angle) * attention_factor_;
      *sin++ = std::sin(angle) * attention_factor_;
    }
  }
}

}  // namespace pointsman
