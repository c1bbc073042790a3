// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint of random weights, for benchmarks and budget tests: what a family's tensors are called and how large they are, and one writer
// for all of them. Values depend on the seed, the tensor's index and the position only, never on threads or shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"
#include "tensor/dtype.h"

namespace pointsman::tools {

struct RandomTensor {
  std::string name;
  DType dtype = DType::kBF16;
  std::vector<int64_t> shape;  // as stored: two F4 codes to an I8
  // BF16 and F32: normal with this mean and standard deviation. E4M3 and F4 codes: normal, with the standard deviations below. E8M0:
  // exponents of scales around `mean`. I64: each row holds distinct ids below `mean`.
  double mean = 0, sd = 0;
  // Changes random values before they are written: `out` are the elements from `first` on, in any portions. Empty: none.
  std::function<void(uint64_t first, std::span<std::byte> out)> edit;

  uint64_t num_elements() const;
  uint64_t size_bytes() const { return num_elements() * static_cast<uint64_t>(dtype_bits(dtype)) / 8; }
};

// Of codes, before their scale: the largest code is about four, respectively three, of them away from zero.
inline constexpr double kE4m3Sd = 112, kE2m1Sd = 2;

struct RandomModel {
  Json config = Json::object();
  std::vector<RandomTensor> tensors;
  Json label;  // what these weights were given on purpose; written as routing.json unless null

  void ones(std::string name, int64_t n) { add({std::move(name), DType::kBF16, {n}, 1, 0}); }
  // A plain matrix of the size that keeps the scale of its input: sd 1 / sqrt(columns).
  void matrix(std::string name, int64_t rows, int64_t cols, DType dtype = DType::kBF16);
  // `name`.weight in E4M3 and one scale per 128 x 128 block under `name` + `scale_suffix`, E8M0 or F32.
  void fp8(const std::string& name, int64_t rows, int64_t cols, const std::string& scale_suffix, DType scale_dtype);
  // `name`.weight as rows of two F4 codes to a byte, and one E8M0 scale per 1 x 32 under `name`.scale.
  void fp4(const std::string& name, int64_t rows, int64_t cols);
  void add(RandomTensor t) { tensors.push_back(std::move(t)); }
};

// What the command line chooses. 0: the family's own value.
struct RandomShape {
  int64_t layers = 0, hidden = 0, experts = 0, top_k = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, context = 4096;
  bool fp8 = false;
};
RandomModel random_qwen3_moe(const RandomShape& shape);
// Flash at its real layer width; only the number of layers is free.
RandomModel random_deepseek_v4(int64_t layers);

struct WriteOptions {
  uint64_t shard_bytes = 1ull << 30, seed = 1;
  bool sparse = false, progress = true;
  int threads = 2;
};
// Writes config.json, shards, their index and the label. Memory: a few MiB per thread, whatever the model's size.
Status write_random_checkpoint(const std::string& dir, const RandomModel& model, const WriteOptions& options);

}  // namespace pointsman::tools
