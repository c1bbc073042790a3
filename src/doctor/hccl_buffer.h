// SPDX-License-Identifier: Apache-2.0
//
// How large HCCL_BUFFSIZE must be for the MoE dispatch and combine operators: the formulas of the operators' documentation, as
// in data/audit/cann_versions.json's companion page (A2 fullmesh and hierarchy, A3 fullmesh_v1 and fullmesh_v2).
//
// With A512(x) = x rounded up to 512, A32 and A8 likewise:
//   A3 fullmesh_v1  2 * (local_experts * batch * ep * A512(A32(2 * hidden) + 64) + (top_k + shared) * batch * A512(2 * hidden))
//   A3 fullmesh_v2  the first A512 replaced by ceil(x / 480) * 512
//   A2 fullmesh     2 * (batch * ep * min(local_experts, top_k) * hidden * 2 + 2 MiB)
//   A2 hierarchy    experts * batch * (hidden * 2 + 4 * A8(top_k) * 4) + 104 MiB
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "pointsman/status.h"

namespace pointsman::doctor {

struct HcclBufferRequest {
  int64_t experts = 0;  // of a layer, over all ranks
  int64_t ep = 0;       // ranks of the expert-parallel group
  int64_t batch = 0;    // largest number of tokens of one rank
  int64_t hidden = 0;
  int64_t top_k = 0;
  int64_t shared_experts = 0;
  std::string family;    // "A2", "A3", "950DT"
  std::string comm_alg;  // "" (the default of the family), "fullmesh_v1", "fullmesh_v2", "fullmesh", "hierarchy"
};

struct HcclBufferNeed {
  uint64_t bytes = 0;
  uint64_t megabytes = 0;  // what HCCL_BUFFSIZE must be at least
  std::string formula;     // its name: "A3 fullmesh_v1"
  std::string note;
};

// kInvalidArgument: a number out of range, or an algorithm that the family does not have. kUnsupported: a family without these
// operators (950PR), or one for which no formula is known.
Result<HcclBufferNeed> hccl_buffer_need(const HcclBufferRequest& request);

}  // namespace pointsman::doctor
