// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 with vdpbf16ps: only the entries that use it.
#define PM_HAS_DPBF16 1
#include "ops/isa/vec_avx512.h"
#include "ops/isa/kernels_isa.h"

namespace pointsman::ops {

void add_dpbf16_kernels(KernelTable& table) {
  table.attention_bf16 = attention_kernel<Bf16Dot, bf16>;
  table.attention_tiles = attention_kernel<Bf16Dot, CacheTile>;
  table.attention_i8 = attention_kernel<Bf16Dot, int8_t>;
  table.compressed_attention_bf16 = compressed_attention_kernel<Bf16Dot, bf16>;
  table.matmul_bf16_bf16 = matmul_kernel<Bf16Dot>;
  table.swiglu_ffn_bf16_bf16 = swiglu_kernel<Bf16Dot>;
}

}  // namespace pointsman::ops
