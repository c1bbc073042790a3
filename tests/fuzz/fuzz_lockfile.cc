// SPDX-License-Identifier: Apache-2.0
// pointsman.lock.json. What is accepted survives being written and read again.
#include "checkpoint/lockfile.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto lock = pm::parse_lock_json(pm::fuzz::text_of(data, size));
  if (!lock.ok()) return 0;
  const auto again = pm::parse_lock_json(pm::lock_to_json(*lock));
  pm::fuzz::expect(again.ok());
  pm::fuzz::expect(again->files == lock->files && again->tensors == lock->tensors && again->experts == lock->experts);
  pm::fuzz::expect(again->model_digest() == lock->model_digest());
  return 0;
}
