// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/model_class.h"

namespace pointsman::audit::rules {
namespace {

void python_file(const python::Module& m, Report& out) { note_signs(m, {"MoE", "Moe", "moe", "Expert", "expert", "Router"}, {}, out); }

void whole_tree(const Tree& tree, Report& out) { report_class(tree, ModelClass::kMoe, "T2", out); }

}  // namespace

const Rule& t2_moe_model() {
  static constexpr Rule kRule = {
      .id = "T2",
      .name = "moe-model",
      .title = "Port of a mixture of experts",
      .severity = Severity::kInfo,
      .why = "Gate, permutation, exchange and grouped multiplication each run on an NPU as they are, and none runs well: small launches, several passes over memory, exchange without overlap.",
      .fix = "Replace them by fused operators, one after the other, comparing traces after each: gate, grouped multiplication, permutation and its inverse, then the exchange for your SoC.",
      .versions = "all",
      .source = "pitfall table, mixtures of experts; rows 1 to 6",
      .python = python_file,
      .verdict = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
