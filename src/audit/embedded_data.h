// SPDX-License-Identifier: Apache-2.0
//
// The files of data/audit/, as the build put them into the program (cmake/audit_data.cmake).
#pragma once

#include <span>
#include <string_view>

namespace pointsman::audit {

struct EmbeddedFile {
  std::string_view name;
  std::string_view text;
};

extern const std::span<const EmbeddedFile> kEmbeddedFiles;

}  // namespace pointsman::audit
