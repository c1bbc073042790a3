// SPDX-License-Identifier: Apache-2.0
//
// The mechanical corrections of an audit as a patch (unified diff, for `patch -p1` or `git apply`). Nothing is written.
#pragma once

#include <string>

#include "audit/audit.h"

namespace pointsman::audit {

struct FixPreview {
  std::string patch;
  size_t edits = 0;    // in the patch
  size_t left_out = 0;  // in notebooks, in files that are not plain UTF-8, or on top of one another
};

// Reads the files again; edits of findings that are silenced or in the baseline are left alone. A Python file whose devices change
// also gets `import torch_npu` after its first import of torch. kIo: a file could not be read.
Result<FixPreview> fix_preview(FileSystem& fs, const AuditResult& result);

}  // namespace pointsman::audit
