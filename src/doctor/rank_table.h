// SPDX-License-Identifier: Apache-2.0
//
// Which rank runs on which device: HCCL's rank table (JSON: version 1.0 and 1.2 with server_list, 2.0 with rank_list), or a
// hostfile
// ("host slots=8", one host a line, as Open MPI, DeepSpeed and torchrun launchers read it).
//
// Hostile input: bounded in size, and what is wrong is a list of faults, not a refusal at the first one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"

namespace pointsman::doctor {

struct RankPlace {
  int64_t rank = -1;
  int64_t device = -1;    // logical id on its server; -1: not given
  std::string server;     // id of the host; empty: the table has no hosts
  std::string device_ip;  // empty: not given
};

struct RankFault {
  std::string code;  // "duplicate_rank", "duplicate_device", ...
  std::string what, fix;
};

struct RankTable {
  std::string kind;                  // "rank table 1.0", "hostfile"
  std::vector<RankPlace> ranks;      // sorted by rank
  std::vector<std::string> servers;  // in order of appearance
  std::vector<RankFault> faults;     // at most 64
};

// kCorrupt, kUnsupported: it is no rank table at all.
Result<RankTable> parse_rank_table(std::string_view json);
Result<RankTable> parse_hostfile(std::string_view text);

}  // namespace pointsman::doctor
