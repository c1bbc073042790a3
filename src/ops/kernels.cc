// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "ops/dispatch.h"

namespace pointsman::ops {

void add_scalar_kernels(KernelTable& table);
void add_avx2_kernels(KernelTable& table);
void add_avx512_kernels(KernelTable& table);
void add_dpbf16_kernels(KernelTable& table);
void add_scalar_panel_kernels(KernelTable& table);
void add_avx2_panel_kernels(KernelTable& table);
void add_avx512_panel_kernels(KernelTable& table);

namespace {

constexpr std::string_view kNames[] = {
#define PM_OP(name, Args) #name,
#include "ops/op_list.inc"
#undef PM_OP
};
static_assert(std::size(kNames) <= FallbackCounters::kMaxOps);

}  // namespace

std::span<const std::string_view> op_names() { return kNames; }

KernelTable make_cpu_kernels(Isa isa, const CpuFeatures& cpu) {
  KernelTable table;
  table.isa = isa;
  add_scalar_kernels(table);
  add_scalar_panel_kernels(table);
  if (isa >= Isa::kAvx2) add_avx2_kernels(table), add_avx2_panel_kernels(table);
  if (isa >= Isa::kAvx512) add_avx512_kernels(table);
  if (isa >= Isa::kAvx512 && cpu.avx512_bf16) add_dpbf16_kernels(table);
  if (isa >= Isa::kAvx512 && cpu.avx512_bf16 && cpu.avx512_vnni && cpu.avx512_vbmi) add_avx512_panel_kernels(table);
  return table;
}

const KernelTable& reference_kernels() {
  static const KernelTable table = make_cpu_kernels(Isa::kScalar, {});
  return table;
}

Result<KernelTable> without_ops(const KernelTable& table, std::span<const std::string_view> names) {
  KernelTable out = table;
  for (const std::string_view wanted : names) {
    bool found = false;
#define PM_OP(name, Args)   \
  if (wanted == #name) {    \
    out.name = nullptr;     \
    found = true;           \
  }
#include "ops/op_list.inc"
#undef PM_OP
    if (!found) return error(StatusCode::kInvalidArgument, "there is no op '{}'", wanted);
  }
  return out;
}

Status note_fallback(OpContext& ctx, int index) {
  const std::string_view name = kNames[index];
  if (ctx.fallbacks == nullptr) {
    return error(StatusCode::kUnavailable, "op {}: the device has no kernel, and a fallback that nobody counts would be silent", name);
  }
  if (ctx.fallbacks->forbidden) {
    return error(StatusCode::kUnavailable, "op {}: the device has no kernel and fallbacks are forbidden (--no-fallback)", name);
  }
  if (ctx.fallbacks->count[index].fetch_add(1) == 0) log_warning("op {}: no kernel on this device, the reference is used", name);
  return ok_status();
}

}  // namespace pointsman::ops
