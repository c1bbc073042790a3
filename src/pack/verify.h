// SPDX-License-Identifier: Apache-2.0
//
// Holds a packed folder against the checkpoint it was made from: every matrix is read in both, undone to rows, and compared - bit for bit where
// numbers were kept, by its error where they were coded anew. Every other tensor must be the same bytes. Nothing of what pack remembered is
// used. Digests are `lock --check`'s.
#pragma once

#include <string>
#include <vector>

#include "base/fs.h"
#include "pack/pack.h"
#include "pack/report.h"

namespace pointsman {

struct PackVerification {
  PackReport report;                    // of what is in the folder now
  std::vector<std::string> mismatches;  // "model.layers.0...: element [3, 5] is ..., the source has ...", at most 100
  uint64_t num_mismatches = 0;
};

// Fails when either folder cannot be opened, or the two are not of one model. `threads` 0: one for every CPU.
Result<PackVerification> verify_packed(FileSystem& fs, const std::string& packed, const std::string& source, int threads, PackProgress progress);

}  // namespace pointsman
