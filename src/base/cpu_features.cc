// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_features.h"

#include <cpuid.h>

#include <cstring>

#include "base/log.h"

namespace pointsman {

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar: return "scalar";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
  }
  return "unknown";
}

Result<Isa> parse_isa(std::string_view name) {
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (name == isa_name(isa)) return isa;
  }
  return error(StatusCode::kInvalidArgument, "unknown instruction set '{}': expected scalar, avx2 or avx512", name);
}

CpuFeatures detect_cpu_features() {
  CpuFeatures f;
  // __builtin_cpu_supports also checks that the operating system saves the wide registers.
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
  f.avx512_vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
  f.avx512_vbmi = f.avx512 && __builtin_cpu_supports("avx512vbmi");
  unsigned int regs[12] = {};
  for (unsigned int i = 0; i < 3; ++i) {
    __get_cpuid(0x80000002 + i, &regs[4 * i], &regs[4 * i + 1], &regs[4 * i + 2], &regs[4 * i + 3]);
  }
  char name[49] = {};
  std::memcpy(name, regs, 48);
  f.model_name = name;
  while (!f.model_name.empty() && f.model_name.back() == ' ') f.model_name.pop_back();
  return f;
}

Result<Isa> choose_isa(std::string_view wanted, const CpuFeatures& cpu) {
  if (wanted.empty()) return cpu.best_isa();
  PM_ASSIGN_OR_RETURN(const Isa isa, parse_isa(wanted));
  if (isa > cpu.best_isa()) {
    return error(StatusCode::kUnsupported, "POINTSMAN_ISA={}: this CPU ({}) supports at most {}", wanted, cpu.model_name,
                 isa_name(cpu.best_isa()));
  }
  return isa;
}

}  // namespace pointsman
