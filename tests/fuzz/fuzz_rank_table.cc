// SPDX-License-Identifier: Apache-2.0
// A rank table or a hostfile: ranks come out sorted, faults and texts are bounded.
#include "doctor/rank_table.h"
#include "fuzz_input.h"

namespace pm = pointsman;

namespace {

void check(const pm::Result<pm::doctor::RankTable>& table) {
  if (!table.ok()) return;
  pm::fuzz::expect(table->faults.size() <= 64);
  for (size_t i = 1; i < table->ranks.size(); ++i) pm::fuzz::expect(table->ranks[i - 1].rank <= table->ranks[i].rank);
  for (const auto& p : table->ranks) pm::fuzz::expect(p.rank >= 0 && p.device >= -1 && p.server.size() <= 200);
  for (const auto& f : table->faults)
    pm::fuzz::expect(!f.code.empty() && !f.what.empty() && !f.fix.empty() && f.what.size() < 2000);
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto text = pm::fuzz::text_of(data, size);
  check(pm::doctor::parse_rank_table(text));
  check(pm::doctor::parse_hostfile(text));
  return 0;
}
