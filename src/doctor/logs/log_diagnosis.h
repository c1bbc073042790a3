// SPDX-License-Identifier: Apache-2.0
//
// From what the logs say to the rank that failed first, and in which phase. The rules, in this order:
//
//   1. HCCL's own verdict ("Cluster Exception Location") names a device; that rank's own error says why.
//   2. Without one, the earliest error that is not a wait: out of memory, a device fault, a mismatch, an exception, a dead
//   process.
//   3. Ranks that never entered the communicator, or entered it later than the connect timeout.
//   4. The rank that the others wait for and that does not wait itself; the rank whose log ends first.
//   5. Ranks that wait at different collectives: the one that is behind, or the one with another operator.
// Otherwise there is no root in these logs, and that is what is said.
#pragma once

#include <string>
#include <vector>

#include "doctor/logs/log_reader.h"

namespace pointsman::doctor {

struct Diagnosis {
  bool found_errors = false;
  bool found_root = false;
  std::vector<int64_t> ranks;  // the root; several when they are missing together; empty: not known by number
  std::string place;           // "device 1 of 127.10.0.1" when the rank is not known
  Phase phase = Phase::kUnknown;
  std::string kind;                   // "out of memory", "missing rank", "late rank", "silent end", ...
  std::string certainty;              // "certain", "likely", "hint"
  std::string why;                    // one line
  std::string advice;                 // one line
  std::vector<std::string> evidence;  // lines of the logs, with file and line number
  size_t num_victims = 0;             // ranks that waited
};

Diagnosis diagnose(const LogCollection& logs);

}  // namespace pointsman::doctor
