// SPDX-License-Identifier: Apache-2.0
//
// MemoryModel: a model folder copied into a MemoryFs, where a test can change its bytes and make reads fail.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/lockfile.h"
#include "engine/engine_impl.h"
#include "support/memory_fs.h"

namespace pointsman::testing {

inline constexpr const char* kMemoryModelDir = "/model";

class MemoryModel {
 public:
  // Copies the files of `folder`, without its subfolders and lock file, to kMemoryModelDir. Aborts the test program when it
  // cannot.
  explicit MemoryModel(const std::string& folder);

  // A byte range that belongs to one dense tensor or to one part of one expert.
  struct Range {
    std::string file;  // path in fs
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
    std::string tensor;  // of a dense tensor, else empty
    int layer = -1;      // of an expert
    int expert = -1;
  };
  // Everything that a lock covers by tensor or expert.
  std::vector<Range> ranges() const;
  std::byte& byte_at(const Range& range, uint64_t offset);

  // Writes pointsman.lock.json for the bytes as they are, made from the binding and hash_range().
  LockFile add_lock();

  // Loads on the CPU, from fs.
  Result<std::unique_ptr<Engine>> load(const EngineOptions& options);
  // The smallest budget for these options. The plan of a load that is refused says so.
  uint64_t smallest_budget(const EngineOptions& options);

  MemoryFs fs;
  std::unique_ptr<Device> device = make_cpu_device();
};

// fp32, two threads, one reader: small and repeatable. model_dir is kMemoryModelDir.
EngineOptions memory_model_options();

// The bundled model where it is, else tests/golden/qwen3_moe_base.
std::string small_model_folder();

}  // namespace pointsman::testing
