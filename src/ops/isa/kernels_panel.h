// SPDX-License-Identifier: Apache-2.0
//
// Kernels of packed weights of one instruction set, from one source; see kernels_isa.h. Include a panel_vec_*.h first. AVX-512 without VNNI, BF16 or
// VBMI uses the AVX2 ones.
#pragma once

#include "ops/isa/math.h"
#include "ops/isa/tile.h"
#include "ops/isa/weight_rows.h"
#include "ops/matmul/matmul_isa.h"
#include "ops/quant/quantise_isa.h"
#include "ops/isa/panel.h"
#include "ops/activation/swiglu_isa.h"
#include "ops/activation/swiglu_panel_isa.h"
#include "ops/kernels.h"

namespace pointsman::ops {
namespace {

inline void fill_panel_table(KernelTable& t) {
  t.matmul_panel_bf16 = matmul_panel_bf16_kernel;
  t.matmul_panel_f32 = matmul_panel_kernel<F32PanelDot>;
  t.matmul_panel_i8 = matmul_panel_i8_kernel;
  t.quantise_rows = quantise_rows_kernel;
  t.swiglu_ffn_panel_bf16 = swiglu_panel_bf16_kernel;
  t.swiglu_ffn_panel_f32 = swiglu_panel_kernel<F32PanelDot>;
  t.swiglu_ffn_panel_i8 = swiglu_panel_i8_kernel;
}

}  // namespace
}  // namespace pointsman::ops
