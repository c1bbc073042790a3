// SPDX-License-Identifier: Apache-2.0
#include "model/arch/arch.h"

#include "base/log.h"

namespace pointsman {

#define PM_ARCH(name) extern const Arch name;
#include "model/arch/arch_list.inc"
#undef PM_ARCH

Result<const Arch*> find_arch(std::string_view model_type) {
  static const Arch* const kAll[] = {
#define PM_ARCH(name) &name,
#include "model/arch/arch_list.inc"
#undef PM_ARCH
  };
  std::string known;
  for (const Arch* arch : kAll) {
    if (arch->model_type == model_type) return arch;
    known += (known.empty() ? "" : ", ") + std::string(arch->model_type);
  }
  return error(StatusCode::kUnsupported, "model_type \"{}\" is not supported; this build knows {}", model_type, known);
}

}  // namespace pointsman
