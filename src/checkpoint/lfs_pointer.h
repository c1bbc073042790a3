// SPDX-License-Identifier: Apache-2.0
//
// A model folder cloned without Git LFS holds small text files in place of the weights. They deserve their own message.
#pragma once

#include <string>
#include <string_view>

#include "base/log.h"
#include "pointsman/status.h"

namespace pointsman {

inline bool is_lfs_pointer(std::string_view head) {
  return head.starts_with("version https://git-lfs.github.com/spec/");
}

inline Status lfs_pointer_error(const std::string& path) {
  return error(StatusCode::kCorrupt, "{}: a Git LFS pointer, not the file itself; run 'git lfs pull' in the model folder",
               path);
}

}  // namespace pointsman
