// SPDX-License-Identifier: Apache-2.0
#include "ops/isa/vec_scalar.h"
#include "ops/isa/kernels_isa.h"

namespace pointsman::ops {

void add_scalar_kernels(KernelTable& table) { fill_table(table); }

}  // namespace pointsman::ops
