// SPDX-License-Identifier: Apache-2.0
//
// The smallest thing that shows the fault: one safetensors file with the inputs of one operator for a few rows, its weights, what the
// reference has and what was found. Whoever owns the operator needs nothing else (docs/formats/trace.md, "Reproductions").
#pragma once

#include <string>

#include "base/fs.h"
#include "verify/diagnose.h"

namespace pointsman {

// `expected` and `found` [rows, ...]; `input.NAME` for each recorded input; `weight.NAME` when `in.model` has them. kNotFound when a trace
// lacks the tensor.
Status write_reproduction(FileSystem& fs, const std::string& path, const DiagnoseInputs& in, const Diagnosis& diagnosis);

}  // namespace pointsman
