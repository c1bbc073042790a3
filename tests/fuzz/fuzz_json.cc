// SPDX-License-Identifier: Apache-2.0
// Any JSON text. What is accepted is the same value after dump() and parse_json().
#include "base/json.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = pm::parse_json(pm::fuzz::text_of(data, size));
  if (!json.ok()) return 0;
  for (const int indent : {-1, 2}) {
    const auto again = pm::parse_json(json->dump(indent));
    pm::fuzz::expect(again.ok() && *again == *json);
  }
  return 0;
}
