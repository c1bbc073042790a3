// SPDX-License-Identifier: Apache-2.0
//
// All kernels of one instruction set, from one source. Included by kernels_<isa>.cc after its vec_*.h; everything is in an anonymous
// namespace and no inline function of the standard library is used, so that the linker can mix nothing up.
#pragma once

#include "ops/isa/math.h"
#include "ops/isa/tile.h"
#include "ops/isa/weight_rows.h"
#include "ops/matmul/matmul_isa.h"
#include "ops/activation/swiglu_isa.h"
#include "ops/norm/rms_norm_isa.h"
#include "ops/attention/attention_isa.h"
#include "ops/attention/latent_isa.h"
#include "ops/rope/rotate_tail_isa.h"
#include "ops/quant/simulate_isa.h"
#include "ops/compress/compress_isa.h"
#include "ops/compress/compressed_attention_isa.h"
#include "ops/embedding/embedding_isa.h"
#include "ops/hyper/hyper_connection_isa.h"
#include "ops/moe/permute_isa.h"
#include "ops/moe/combine_isa.h"
#include "ops/moe/expert_table_isa.h"
#include "ops/moe/route_isa.h"
#include "ops/kernels.h"

namespace pointsman::ops {
namespace {

inline void fill_table(KernelTable& t) {
  t.attention_bf16 = attention_kernel<Bf16Dot, bf16>;
  t.attention_tiles = attention_kernel<Bf16Dot, CacheTile>;
  t.attention_f32 = attention_kernel<F32Dot<float>, float>;
  t.attention_i8 = attention_kernel<Bf16Dot, int8_t>;
  t.combine = combine_kernel;
  t.compress_bf16 = compress_kernel<bf16>;
  t.compress_f32 = compress_kernel<float>;
  t.compressed_attention_bf16 = compressed_attention_kernel<Bf16Dot, bf16>;
  t.compressed_attention_f32 = compressed_attention_kernel<F32Dot<float>, float>;
  t.embedding = embedding_kernel;
  t.expert_table = expert_table_kernel;
  t.hc_collapse = hc_collapse_kernel;
  t.hc_expand = hc_expand_kernel;
  t.hc_spread = hc_spread_kernel;
  t.index_select_bf16 = index_select_kernel<bf16>;
  t.index_select_f32 = index_select_kernel<float>;
  t.head_copy_f32 = head_copy_kernel;
  t.head_matmul_f32 = head_matmul_kernel;
  t.latent_cache = latent_cache_kernel;
  t.latent_prepare_f32 = latent_prepare_kernel;
  t.matmul_bf16_bf16 = matmul_kernel<Bf16Dot>;
  t.matmul_f32_bf16 = matmul_kernel<F32Dot<bf16>>;
  t.matmul_f32_coded = matmul_coded_kernel;
  t.matmul_f32_f16 = matmul_kernel<F32Dot<f16>>;
  t.matmul_f32_f32 = matmul_kernel<F32Dot<float>>;
  t.matmul_f32_in_out = matmul_in_out_kernel;
  t.permute = permute_kernel;
  t.permute_index = permute_index_kernel;
  t.qkv_prepare_tiles = qkv_prepare_kernel<CacheTile>;
  t.qkv_prepare_f32 = qkv_prepare_kernel<float>;
  t.qkv_prepare_i8 = qkv_prepare_kernel<int8_t>;
  t.rms_norm = rms_norm_kernel;
  t.rotate_tail = rotate_tail_kernel;
  t.route = route_kernel;
  t.simulate = simulate_kernel;
  t.swiglu_ffn_bf16_bf16 = swiglu_kernel<Bf16Dot>;
  t.swiglu_ffn_f32_bf16 = swiglu_kernel<F32Dot<bf16>>;
  t.swiglu_ffn_f32_coded = swiglu_coded_kernel;
  t.swiglu_ffn_f32_f16 = swiglu_kernel<F32Dot<f16>>;
  t.swiglu_ffn_f32_f32 = swiglu_kernel<F32Dot<float>>;
  t.swiglu_ffn_f32_in_out = swiglu_in_out_kernel;
}

}  // namespace
}  // namespace pointsman::ops
