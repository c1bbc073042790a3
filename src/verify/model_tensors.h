// SPDX-License-Identifier: Apache-2.0
//
// Weights of a Hugging Face folder by meaning, one at a time, as fp32: what a diagnosis computes with. Not the engine's loader.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "pointsman/status.h"

namespace pointsman {

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;  // [rows, cols], row-major
  const float* row(int64_t r) const { return values.data() + r * cols; }
};

struct ExpertMatrices {
  Matrix gate, up, down;
};

class ModelTensors {
 public:
  static Result<std::unique_ptr<ModelTensors>> open(FileSystem& fs, const std::string& directory);
  const ModelConfig& config() const { return config_; }

  // A tensor of one or two dimensions in F32, F16 or BF16, at most 64 Mi elements. kNotFound, kUnsupported.
  Result<Matrix> matrix(const std::string& name) const;
  // One routed expert, in every naming that has F32, F16 or BF16 weights: per expert (gate_proj/up_proj/down_proj or w1/w3/w2) or fused.
  Result<ExpertMatrices> expert(int layer, int expert_id) const;

 private:
  Result<Matrix> read(const TensorEntry& e, int64_t first_element, int64_t rows, int64_t cols) const;

  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
};

}  // namespace pointsman
