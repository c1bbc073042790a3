// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/model_class.h"

namespace pointsman::audit::rules {
namespace {

void python_file(const python::Module& m, Report& out) { note_signs(m, {"PPO", "GRPO", "grpo", "Rollout", "rollout"}, {"verl", "trl", "openrlhf"}, out); }

void whole_tree(const Tree& tree, Report& out) { report_class(tree, ModelClass::kReinforcement, "T4", out); }

}  // namespace

const Rule& t4_rl_training() {
  static constexpr Rule kRule = {
      .id = "T4",
      .name = "rl-training",
      .title = "Port of reinforcement learning",
      .severity = Severity::kInfo,
      .why = "Generation inside the training loop has dynamic lengths, two engines share a device's memory, and weights move between them every step.",
      .fix = "Generate with vllm-ascend (its sleep mode gives memory back), pass weights through its update interface, and bucket lengths before anything is compiled.",
      .versions = "all",
      .source = "pitfall table, dynamic graphs and reinforcement learning; vllm-ascend 0.23",
      .python = python_file,
      .verdict = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
