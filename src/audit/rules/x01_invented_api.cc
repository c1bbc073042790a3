// SPDX-License-Identifier: Apache-2.0
//
// X1. Style: names against the lists of the data files, with the nearest true ones.
#include <algorithm>
#include <array>

#include "audit/rule.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;

// Submodules and members that are no operators and not in __all__ of torch_npu.npu.
constexpr std::string_view kModuleParts[] = {"amp", "aclnn", "backends", "random", "memory", "streams", "graphs", "utils", "jit", "npu_config", "config", "deterministic", "profiler",
                                             "__version__", "_C", "npu", "contrib", "distributed", "dynamo", "hif8_tensor", "onnx", "optim", "testing", "asd", "version",
                                             "_logging", "_inductor", "op_plugin", "multiprocessing", "_afd", "core", "nn", "csrc", "Device", "_lazy_call", "_lazy_init", "_is_in_bad_fork", "check_memory_leak", "_memory_viz",
                                             "empty_with_format", "get_npu_format", "one_", "scatter_update", "scatter_update_", "fast_gelu", "matmul_checksum", "batch_norm_reduce", "batch_norm_gather_stats_update",
                                             "erase_stream", "HiFloat8Tensor", "float8_e8m0fnu", "hifloat8", "float4_e2m1fn_x2", "float4_e1m2fn_x2", "int4", "torch_npu", "npu_format"};

constexpr std::string_view kHccl[] = {
    "HcclGetRootInfo", "HcclCommInitRootInfo", "HcclCommInitRootInfoConfig", "HcclCommInitClusterInfo", "HcclCommInitClusterInfoConfig", "HcclCommInitAll", "HcclCreateSubCommConfig",
    "HcclCommDestroy", "HcclGetRankSize", "HcclGetRankId", "HcclGetCommName", "HcclGetCommAsyncError", "HcclGetErrorString", "HcclCommSuspend", "HcclCommResume", "HcclBarrier",
    "HcclGetCommConfigCapability", "HcclAllReduce", "HcclAllGather", "HcclReduceScatter", "HcclBroadcast", "HcclAlltoAll", "HcclAlltoAllV", "HcclAlltoAllVC", "HcclAllGatherV", "HcclReduceScatterV",
    "HcclSend", "HcclRecv", "HcclBatchSendRecv", "HcclScatter", "HcclReduce", "HcclCommSetMemoryRange", "HcclCommUnsetMemoryRange", "HcclCommActivateCommMemory", "HcclCommDeactivateCommMemory",
    "HcclCommRegister", "HcclCommDeregister", "HcclCommExchangeMem", "HcclGroupStart", "HcclGroupEnd", "HcclCommWorkingDevNicSet", "HcclSetConfig", "HcclGetConfig", "HcclCommConfigInit",
};

constexpr std::string_view kAcl[] = {
    "aclInit", "aclFinalize", "aclFinalizeReference", "aclsysGetVersionStr", "aclsysGetVersionNum", "aclsysGetCANNVersion", "aclrtGetVersion", "aclrtGetSocName", "aclrtSetDevice", "aclrtResetDevice",
    "aclrtGetDevice", "aclrtGetDeviceCount", "aclrtSynchronizeDevice", "aclrtCreateContext", "aclrtSetCurrentContext", "aclrtDestroyContext", "aclrtCreateStream", "aclrtCreateStreamWithConfig",
    "aclrtDestroyStream", "aclrtSynchronizeStream", "aclrtSynchronizeStreamWithTimeout", "aclrtStreamQuery", "aclrtCreateEvent", "aclrtCreateEventWithFlag", "aclrtRecordEvent", "aclrtStreamWaitEvent",
    "aclrtSynchronizeEvent", "aclrtEventElapsedTime", "aclrtMalloc", "aclrtFree", "aclrtGetMemInfo", "aclrtMallocHost", "aclrtFreeHost", "aclrtHostRegister", "aclrtMemcpy", "aclrtMemcpyAsync",
    "aclrtMemset", "aclrtDeviceCanAccessPeer", "aclrtDeviceEnablePeerAccess", "aclrtReserveMemAddress", "aclrtMallocPhysical", "aclrtMapMem", "aclrtUnmapMem", "aclrtFreePhysical",
    "aclrtSetSysParamOpt", "aclGetRecentErrMsg", "aclrtGetLastError", "aclrtLaunchCallback", "aclrtLaunchHostFunc", "aclCreateTensor", "aclDestroyTensor", "aclCreateScalar", "aclCreateIntArray",
    "aclCreateTensorList", "aclmdlRICaptureBegin", "aclmdlRICaptureEnd", "aclmdlRIExecuteAsync", "aclmdlRIDestroy", "aclrtGetDeviceInfo", "aclrtMemcpy2d", "aclrtQueryEventStatus",
};

template <size_t N>
bool in(std::string_view name, const std::string_view (&list)[N]) { return std::find(std::begin(list), std::end(list), name) != std::end(list); }

template <size_t N>
std::vector<std::string> sorted(const std::string_view (&list)[N]) {
  std::vector<std::string> out(std::begin(list), std::end(list));
  std::sort(out.begin(), out.end());
  return out;
}

std::string suggest(const std::vector<std::string>& names, std::string_view prefix) {
  std::string s;
  for (const std::string& n : names) s += (s.empty() ? "" : ", ") + std::string(prefix) + n;
  return s;
}

// What invented names of the migration literature stand for.
struct Known {
  std::string_view name, instead;
};
constexpr Known kKnown[] = {
    {"torch.npu.enable_sparse_memory", "There is no such switch and no such unit; use the fused MoE operators (torch_npu.npu_moe_init_routing_v2, npu_grouped_matmul)."},
    {"torch.npu.load", "torch.load(..., map_location='cpu') and then .npu()."},
    {"torch.npu.to", "tensor.to(...)."},
    {"torch.npu.rand", "torch.rand(..., device='npu')."},
    {"torch.npu.index_add", "tensor.index_add_(...), or torch.bincount for counts."},
    {"torch.npu.enable_graph_mode", "torch.npu.NPUGraph, or torch.compile with backend npugraph_ex or torchair; enable_graph_mode belonged to PyTorch 1.8 and 1.11."},
    {"torch.ops.npu.npu_softmax", "torch.softmax."},
    {"torch_npu.npu_softmax", "torch.softmax."},
};

// The kind of list a full name is checked against; empty `member`: none.
struct Member {
  std::string_view member, prefix;
  bool is_operator = false;
};
Member member_of(std::string_view full) {
  const auto after = [&](std::string_view module) { return full.size() > module.size() + 1 && python::is_under(full, module) ? full.substr(module.size() + 1) : std::string_view(); };
  const auto first = [](std::string_view s) { return s.substr(0, s.find('.')); };
  if (const auto m = after("torch.ops.npu"); !m.empty()) return {first(m), "torch.ops.npu.", true};
  if (const auto m = after("torch_npu.npu"); !m.empty()) return {first(m), "torch_npu.npu.", false};
  if (const auto m = after("torch.npu"); !m.empty()) return {first(m), "torch.npu.", false};
  if (const auto m = after("torch_npu"); !m.empty()) return {first(m), "torch_npu.", true};
  return {};
}

// Written by hand in torch_npu, so not among the operators that op-plugin's list generates.
constexpr std::string_view kByHand[] = {"npu_format_cast"};

bool is_known(const Member& m, const Facts& facts) {
  if (m.member.starts_with("_") || in(m.member, kModuleParts)) return true;
  const std::string_view plain = m.member.substr(0, m.member.size() - (m.member.ends_with("_") ? 1 : 0));
  if (std::find(std::begin(kByHand), std::end(kByHand), plain) != std::end(kByHand)) return true;
  if (m.prefix == "torch_npu." && !m.member.starts_with("npu")) return true;  // only operators have a list there
  if (m.is_operator) return facts.is_operator_name(m.member) || facts.is_operator_name(plain);
  return facts.is_npu_module_name(m.member);
}

std::string fix_for(std::string_view full, const Member& m, const Facts& facts) {
  for (const Known& k : kKnown) {
    if (python::is_under(full, k.name)) return std::string(k.instead);
  }
  const std::string near = suggest(nearest_names(m.member, m.is_operator ? facts.operator_names() : facts.module_names()), m.prefix);
  return near.empty() ? "There is no name like it; see the list of torch_npu for what the code needs." : "Nearest names that exist: " + near + ".";
}

void check_name(const Expr& r, Report& out) {
  const Member m = member_of(r.full_name);
  if (m.member.empty() || is_known(m, out.facts)) return;
  const bool guarded = r.stmt && python::failure_is_caught(*r.stmt);
  const std::string name = std::string(m.prefix) + std::string(m.member);
  Finding& f = out.add(r, name + " is not in torch_npu (list of " + out.facts.generated() + ")");
  f.fix = fix_for(r.full_name, m, out.facts);
  if (guarded) f.severity = Severity::kInfo;
}

// Chains end where a call or attribute beyond the module's member begins: report each name once.
void python_file(const python::Module& m, Report& out) {
  for (const Expr* r : m.references()) {
    // hasattr(torch.npu, "x") and torch_npu._C... ask, they do not use.
    if (r->parent && r->parent->is(ExprKind::kCall) && r->parent->last_name() == "hasattr") continue;
    if (python::is_target(*r)) continue;
    check_name(*r, out);
    if (python::is_under(*r, "torch.distributed.hccl"))
      out.add(*r, "torch.distributed has no module hccl").fix = "torch.distributed with backend 'hccl'; options through torch_npu.distributed.ProcessGroupHCCL.Options().";
  }
  for (const python::Stmt* s : m.imports()) {
    if (s->kind != python::StmtKind::kImportFrom || python::failure_is_caught(*s)) continue;
    for (const python::ImportedName& n : s->imports) {
      const std::string full = std::string(s->name) + "." + std::string(n.name);
      const Member member = member_of(full);
      if (!member.member.empty() && n.name != "*" && !is_known(member, out.facts)) {
        Finding& f = out.add(n.span, Confidence::kCertain, full + " is not in torch_npu (list of " + out.facts.generated() + ")");
        f.fix = fix_for(full, member, out.facts);
      }
    }
  }
  for (const Expr* c : m.calls()) {
    // Libraries opened by hand, and what is called in them.
    const bool opens = is_one_of(c->last_name(), {"CDLL", "LoadLibrary", "PyDLL"});
    const Expr* path = opens ? c->positional(0) : nullptr;
    const auto library = path ? python::constant_string(*path) : std::nullopt;
    if (library && (*library == "libnpu.so" || library->ends_with("/libnpu.so"))) {
      Finding& f = out.add(*path, Confidence::kCertain, "there is no libnpu.so in CANN");
      f.fix = "The runtime is libacl_rt.so (libascendcl.so before 9.x); cached memory is given back by torch.npu.empty_cache().";
    }
    if (c->last_name() == "npuClearMemoryPool") out.add(*c->callee(), Confidence::kLikely, "npuClearMemoryPool is in no library of CANN").fix = "torch.npu.empty_cache(), or PYTORCH_NPU_ALLOC_CONF=expandable_segments:True against fragmentation.";
  }
}

void cpp_file(const cpp::File& f, Report& out) {
  static const std::vector<std::string> kHcclNames = sorted(kHccl), kAclNames = sorted(kAcl);
  std::vector<std::string> operators;
  for (const cpp::Call& c : f.calls()) {
    const std::string_view name = c.last;
    if (c.is_member || f.function_of(c.token) == nullptr) continue;
    const auto capital = [&](size_t i) { return name.size() > i && name[i] >= 'A' && name[i] <= 'Z'; };
    if (name == "npuClearMemoryPool") {
      out.add(c.name_span, Confidence::kCertain, "npuClearMemoryPool is in no library of CANN").fix = "aclrtFree of what is no longer needed, or unmapping with aclrtUnmapMem.";
    } else if (name.starts_with("Hccl") && capital(4) && !in(name, kHccl)) {
      const auto near = nearest_names(name, kHcclNames);
      if (near.empty()) continue;
      out.add(c.name_span, Confidence::kLikely, std::string(name) + " is not among the public functions of HCCL").fix = "Nearest names that exist: " + suggest(near, "") + ".";
    } else if (name.starts_with("aclnn") && capital(5)) {
      std::string_view base = name;
      if (base.ends_with("GetWorkspaceSize")) base.remove_suffix(16);
      if (out.facts.find_operator(base)) continue;
      if (operators.empty()) {
        for (const auto& [n, op] : out.facts.operators()) operators.push_back(n);
      }
      // The list holds the operators of mixtures of experts, attention and quantisation, not all of CANN: only a name that is almost one
      // of them is suspicious.
      std::vector<std::string> near = nearest_names(base, operators, 1);
      if (near.empty() || lower(near[0]) != lower(base)) continue;
      out.add(c.name_span, Confidence::kCertain, std::string(base) + " differs in capitals from the operator's name").fix = "It is spelt " + near[0] + ".";
    } else if ((name.starts_with("aclrt") || name.starts_with("aclmdlRI")) && !in(name, kAcl) && contains_any(name, {"cuda", "nccl", "sparse", "pool"}) && !contains(name, "MemPool")) {
      out.add(c.name_span, Confidence::kLikely, std::string(name) + " is not among the functions of the ACL runtime").fix = "Nearest names that exist: " + suggest(nearest_names(name, kAclNames), "") + ".";
    }
  }
}

// Names in sentences and code of documents: torch.npu.xyz.
void prose(const Unit& d, Report& out) {
  const std::string_view text = d.text;
  const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  std::vector<std::string> seen;
  for (size_t at = text.find("torch"); at != text.npos && seen.size() < 200; at = text.find("torch", at + 5)) {
    if (at > 0 && (is_part(text[at - 1]) || text[at - 1] == '.')) continue;
    size_t end = at;
    while (end < text.size() && (is_part(text[end]) || (text[end] == '.' && end + 1 < text.size() && is_part(text[end + 1])))) ++end;
    const std::string_view name = text.substr(at, end - at);
    if (name.size() > 120) continue;
    const Member m = member_of(name);
    if (m.member.empty() || is_known(m, out.facts)) continue;
    const std::string full = std::string(m.prefix) + std::string(m.member);
    if (std::find(seen.begin(), seen.end(), full) != seen.end()) continue;  // once per document
    seen.push_back(full);
    Finding& f = out.add({static_cast<uint32_t>(at), static_cast<uint32_t>(end)}, Confidence::kHint, "the text speaks of " + full + ", which is not in torch_npu (list of " + out.facts.generated() + ")");
    f.fix = fix_for(name, m, out.facts);
  }
}

void whole_tree(const Tree& tree, Report& out) {
  for (const auto& e : tree.environment) {
    if (e.value.name == "ASCEND_GRAPH_OPTIMIZE_LEVEL")
      out.add(e, Confidence::kCertain, "CANN and torch_npu read no variable ASCEND_GRAPH_OPTIMIZE_LEVEL").fix = "Options of the graph are those of torchair's CompilerConfig, or of torch.npu.NPUGraph.";
  }
}

}  // namespace

const Rule& x01_invented_api() {
  static constexpr Rule kRule = {
      .id = "X1",
      .name = "invented-api",
      .title = "Name that torch_npu or CANN does not have",
      .severity = Severity::kBlocks,
      .why = "Guides and generated code name functions under torch.npu, torch_npu, torch.ops.npu, HCCL and ACL that never existed; the program fails when it reaches them. "
             "The lists are those of one date: a name of an older or newer release may be missing from them.",
      .fix = "Use the nearest true name that is shown, or find the operator in torch_npu's documentation.",
      .versions = "lists of torch_npu 26.1 and CANN 9.1 (data/audit, replaceable with --data)",
      .source = "names of op-plugin and of torch_npu.npu.__all__ (torch_npu_names.json, cann_ops.json)",
      .python = python_file,
      .cpp = cpp_file,
      .prose = prose,
      .tree = whole_tree,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
