// SPDX-License-Identifier: Apache-2.0
#include "ops/isa/panel_vec_avx2.h"
#include "ops/isa/kernels_panel.h"

namespace pointsman::ops {

void add_avx2_panel_kernels(KernelTable& table) { fill_panel_table(table); }

}  // namespace pointsman::ops
