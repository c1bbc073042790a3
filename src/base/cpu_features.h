// SPDX-License-Identifier: Apache-2.0
//
// What this CPU can run, and which kernels will be used. One binary carries kernels for several instruction sets; the choice is
// made once, when an engine is made.
#pragma once

#include <string>
#include <string_view>

#include "pointsman/status.h"

namespace pointsman {

// Ordered: a larger value includes the smaller ones.
enum class Isa { kScalar = 0, kAvx2 = 1, kAvx512 = 2 };

const char* isa_name(Isa isa);  // "scalar", "avx2", "avx512"
Result<Isa> parse_isa(std::string_view name);

struct CpuFeatures {
  bool avx2 = false;         // with FMA and F16C
  bool avx512 = false;       // F, BW, DQ, VL
  bool avx512_bf16 = false;  // vdpbf16ps
  bool avx512_vnni = false;
  bool avx512_vbmi = false;
  std::string model_name;

  Isa best_isa() const { return avx512 ? Isa::kAvx512 : avx2 ? Isa::kAvx2 : Isa::kScalar; }
};

CpuFeatures detect_cpu_features();

// `wanted` (the value of POINTSMAN_ISA, empty for the best) checked against what the CPU has: kUnsupported names both.
Result<Isa> choose_isa(std::string_view wanted, const CpuFeatures& cpu);

}  // namespace pointsman
