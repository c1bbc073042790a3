// SPDX-License-Identifier: Apache-2.0
//
// A made-up MoE checkpoint in memory, with its catalogue and digests: what the tests of the expert store read from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "experts/catalogue.h"
#include "support/memory_fs.h"

namespace pointsman::testing {

struct ExpertFixtureShape {
  int num_layers = 3;
  int num_experts = 8;
  int hidden = 24;  // 24 x 40 x 2 bytes end on 64: parts adjoin in the slot too; 20 x 41 do not
  int intermediate = 40;
  int num_shards = 2;
  // Within an expert: gate, up, down one after the other (a pack); otherwise down, gate, up, as sorted names lie.
  bool record_order = true;
  bool with_digests = true;
  int64_t path_check_interval_ms = 1000;  // of the checkpoint's options
};

struct ExpertFixture {
  explicit ExpertFixture(ExpertFixtureShape s = {});

  // What the part must hold.
  std::vector<std::byte> expected(int layer, int expert, ExpertPart part) const;
  uint64_t record_payload_bytes() const { return catalogue.at(0, 0).size_bytes(); }
  std::byte& byte_on_disk(int layer, int expert, ExpertPart part, uint64_t offset);
  std::string shard_path(uint32_t file_idx) const;

  ExpertFixtureShape shape;
  MemoryFs fs;
  std::unique_ptr<Checkpoint> checkpoint;
  ExpertCatalogue catalogue;
};

}  // namespace pointsman::testing
