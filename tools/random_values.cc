// SPDX-License-Identifier: Apache-2.0
#include "tools/random_values.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/block_format.h"

namespace pointsman::tools {
namespace {

// splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
class Noise {
 public:
  Noise(uint64_t seed, uint64_t tensor, uint64_t block) : state_(seed * 0xD1342543DE82EF95ull + (tensor << 24) + block) { state_ = next(); }
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // The sum of four uniform bytes, centred and of variance 1: close enough to normal.
  float normal() {
    const uint32_t r = static_cast<uint32_t>(next() >> 32);
    const int sum = static_cast<int>((r & 255) + ((r >> 8) & 255) + ((r >> 16) & 255) + (r >> 24)) - 510;
    return static_cast<float>(sum) * static_cast<float>(1 / 147.8);
  }

 private:
  uint64_t state_;
};

template <class Decode>
uint8_t nearest_code(double value, int num_codes, Decode decode) {
  int best = 0;
  for (int c = 1; c < num_codes; ++c) {
    if (std::abs(decode(static_cast<uint8_t>(c)) - value) < std::abs(decode(static_cast<uint8_t>(best)) - value)) best = c;
  }
  return static_cast<uint8_t>(best);
}

using Codes = std::array<uint8_t, 4096>;  // of equal probability

const Codes& e4m3_codes() {
  static const Codes codes = [] {
    Codes c;
    for (size_t i = 0; i < c.size(); ++i) {
      const double value = kE4m3Sd * normal_quantile((static_cast<double>(i) + 0.5) / static_cast<double>(c.size()));
      c[i] = nearest_e4m3(value);
    }
    return c;
  }();
  return codes;
}

// Two codes to a byte, each of 64 quantiles.
const Codes& f4_pairs() {
  static const Codes codes = [] {
    std::array<uint8_t, 64> one;
    for (size_t i = 0; i < one.size(); ++i) {
      one[i] = nearest_code(kE2m1Sd * normal_quantile((static_cast<double>(i) + 0.5) / 64), 16, [](uint8_t code) { return double{e2m1_to_float(code)}; });
    }
    Codes c;
    for (size_t i = 0; i < c.size(); ++i) c[i] = static_cast<uint8_t>(one[i & 63] | one[i >> 6] << 4);
    return c;
  }();
  return codes;
}

void fill_codes(const Codes& codes, Noise& noise, std::span<std::byte> out) {
  size_t i = 0;
  for (; i + 5 <= out.size(); i += 5) {
    const uint64_t r = noise.next();
    for (size_t k = 0; k < 5; ++k) out[i + k] = std::byte{codes[(r >> (12 * k)) & 4095]};
  }
  for (; i < out.size(); ++i) out[i] = std::byte{codes[noise.next() & 4095]};
}

void fill_ids(const RandomTensor& t, Noise& noise, std::span<std::byte> out) {
  const size_t row = static_cast<size_t>(t.shape.back());
  std::array<int64_t, 16> ids{};
  for (size_t at = 0; at + row * 8 <= out.size(); at += row * 8) {
    for (size_t k = 0; k < row; ++k) {
      do {
        ids[k] = static_cast<int64_t>((noise.next() >> 32) * static_cast<uint64_t>(t.mean) >> 32);
      } while (std::find(ids.begin(), ids.begin() + static_cast<ptrdiff_t>(k), ids[k]) != ids.begin() + static_cast<ptrdiff_t>(k));
    }
    std::memcpy(out.data() + at, ids.data(), row * 8);
  }
}

}  // namespace

// By bisection.
double normal_quantile(double p) {
  double low = -8, high = 8;
  for (int i = 0; i < 60; ++i) {
    const double mid = (low + high) / 2;
    (0.5 * std::erfc(-mid / std::sqrt(2.0)) < p ? low : high) = mid;
  }
  return low;
}

uint8_t nearest_e4m3(double value) {
  return nearest_code(value, 256, [](uint8_t code) { return (code & 0x7f) == 0x7f ? 1e9 : double{e4m3_to_float(code)}; });
}

void fill_random(const RandomTensor& t, uint64_t seed, uint64_t tensor_idx, uint64_t block, std::span<std::byte> out) {
  Noise noise(seed, tensor_idx, block);
  const float mean = static_cast<float>(t.mean), sd = static_cast<float>(t.sd);
  switch (t.dtype) {
    case DType::kF8E4M3: return fill_codes(e4m3_codes(), noise, out);
    case DType::kI8: return fill_codes(f4_pairs(), noise, out);
    case DType::kI64: return fill_ids(t, noise, out);
    case DType::kF8E8M0:
      for (std::byte& b : out) {
        constexpr int kOffsets[8] = {-1, -1, 0, 0, 0, 0, 1, 1};
        b = std::byte(static_cast<int>(t.mean) + kOffsets[noise.next() >> 61]);
      }
      return;
    case DType::kF32:
      for (size_t i = 0; i + 4 <= out.size(); i += 4) {
        const float v = mean + sd * noise.normal();
        std::memcpy(out.data() + i, &v, 4);
      }
      return;
    default:  // BF16
      for (size_t i = 0; i + 2 <= out.size(); i += 2) {
        const bf16 v = to_bf16(mean + sd * noise.normal());
        std::memcpy(out.data() + i, &v, 2);
      }
  }
}

}  // namespace pointsman::tools
