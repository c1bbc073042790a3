// SPDX-License-Identifier: Apache-2.0
//
// Budgets for tests that run the program. Every thread's stack is part of the budget: builds for debugging and under sanitizers have larger
// stacks, and a machine with more cores has more of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "base/json.h"
#include "support/run_shell.h"

namespace pointsman::testing {

// The bytes that leave a model as much room as `mib` MiB do in a release build on two cores, as text, and never less than `mib` MiB.
// `model_and_flags`: the folder, and the flags of the command that its plan depends on, such as -c, -t and --sessions.
inline std::string program_budget(const std::string& model_and_flags, int64_t mib) {
  constexpr int64_t kUsualStacks = 5 * (256 << 10);  // one thread beside the caller's, four readers
  const int64_t bytes = mib << 20;
  // A plan that does not fit is printed all the same.
  const auto plan = parse_json(run_shell("$P plan " + model_and_flags + " --memory " + std::to_string(bytes) + " --json").out);
  PM_CHECK(plan.ok() && plan->find("items") != nullptr);
  int64_t stacks = 0;
  for (const Json& item : plan->find("items")->as_array()) {
    if (item.find("name")->as_string() == "thread stacks") stacks = item.find("bytes")->as_int();
  }
  return std::to_string(bytes + std::max<int64_t>(0, stacks - kUsualStacks));
}

}  // namespace pointsman::testing
