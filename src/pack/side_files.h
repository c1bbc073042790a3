// SPDX-License-Identifier: Apache-2.0
//
// Everything of a packed folder but the weights: config.json, copies of the tokenizer's and other small files, the index, the lock file.
#pragma once

#include <string>

#include "base/fs.h"
#include "pack/pack.h"
#include "pack/plan.h"
#include "pack/progress_file.h"

namespace pointsman {

// Writes them into `directory`, which holds the weights already, and binds the folder as a program that runs it would: what was planned must be
// what is read. kInternal when it is not.
Status write_side_files(FileSystem& fs, const std::string& model, const std::string& directory, const PackPlan& plan, const PackOptions& options,
                        const PackProgressFile& done, const PackIdentity& identity);

}  // namespace pointsman
