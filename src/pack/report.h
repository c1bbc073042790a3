// SPDX-License-Identifier: Apache-2.0
//
// What packing did to each matrix, and which experts look abnormal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "tensor/quantise.h"

namespace pointsman {

struct MatrixReport {
  std::string name, unit;
  std::string from, to;  // "BF16", "INT8", "MXFP8", "FP8 128x128", ...
  std::string layout;    // layout_name()
  bool is_exact = false;  // a permutation
  QuantisationError error;
};

struct PackReport {
  std::vector<MatrixReport> matrices;
  // "model.layers.3.mlp.experts.17.up_proj.weight: ...": an expert's matrix that is far larger or smaller than those of its layer, or than weights are.
  std::vector<std::string> abnormal;
  std::vector<std::pair<std::string, std::string>> formats;
  uint64_t source_bytes = 0, output_bytes = 0, resumed_bytes = 0;
  uint64_t files = 0, experts = 0, tensors = 0;
  std::string model_digest;
  double seconds = 0;
};

std::string_view layout_name(WeightLayout layout);  // "panel32", "rows", "transposed"
// The name of a stored format: "BF16", "INT8", "MXFP8", "MXFP4", "FP8 128x128".
std::string stored_format_name(const Weight& w);

// Adds to `abnormal` the experts whose root mean square, part by part, is more than 8 times or less than an eighth of the median of their
// layer, or beyond [2^-24, 64]. `matrices` in any order.
void find_abnormal_experts(PackReport& report);

// A line for every group of matrices with the same change, with the largest errors; then the abnormal experts.
std::string report_text(const PackReport& report);
// Everything, every matrix.
Json report_json(const PackReport& report);

}  // namespace pointsman
