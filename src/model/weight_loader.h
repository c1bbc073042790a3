// SPDX-License-Identifier: Apache-2.0
//
// Reads the dense tensors of a binding into one device buffer, each checked against the lock file's SHA-256 on the way. Matrices keep
// their dtype, vectors are widened to fp32 (exact). What is placed on demand is opened instead (streamed_matrix.h).
#pragma once

#include "base/function_ref.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "device/device.h"
#include "model/binding.h"
#include "model/streamed_matrix.h"

namespace pointsman {

// Bytes of host staging that load_dense() needs where the device is not host_visible.
inline constexpr size_t kLoadChunkBytes = 512 * 1024;

// Fills in binding.weights' addresses. `lock` may be null (nothing is checked). Several tensors are read at once on host_visible
// devices. On failure: kCorrupt names tensor, file, offset and both digests; nothing half-loaded may be used.
// `progress(bytes)` is called with bytes newly read, from several threads.
Status load_dense(const Checkpoint& checkpoint, Binding& binding, const LockFile* lock, Device& device, MemoryBudget& budget,
                  ThreadPool& pool, Buffer& buffer, FunctionRef<void(uint64_t)> progress);

// What open_on_demand() will charge in all.
StreamedMatrix::Cost on_demand_cost(const Binding& binding, bool host_visible);

// Reads, checks and remembers the matrices that are placed on demand, and makes binding.weights point at them. The objects keep
// references to everything given, `progress` excepted. Errors and `progress` as for load_dense().
Result<std::vector<std::unique_ptr<StreamedMatrix>>> open_on_demand(const Checkpoint& checkpoint, Binding& binding,
                                                                    const LockFile* lock, Device& device, MemoryBudget& budget,
                                                                    FunctionRef<void(uint64_t)> progress);

// kCorrupt when the lock file has no entry for `entry`, or another digest than `found`.
Status check_tensor_digest(const Checkpoint& checkpoint, const TensorEntry& entry, const LockFile& lock, const Sha256Digest& found);

// Hashes `size_bytes` at `offset`: the digest of one tensor, or part of an expert's. For `lock`.
Status hash_range(const Checkpoint& checkpoint, uint32_t file_idx, uint64_t offset, uint64_t size_bytes, Sha256& hash,
                  std::span<std::byte> chunk);

}  // namespace pointsman
