// SPDX-License-Identifier: Apache-2.0
//
// From a checked op to a kernel: the entry of the device's table, or the reference, counted and logged once, or a refusal.
#pragma once

#include "base/log.h"
#include "ops/kernels.h"

namespace pointsman::ops {

// The scalar table, complete.
const KernelTable& reference_kernels();

// Counts the fallback of op `index` (into op_names()). kUnavailable when fallbacks are forbidden.
Status note_fallback(OpContext& ctx, int index);

// Position of an entry in op_list.inc.
enum class OpIndex : int {
#define PM_OP(name, Args) k_##name,
#include "ops/op_list.inc"
#undef PM_OP
};

template <class Args>
Status dispatch(OpContext& ctx, Kernel<Args> KernelTable::* entry, OpIndex index, const Args& args) {
  Kernel<Args> kernel = ctx.kernels->*entry;
  if (kernel == nullptr) {
    PM_RETURN_IF_ERROR(note_fallback(ctx, static_cast<int>(index)));
    kernel = reference_kernels().*entry;
  }
  if (ctx.fallbacks != nullptr) ctx.fallbacks->launches[static_cast<int>(index)].fetch_add(1, std::memory_order_relaxed);
  return launch(*ctx.stream, *ctx.pool, kernel, args);
}
// Counts which paths so many rows take. REQUIRES: panels, and x in codes or bf16.
inline void note_paths(OpContext& ctx, OpIndex index, const PanelPaths* paths, DType w, int64_t rows) {
  if (ctx.fallbacks == nullptr) return;
  for (int64_t left = rows; left > 0; left -= kPanelRowBlock) {
    const PanelPath path = choose_path(paths, w, left < kPanelRowBlock ? left : kPanelRowBlock);
    ctx.fallbacks->paths[static_cast<int>(index)][static_cast<int>(path)].fetch_add(1, std::memory_order_relaxed);
  }
}

#define PM_DISPATCH(ctx, name, args) dispatch(ctx, &KernelTable::name, OpIndex::k_##name, args)

}  // namespace pointsman::ops
