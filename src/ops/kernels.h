// SPDX-License-Identifier: Apache-2.0
//
// The kernel table of a device: one entry per op and dtype, filled once by instruction set (op_list.inc). A null entry is a missing
// kernel: the op runs on the scalar reference, counted and logged, or is refused when fallbacks are forbidden.
#pragma once

#include <string_view>
#include <vector>

#include "base/cpu_features.h"
#include "ops/activation/swiglu.h"
#include "ops/attention/attention.h"
#include "ops/attention/latent.h"
#include "ops/compress/compress.h"
#include "ops/embedding/embedding.h"
#include "ops/hyper/hyper_connection.h"
#include "ops/matmul/matmul.h"
#include "ops/moe/combine.h"
#include "ops/moe/expert_table.h"
#include "ops/moe/permute.h"
#include "ops/moe/router.h"
#include "ops/norm/rms_norm.h"
#include "ops/quant/quantise.h"
#include "ops/quant/simulate.h"
#include "ops/rope/rotate_tail.h"

namespace pointsman::ops {

template <class Args>
using Kernel = void (*)(ThreadPool&, const Args&);

// Entries are named op_dtype: matmul_f32_bf16 is fp32 x with bf16 W. op_list.inc has one line per entry, sorted.
struct KernelTable {
  Isa isa = Isa::kScalar;
#define PM_OP(name, Args) Kernel<Args> name = nullptr;
#include "ops/op_list.inc"
#undef PM_OP
};

// The table for this CPU and instruction set. Entries that the ISA does not speed up are the reference's.
KernelTable make_cpu_kernels(Isa isa, const CpuFeatures& cpu);

// "matmul_f32_bf16", ... in the order of op_list.inc: the index is that of FallbackCounters.
std::span<const std::string_view> op_names();
// A copy of `table` without the named entries: tests of the fallback.
Result<KernelTable> without_ops(const KernelTable& table, std::span<const std::string_view> names);

}  // namespace pointsman::ops
