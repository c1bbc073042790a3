// SPDX-License-Identifier: Apache-2.0
//
// Makes the lock file of a model, and holds a model against one. Both read every byte of the checkpoint that is used, in
// parallel, through a small buffer per thread: memory does not grow with the model.
//
// Expert digests cover gate, up and down one after the other, as the expert store reads them; the ranges come from the same
// binding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/function_ref.h"
#include "checkpoint/lockfile.h"
#include "pointsman/status.h"

namespace pointsman {

// Bytes hashed so far, of how many. Called from several threads. False asks to stop: the result is kUnavailable.
using LockProgress = FunctionRef<bool(uint64_t done_bytes, uint64_t total_bytes)>;

// The lock of what is there now. `created` and `tool_version` are left empty.
Result<LockFile> make_lock(FileSystem& fs, const std::string& model_dir, int num_threads, LockProgress progress);

struct LockMismatch {
  std::string kind;  // "file", "tensor", "expert"; "checkpoint" when it cannot be opened at all
  std::string name;  // as in the lock file
  std::string what;  // "sha256 9f... expected 4b... (model-00003.safetensors @ 0x1a4000)", "absent from the checkpoint", ...
};
struct LockCheck {
  std::vector<LockMismatch> mismatches;          // files, tensors, experts, each in the order of the checkpoint
  uint64_t files = 0, tensors = 0, experts = 0;  // compared
  uint64_t bytes = 0;
};
// Every difference, not only the first. Fails only when progress() asked to stop.
Result<LockCheck> check_lock(FileSystem& fs, const std::string& model_dir, const LockFile& lock, int num_threads,
                             LockProgress progress);

}  // namespace pointsman
