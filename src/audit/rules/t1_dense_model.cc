// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/model_class.h"

namespace pointsman::audit::rules {
namespace {

void python_file(const python::Module& m, Report& out) { note_signs(m, {"Attention", "attention", "DecoderLayer", "CausalLM"}, {}, out); }

void whole_tree(const Tree& tree, Report& out) { report_class(tree, ModelClass::kDense, "T1", out); }

}  // namespace

const Rule& t1_dense_model() {
  static constexpr Rule kRule = {
      .id = "T1",
      .name = "dense-model",
      .title = "Port of a dense language model",
      .severity = Severity::kInfo,
      .why = "Most calls of a dense model have the same name and meaning on an NPU; how many is counted in this tree, not assumed. What remains is attention, number formats and communication.",
      .fix = "Work through the list at the end of the report; run 'pointsman compare' on traces of both machines afterwards.",
      .versions = "all",
      .source = "pitfall table, dense models",
      .python = python_file,
      .verdict = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
