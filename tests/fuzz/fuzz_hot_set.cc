// SPDX-License-Identifier: Apache-2.0
// The file of --hot-set. What is accepted survives being written and read again.
#include "experts/hot_set.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto set = pm::parse_hot_set(pm::fuzz::text_of(data, size), "abc", 2, 3);
  if (!set.ok()) return 0;
  const auto again = pm::parse_hot_set(pm::hot_set_to_json(*set), "abc", 2, 3);
  pm::fuzz::expect(again.ok());
  pm::fuzz::expect(again->uses == set->uses && again->num_runs == set->num_runs);
  return 0;
}
