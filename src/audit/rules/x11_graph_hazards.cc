// SPDX-License-Identifier: Apache-2.0
//
// X11. Style: what stands inside a capture, in Python and in C++; and an environment variable beside graphs.
#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

bool is_capture(const Expr& manager) {
  return manager.is(ExprKind::kCall) && is_one_of(manager.full_name, {"torch.cuda.graph", "torch.npu.graph", "torch_npu.npu.graph"});
}

bool captured(const Expr& e) {
  for (const Expr* manager : python::with_managers(e)) {
    if (is_capture(*manager)) return true;
  }
  return false;
}

// What a call does that a capture forbids, or null.
const char* hazard(const Expr& call) {
  const std::string_view last = call.last_name();
  if (is_one_of(call.full_name, {"torch.cuda.synchronize", "torch.npu.synchronize", "torch_npu.npu.synchronize"})) return "synchronises the device";
  if (is_one_of(call.full_name, {"torch.nonzero", "torch.unique", "torch.masked_select"})) return "has a result whose size only the device knows";
  if (!call.full_name.empty() || call.callee()->is(ExprKind::kName)) {
    if (last != "print" || call.callee()->text != "print") return nullptr;
    for (size_t i = 1; i < call.children.size(); ++i) {
      if (python::find_within(*call.children[i], [](const Expr& e) { return e.is(ExprKind::kName); })) return "prints a value that has to be copied to the host";
    }
    return nullptr;
  }
  if (is_one_of(last, {"item", "tolist", "cpu", "numpy"}) && call.children.size() == 1) return "copies to the host and waits";
  if (is_one_of(last, {"nonzero", "unique", "masked_select"})) return "has a result whose size only the device knows";
  if (last == "to" && call.children.size() > 1) {
    if (auto s = python::constant_string(*call.children[1]); s && *s == "cpu") return "copies to the host and waits";
  }
  if (last == "synchronize") return "synchronises";
  return nullptr;
}

bool makes_graphs(const Expr& call) {
  return is_capture(call) || is_one_of(call.full_name, {"torch.cuda.CUDAGraph", "torch.npu.NPUGraph", "torch_npu.npu.NPUGraph", "torch.cuda.make_graphed_callables",
                                                        "torch.npu.make_graphed_callables", "torchair.get_npu_backend"});
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (makes_graphs(*c)) out.note("graph", std::string(c->full_name), c->span);
    if (!captured(*c)) continue;
    if (const char* what = hazard(*c)) {
      // `with torch.cuda.graph(g)` was resolved; what .item() is called on was not, but nothing else is called so.
      out.add(*c, Confidence::kCertain, std::string("inside a graph capture this ") + what + "; the capture fails (107024 to 107041) or the replay works on stale values");
    }
  }
}

bool is_default_stream(const cpp::File& f, const cpp::Launch& launch) {
  if (launch.configuration.size() < 4) return true;
  const std::string s = f.text(launch.configuration[3]);
  return s == "0" || s == "nullptr" || s == "NULL" || s == "cudaStreamDefault" || s == "cudaStreamLegacy";
}

void cpp_file(const cpp::File& f, Report& out) {
  for (const cpp::Call& begin : f.calls()) {
    if (!is_one_of(begin.last, {"cudaStreamBeginCapture", "aclmdlRICaptureBegin"})) continue;
    const int function = f.tokens()[begin.token].function;
    uint32_t end = 0;
    for (const cpp::Call& c : f.calls()) {
      if (is_one_of(c.last, {"cudaStreamEndCapture", "aclmdlRICaptureEnd"}) && c.token > begin.token && f.tokens()[c.token].function == function) {
        end = c.token;
        break;
      }
    }
    if (end == 0) continue;
    for (const cpp::Call& c : f.calls()) {
      if (c.token <= begin.token || c.token >= end) continue;
      if (is_one_of(c.last, {"cudaMemcpy", "cudaMemset", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaMalloc", "cudaFree", "cudaEventSynchronize", "aclrtMemcpy", "aclrtMemset",
                             "aclrtSynchronizeStream", "aclrtSynchronizeDevice", "aclrtMalloc", "aclrtFree"})) {
        out.add(c.name_span, Confidence::kCertain, std::string(c.last) + " between the begin and the end of a capture: synchronous calls and allocations are illegal there");
      }
    }
    for (const cpp::Launch& l : f.launches()) {
      if (l.token > begin.token && l.token < end && is_default_stream(f, l)) {
        out.add(l.span, Confidence::kLikely, "a launch on the default stream during a capture; on CANN the default stream cannot take part in one (107030, 107031)");
      }
    }
  }
}

void whole_tree(const Tree& tree, Report& out) {
  const auto graphs = tree.notes_of("X11", "graph");
  if (graphs.empty()) return;
  for (const auto& e : tree.environment) {
    if (e.value.name != "ASCEND_LAUNCH_BLOCKING" || e.value.is_unset || e.value.value != "1") continue;
    Finding& f = out.add(e, Confidence::kCertain, "ASCEND_LAUNCH_BLOCKING=1 makes every launch synchronous, which a graph capture forbids");
    f.related.push_back({graphs.front()->location, "a graph is captured here"});
    f.fix = "Unset ASCEND_LAUNCH_BLOCKING, or run without graphs while you look for an error.";
  }
}

}  // namespace

const Rule& x11_graph_hazards() {
  static constexpr Rule kRule = {
      .id = "X11",
      .name = "graph-hazards",
      .title = "Host work inside a graph capture",
      .severity = Severity::kBlocks,
      .why = "A captured graph holds device work only. A copy to the host, a synchronisation, an allocation or the default stream inside it ends the capture with an error, and a Python "
             "value read during capture is frozen into every replay.",
      .fix = "Move it out of the capture; keep counts on the device (a group_list tensor) and bucket shapes so that each bucket is one graph.",
      .versions = "NPUGraph on A2, A3, 950; not on 910 and 310",
      .source = "CANN runtime headers (aclmdlRICapture), error codes 107024-107041; PyTorch CUDA graph notes",
      .python = python_file,
      .cpp = cpp_file,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
