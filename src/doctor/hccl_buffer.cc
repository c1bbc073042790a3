// SPDX-License-Identifier: Apache-2.0
#include "doctor/hccl_buffer.h"

#include <algorithm>

#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

using Wide = unsigned __int128;  // the largest request is below 2^90

constexpr uint64_t kMiB = uint64_t{1} << 20;

constexpr Wide round_up(Wide x, Wide to) {
  return (x + to - 1) / to * to;
}

Status in_range(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return ok_status();
  return error(StatusCode::kInvalidArgument, "{} {}: expected {} to {}", name, value, low, high);
}

}  // namespace

Result<HcclBufferNeed> hccl_buffer_need(const HcclBufferRequest& q) {
  PM_RETURN_IF_ERROR(in_range("--experts", q.experts, 1, 65536));
  PM_RETURN_IF_ERROR(in_range("--ep", q.ep, 1, 65536));
  PM_RETURN_IF_ERROR(in_range("--batch", q.batch, 1, INT64_C(1) << 24));
  PM_RETURN_IF_ERROR(in_range("--hidden", q.hidden, 1, INT64_C(1) << 20));
  PM_RETURN_IF_ERROR(in_range("--topk", q.top_k, 1, q.experts));
  PM_RETURN_IF_ERROR(in_range("--shared-experts", q.shared_experts, 0, 65536));
  const auto experts = static_cast<Wide>(q.experts), ep = static_cast<Wide>(q.ep), batch = static_cast<Wide>(q.batch),
             hidden = static_cast<Wide>(q.hidden), top_k = static_cast<Wide>(q.top_k),
             shared = static_cast<Wide>(q.shared_experts);
  const Wide local = (experts + ep - 1) / ep;
  HcclBufferNeed need;
  Wide bytes = 0;
  const std::string family = lower(q.family);
  if (family == "950pr")
    return {error(StatusCode::kUnsupported,
                  "the 950PR has no MoE dispatch and combine operators: experts go through all-gather or all-to-all there")};
  if (family == "a3" || family == "950dt") {
    const Wide row = round_up(2 * hidden, 32) + 64;
    Wide slot = 0;
    if (q.comm_alg.empty() || q.comm_alg == "fullmesh_v1") {
      slot = round_up(row, 512);
      need.formula = "A3 fullmesh_v1";
    } else if (q.comm_alg == "fullmesh_v2") {
      slot = (row + 479) / 480 * 512;
      need.formula = "A3 fullmesh_v2";
    } else {
      return {error(StatusCode::kInvalidArgument, "--comm-alg {}: the {} has fullmesh_v1 (default) and fullmesh_v2",
                    printable(q.comm_alg, 40), q.family)};
    }
    bytes = 2 * (local * batch * ep * slot + (top_k + shared) * batch * round_up(2 * hidden, 512));
    if (family == "950dt") need.note = "the documentation states it for the A3; taken over for the 950DT, unconfirmed";
  } else if (family == "a2") {
    if (q.comm_alg.empty() || q.comm_alg == "fullmesh") {
      bytes = 2 * (batch * ep * std::min(local, top_k) * hidden * 2 + 2 * kMiB);
      need.formula = "A2 fullmesh";
    } else if (q.comm_alg == "hierarchy") {
      bytes = experts * batch * (hidden * 2 + 4 * round_up(top_k, 8) * 4) + 104 * kMiB;
      need.formula = "A2 hierarchy";
    } else {
      return {error(StatusCode::kInvalidArgument, "--comm-alg {}: the A2 has fullmesh (default) and hierarchy",
                    printable(q.comm_alg, 40))};
    }
  } else {
    return {error(StatusCode::kUnsupported, "no formula for '{}': known are a2, a3 and 950dt", printable(q.family, 40))};
  }
  if (bytes > static_cast<Wide>(INT64_MAX))
    return {error(StatusCode::kInvalidArgument, "the buffer would be larger than 2^63 bytes")};
  need.bytes = static_cast<uint64_t>(bytes);
  need.megabytes = (need.bytes + kMiB - 1) / kMiB;
  return need;
}

}  // namespace pointsman::doctor
