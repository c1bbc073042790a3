// SPDX-License-Identifier: Apache-2.0
//
// For tests of the ops: every kernel table that this CPU can run, a context to call ops with, and arrays of random values that start
// anywhere.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "device/device.h"
#include "ops/kernels.h"

namespace pointsman::testing {

struct NamedTable {
  std::string name;
  ops::KernelTable table;
};

// The scalar reference first. AVX-512 comes with and without vdpbf16ps.
inline const std::vector<NamedTable>& kernel_tables() {
  static const std::vector<NamedTable> tables = [] {
    const CpuFeatures cpu = detect_cpu_features();
    std::vector<NamedTable> t{{"scalar", ops::make_cpu_kernels(Isa::kScalar, cpu)}};
    if (cpu.avx2) t.push_back({"avx2", ops::make_cpu_kernels(Isa::kAvx2, cpu)});
    if (cpu.avx512) {
      CpuFeatures plain = cpu;
      plain.avx512_bf16 = false;
      t.push_back({"avx512 without bf16", ops::make_cpu_kernels(Isa::kAvx512, plain)});
      if (cpu.avx512_bf16) t.push_back({"avx512", ops::make_cpu_kernels(Isa::kAvx512, cpu)});
    }
    return t;
  }();
  return tables;
}

// What an op needs to run here and now.
struct OpRunner {
  explicit OpRunner(const ops::KernelTable& table, int threads = 1) : pool(threads, false), device(make_cpu_device()) {
    stream = std::move(device->make_stream()).value();
    context = {.stream = stream.get(), .pool = &pool, .kernels = &table, .fallbacks = &fallbacks};
    fallbacks.forbidden = true;
  }
  ThreadPool pool;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  ops::FallbackCounters fallbacks;
  ops::OpContext context;
};

// One runner per table, made once: a thread pool is slow to make.
inline std::vector<std::unique_ptr<OpRunner>> make_runners(int threads = 1) {
  std::vector<std::unique_ptr<OpRunner>> r;
  for (const NamedTable& t : kernel_tables()) r.push_back(std::make_unique<OpRunner>(t.table, threads));
  return r;
}

inline uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }
// Equal bits, or both NaN: which NaN is not part of any contract.
inline bool same(float a, float b) { return bits_of(a) == bits_of(b) || (std::isnan(a) && std::isnan(b)); }
inline bool same(bf16 a, bf16 b) { return a == b || (std::isnan(to_float(a)) && std::isnan(to_float(b))); }

template <class T>
::testing::AssertionResult all_same(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " against " << b.size() << " elements";
  for (size_t i = 0; i < a.size(); ++i) {
    if (!same(a[i], b[i])) {
      if constexpr (std::is_same_v<T, float>) return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " against " << b[i];
      else return ::testing::AssertionFailure() << "element " << i << ": " << to_float(a[i]) << " against " << to_float(b[i]);
    }
  }
  return ::testing::AssertionSuccess();
}

inline f16 to_f16(float f) {  // for test data: exact for values of few bits, toward zero otherwise
  const uint32_t u = bits_of(f);
  const int32_t exponent = static_cast<int32_t>((u >> 23) & 255) - 127;
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000);
  if (std::isnan(f)) return {static_cast<uint16_t>(sign | 0x7e00)};
  if (exponent > 15) return {static_cast<uint16_t>(sign | 0x7c00)};
  if (exponent < -24) return {sign};
  if (exponent < -14) return {static_cast<uint16_t>(sign | (((u & 0x7fffff) | 0x800000) >> (-1 - exponent)))};
  return {static_cast<uint16_t>(sign | ((exponent + 15) << 10) | ((u >> 13) & 0x3ff))};
}

template <class T>
inline constexpr DType kDTypeOf = std::is_same_v<T, float> ? DType::kF32 : std::is_same_v<T, bf16> ? DType::kBF16 : DType::kF16;
inline float widen(float v) { return v; }
inline float widen(bf16 v) { return to_float(v); }
inline float widen(f16 v) { return to_float(v); }
template <class T>
T narrow(float v) {
  if constexpr (std::is_same_v<T, float>) return v;
  else if constexpr (std::is_same_v<T, bf16>) return to_bf16(v);
  else return to_f16(v);
}

// A matrix with room around its rows: `offset` elements before the first and `gap` after each, all NaN, so that a kernel that reads or
// counts what is not its own shows.
template <class T>
class TestMatrix {
 public:
  TestMatrix(int64_t rows, int64_t cols, int64_t offset = 0, int64_t gap = 0)
      : rows_(rows), cols_(cols), offset_(offset), stride_(cols + gap), data_(static_cast<size_t>(offset + rows * (cols + gap) + 1), narrow<T>(NAN)) {}
  template <class Rng>
  TestMatrix& fill(Rng& rng, float scale = 1) {
    std::normal_distribution<float> normal;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) at(r, c) = narrow<T>(scale * normal(rng));
    }
    return *this;
  }
  T& at(int64_t r, int64_t c) { return data_[static_cast<size_t>(offset_ + r * stride_ + c)]; }
  const T& at(int64_t r, int64_t c) const { return data_[static_cast<size_t>(offset_ + r * stride_ + c)]; }
  double value(int64_t r, int64_t c) const { return widen(at(r, c)); }
  Tensor tensor() { return {data_.data() + offset_, kDTypeOf<T>, rows_, cols_, stride_}; }
  std::vector<T> values() const {
    std::vector<T> v;
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < cols_; ++c) v.push_back(at(r, c));
    }
    return v;
  }
  // Did a kernel write beside the rows?
  ::testing::AssertionResult untouched_outside() const {
    for (int64_t i = 0; i < static_cast<int64_t>(data_.size()); ++i) {
      const int64_t from_start = i - offset_;
      const bool inside = from_start >= 0 && from_start < rows_ * stride_ && from_start % stride_ < cols_;
      if (!inside && !std::isnan(widen(data_[static_cast<size_t>(i)]))) return ::testing::AssertionFailure() << "element " << i << " was written";
    }
    return ::testing::AssertionSuccess();
  }
  std::vector<T>& raw() { return data_; }

 private:
  int64_t rows_, cols_, offset_, stride_;
  std::vector<T> data_;
};

}  // namespace pointsman::testing
