// SPDX-License-Identifier: Apache-2.0
//
// Holds a model against its lock file as far as the checkpoint alone allows: the small files and the dense tensors. Experts
// need the engine's binding, which says which tensors make one; builds with the engine verify those too (verify/model_lock).
#pragma once

#include <string>

#include "base/fs.h"
#include "doctor/check.h"

namespace pointsman::doctor {

Result<LockReport> check_lock_without_engine(FileSystem& fs, const std::string& model);

}  // namespace pointsman::doctor
