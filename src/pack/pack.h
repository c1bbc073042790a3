// SPDX-License-Identifier: Apache-2.0
//
// pack: a checkpoint to a packed folder, or back. Streams record by record: memory is a few MiB per thread, whatever the model's size.
//
// The folder appears whole (base/staged_folder.h). After each file its digests are noted in pack.progress.json, so that `resume` goes on
// behind the last complete file - of the same source, with the same options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/function_ref.h"
#include "pack/options.h"
#include "pack/report.h"
#include "pointsman/status.h"

namespace pointsman {

// Source bytes that are done, of how many. Called from several threads. False asks to stop.
using PackProgress = FunctionRef<bool(uint64_t done, uint64_t total)>;

struct PackIdentity {
  std::string tool_version, created;  // for the lock file
};

// kInvalidArgument: options, `out` exists. kUnavailable: interrupted, or `out` is being written. kCorrupt: weights that are not finite. kIo,
// with what to do. After a failure the files that were completed are kept for `resume`, when there are any.
Result<PackReport> run_pack(FileSystem& fs, const std::string& model, const std::string& out, const PackOptions& options, const PackIdentity& identity,
                            PackProgress progress);

}  // namespace pointsman
