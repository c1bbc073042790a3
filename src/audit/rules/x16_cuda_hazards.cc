// SPDX-License-Identifier: Apache-2.0
//
// X16. Style: calls, launches and constants of CUDA C++.
#include <algorithm>

#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

// threadIdx.x % 32, threadIdx.x / 32, tid & 31, threadIdx.x >> 5: lanes counted by hand.
void check_warp_arithmetic(const cpp::File& f, Report& out) {
  const auto& t = f.tokens();
  for (uint32_t i = 1; i + 1 < t.size(); ++i) {
    const std::string_view op = f.text(i);
    const std::string_view right = f.text(i + 1);
    const bool lanes = ((op == "%" || op == "/") && right == "32") || (op == "&" && is_one_of(right, {"31", "0x1f", "0x1F"})) || (op == ">>" && right == "5");
    if (!lanes || !f.function_of(i) || !(f.function_of(i)->is_kernel || f.function_of(i)->is_device)) continue;
    bool thread = false;
    for (uint32_t k = i >= 4 ? i - 4 : 0; k < i; ++k) thread |= is_one_of(f.text(k), {"threadIdx", "tid", "thread_id", "threadId", "lane"});
    if (!thread) continue;
    Finding& finding = out.add(Span{t[i - 1].span.begin, t[i + 1].span.end}, Confidence::kLikely, "lanes of a warp of 32 are counted by hand; an Ascend vector core has no warps");
    finding.severity = Severity::kInfo;
    return;  // once a file: the whole file is written this way
  }
}

// The same loop allocates: a buffer per round, not the clean-up of many.
bool allocates_in(const cpp::File& f, int loop) {
  for (const cpp::Call& c : f.calls()) {
    if (f.tokens()[c.token].loop == loop && is_one_of(c.name, {"cudaMalloc", "cudaMallocManaged"})) return true;
  }
  return false;
}

void check_calls(const cpp::File& f, Report& out) {
  bool pins = false;
  for (const cpp::Call& c : f.calls()) pins |= is_one_of(c.last, {"cudaMallocHost", "cudaHostAlloc", "cudaHostRegister", "pin_memory", "pinned_memory"});
  for (const cpp::Call& c : f.calls()) {
    if (c.is_member) continue;
    const int loop = f.tokens()[c.token].loop;
    if (is_one_of(c.name, {"__shfl", "__shfl_up", "__shfl_down", "__shfl_xor", "__ballot", "__any", "__all"})) {
      const auto conditions = f.conditions_of(f.tokens()[c.token].condition);
      if (std::any_of(conditions.begin(), conditions.end(), [](std::string_view s) { return contains_any(s, {"hip", "rocm", "__cuda_arch__", "cuda_version"}); })) continue;
      Finding& finding = out.add(c.name_span, Confidence::kCertain, std::string(c.name) + " without a mask was removed from CUDA itself (9.0, since Volta); the lanes it assumed in step need not be");
      finding.severity = Severity::kBlocks;
      finding.fix = "On CUDA " + std::string(c.name) + "_sync with a mask; on CANN a vector-core reduction (ReduceSum, WholeReduceMax) in Ascend C.";
    } else if (c.name == "cudaFree" && loop >= 0 && allocates_in(f, loop)) {
      Finding& finding = out.add(c.name_span, Confidence::kLikely, "cudaFree in a loop waits for the device at every round; code that relied on that order loses it elsewhere");
      finding.severity = Severity::kPerformance;
      finding.fix = "Keep one workspace for the loop; where order is needed say so with an event (aclrtRecordEvent, aclrtStreamWaitEvent).";
    } else if (c.name == "cudaMemcpyAsync" && !pins && c.arguments.size() >= 4) {
      const std::string kind = f.text(c.arguments[3]);
      const bool to_device = kind.find("HostToDevice") != std::string::npos;
      if (!to_device && kind.find("DeviceToHost") == std::string::npos) continue;
      // The host side is a vector: certainly pageable.
      if (f.text(c.arguments[to_device ? 1 : 0]).find("data") == std::string::npos) continue;
      Finding& finding = out.add(c.name_span, Confidence::kLikely, "an asynchronous copy from or to pageable memory; aclrtMemcpyAsync wants pinned memory, and inside a capture pageable memory is illegal");
      finding.severity = Severity::kPerformance;
      finding.fix = "Allocate the host side with cudaMallocHost (aclrtMallocHost on CANN).";
    }
  }
}

void check_launches(const cpp::File& f, Report& out) {
  if (f.launches().empty()) return;
  bool checks = false, torch = false;
  for (const cpp::Call& c : f.calls()) {
    checks |= is_one_of(c.last, {"cudaGetLastError", "cudaPeekAtLastError"});
    const std::string name = lower(c.last);
    checks |= contains(name, "launch_check") || contains(name, "check_cuda") || contains(name, "cuda_check") || contains(name, "cudacheck");
  }
  for (uint32_t i = 0; i < f.tokens().size() && !checks; ++i) {
    if (f.tokens()[i].kind == cpp::TokenKind::kIdentifier) checks = contains(f.text(i), "LAUNCH_CHECK") || contains(f.text(i), "CUDA_CHECK") || contains(f.text(i), "CHECK_CUDA");
  }
  for (const cpp::Include& i : f.includes()) torch |= i.path.starts_with("torch/") || i.path.starts_with("ATen/") || i.path.starts_with("c10/");
  if (!checks) {
    Finding& finding = out.add(f.launches().front().span, Confidence::kHint, "nothing in this file asks whether a launch failed; a bad launch goes unnoticed until a later call");
    finding.severity = Severity::kInfo;
    finding.fix = "cudaGetLastError() after each launch; on CANN check what every aclnn call returns and read aclGetRecentErrMsg().";
  }
  if (!torch) return;
  for (const cpp::Launch& l : f.launches()) {
    const bool defaulted = l.configuration.size() == 2 || l.configuration.size() == 3 || (l.configuration.size() == 4 && f.text(l.configuration[3]) == "0");
    if (!defaulted) continue;
    Finding& finding = out.add(l.span, Confidence::kLikely, "a torch extension launches on the default stream instead of the current one: it races with work on any other stream");
    finding.fix = "at::cuda::getCurrentCUDAStream() as the fourth launch argument; on CANN c10_npu::getCurrentNPUStream().";
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  check_warp_arithmetic(f, out);
  check_calls(f, out);
  check_launches(f, out);
}

}  // namespace

const Rule& x16_cuda_hazards() {
  static constexpr Rule kRule = {
      .id = "X16",
      .name = "cuda-hazards",
      .title = "CUDA C++ that leans on what only CUDA does",
      .severity = Severity::kWrongNumbers,
      .why = "Warps of 32 lanes, shuffles without masks, the implicit order of cudaFree and of the default stream, copies from pageable memory: none of it holds on CANN, and a port that "
             "translates the calls keeps the assumption.",
      .fix = "State the order with streams and events, use masked or block-wide primitives, pin host memory, check every launch; write the kernel anew in Ascend C or use a fused operator.",
      .versions = "all",
      .source = "CUDA C++ programming guide (warp functions, implicit synchronisation); CANN runtime reference",
      .cpp = cpp_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
