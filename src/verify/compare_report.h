// SPDX-License-Identifier: Apache-2.0
//
// A comparison for people and machines: text, JSON, a self-contained HTML page with a picture, JUnit. Names and messages of the traces
// are escaped: they come from files.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "verify/compare.h"
#include "verify/diagnose.h"

namespace pointsman {

struct CompareReport {
  std::string a, b;  // paths
  const Comparison& comparison;
  const std::optional<Diagnosis>& diagnosis;
  bool all = false;  // text: every tensor and flip
};
std::string compare_text(const CompareReport& report);
Json compare_json(const CompareReport& report);
// No script, nothing from elsewhere. The picture: difference of each kind of tensor by layer, routing flips, the first bad tensor.
std::string compare_html(const CompareReport& report);
std::string compare_junit(const CompareReport& report);

// "[24, 48]"
std::string shape_text(const std::vector<int64_t>& shape);

}  // namespace pointsman
