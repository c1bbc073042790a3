// SPDX-License-Identifier: Apache-2.0
//
// Data files that travel inside the program, as text (cmake/data.cmake makes the source file).
#pragma once

#include <string_view>

namespace pointsman {

std::string_view embedded_cann_ops();         // data/audit/cann_ops.json
std::string_view embedded_cann_versions();    // data/audit/cann_versions.json
std::string_view embedded_torch_npu_names();  // data/audit/torch_npu_names.json

}  // namespace pointsman
