// SPDX-License-Identifier: Apache-2.0
//
// Rotary embedding of the last channels of each head, in interleaved pairs (2i, 2i+1) (Su et al. 2021, as published), with an optional
// RMSNorm of the head before it: queries, keys and, backwards, attention outputs of DeepSeek-V4.
#pragma once

#include "ops/context.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

enum class HeadNorm : int32_t { kNone, kUnweighted, kWeighted };

struct RotateTailArgs {
  Tensor x;                       // [tokens, heads * head_dim] kF32
  Tensor out;                     // the same shape, kF32 or kBF16; may be x
  HeadNorm norm = HeadNorm::kNone;
  const float* weight = nullptr;  // device [head_dim], with kWeighted
  float eps = 0;
  const float* cos = nullptr;     // device [tokens, rotary_dim / 2]
  const float* sin = nullptr;
  bool inverse = false;           // rotate backwards
  int64_t heads = 0, head_dim = 0, rotary_dim = 0;

  template <class F>
  void each_address(F&& visit) {
    visit(x.data), visit(out.data);
    for (const float** p : {&weight, &cos, &sin}) visit(const_cast<void*&>(reinterpret_cast<const void*&>(*p)));
  }
};
Status rotate_tail(OpContext& ctx, const RotateTailArgs& args);

}  // namespace pointsman::ops
