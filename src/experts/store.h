// SPDX-License-Identifier: Apache-2.0
//
// ExpertStore: the heart. It owns the slots, reads experts into them after the router chose them, verifies them before anybody
// sees them, and hands out pinned views.
//
// A layer's step is a Batch: begin() names the experts that have at least one token (an expert without tokens is never read);
// hits are pinned at once, all misses are submitted to the readers together; next() returns experts in the order in which they
// become ready, so that compute on one overlaps the reads of others. If the slots cannot hold all of them at once, the rest is
// submitted as handles are released: two slots are enough to run any model.
//
// The first read of an expert in this process is checked against the lock file's SHA-256 and its XXH3-128 is remembered; every
// later read is checked against that (VerifyMode::kLockFast: the first read against the lock file's XXH3-128). A mismatch, a short read or an I/O error is a named error of next(); the slot never
// becomes visible, and the step emits no token.
//
// Experts that are known before their layer is reached are read ahead: prefetch() submits them behind the reads of batches, into slots
// that nobody needs; a batch that names one of them finds it there or joins its read. What was read ahead passes the same checks.
//
// One Batch at a time; begin(), next() and the handles belong to the thread that runs the model. Readers are the store's own
// threads. In steady state nothing allocates.
//
// Asynchronous devices: a handle may be released as soon as the work that reads its bytes is submitted to the compute stream.
// The store records a ticket at release, and a reader waits for that ticket before it overwrites the slot. An expert that
// next() hands out is in place for any stream. On the CPU none of this costs anything.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "experts/catalogue.h"
#include "memory/budget.h"
#include "pointsman/options.h"
#include "pointsman/status.h"
#include "tensor/tensor.h"

namespace pointsman {

enum class VerifyMode {
  kLockRequired,  // the first read against the lock's SHA-256
  kLockFast,      // the first read against the lock's XXH3-128: notices damage, not tampering
  kFirstRead,     // as kLockRequired; without a digest, the first read is trusted and remembered
};

struct ExpertStoreOptions {
  int64_t num_slots = 0;                 // >= 2, or all experts
  int num_readers = 4;                   // threads that read and verify
  std::string policy{kDefaultPolicy};    // a name of policy_list.inc
  VerifyMode verify = VerifyMode::kLockRequired;
  // By MoE layer, or empty for none: experts of such a layer stay once they are in. num_slots must leave two for the others.
  std::vector<bool> keep_layer;
  // The stream whose work reads the experts; outlives the store, used on the model's thread. May be null when the device is
  // host_visible and every user of a handle is done with it at release.
  Stream* compute_stream = nullptr;
  // How readers read (base/read_queue.h; O_DIRECT: base/fs.h). Where the method is refused, make() says so and takes pread.
  ReadMethod io = ReadMethod::kPread;
  bool direct = false;
  // next() fails when no read has come back for so long: a disk or a network file system that hangs.
  int64_t read_timeout_ms = 120'000;
  // [layers * experts] how often earlier runs asked for each expert, or empty. Read by make() only.
  std::span<const uint32_t> learned_uses = {};
  // Tell the kernel after each read that the pages will not be needed again. For measuring the cold case, or to leave the page
  // cache to others.
  bool drop_page_cache = false;
};

struct ExpertLayerStats {
  uint64_t hits = 0, misses = 0;
  uint64_t evicted = 0;     // experts of this layer that left to make room
  uint64_t bytes_read = 0;  // also of reads that failed later
  uint64_t verified_sha256 = 0, verified_lock_xxh3 = 0, verified_xxh3 = 0;
  uint64_t read_ns = 0;  // reading, verifying, copying; summed over readers
  uint64_t wait_ns = 0;  // the model's thread waited for a read
  // Read ahead, and of those the ones that a batch then asked for (they are hits). prefetch_bytes are those of reads
  // that had begun before the batch asked; bytes_read counts them too.
  uint64_t prefetched = 0, prefetch_hits = 0, prefetch_bytes = 0;
  uint64_t prefetch_failed = 0;  // dropped: the batch that asked for the expert read it again
  // The same for experts that were only predicted, apart. Used ones were asked for by the batch they were predicted for, while or after
  // they were read; dropped: not begun when the routes were known (right ones among them are ordinary misses then); wasted: bytes of reads
  // begun that the batch did not ask for (the expert stays until its slot is needed).
  uint64_t predicted_reads = 0, predicted_used = 0, predicted_dropped = 0, predicted_failed = 0;
  uint64_t predicted_bytes = 0, predicted_wasted_bytes = 0;
};

// Why an expert is read ahead of its layer.
enum class ReadAhead {
  kKnown,      // the layer will ask for it
  kPredicted,  // a guess: read when no batch reads, and not begun any more once the layer is reached
};

class ExpertStore;

// A resident, verified, pinned expert. While it lives its bytes do not move. Released by its destructor.
class ExpertHandle {
 public:
  ExpertHandle() = default;
  ExpertHandle(ExpertHandle&& o) noexcept { *this = std::move(o); }
  ExpertHandle& operator=(ExpertHandle&& o) noexcept;
  ~ExpertHandle() { release(); }
  void release();

  explicit operator bool() const { return store_ != nullptr; }
  int expert_id() const { return expert_id_; }
  // Index into the ids given to begin().
  int batch_idx() const { return batch_idx_; }
  // [out_features, in_features] with its scales, device addresses. Empty when the expert has no such part. REQUIRES: no scales part.
  Weight part(ExpertPart part) const;

 private:
  friend class ExpertStore;
  ExpertStore* store_ = nullptr;
  int slot_ = -1, layer_ = -1, expert_id_ = -1, batch_idx_ = -1;
};

class ExpertStore {
 public:
  // Charges slots (kExpertSlots), staging (kReadBuffers, only where the device is not host_visible), its own tables
  // (kCatalogue; the catalogue's own are its owner's to charge) and reader stacks (kThreadStacks). All arguments outlive the
  // store. kNotFound names an expert without the digest that the mode requires; no weight is read.
  static Result<std::unique_ptr<ExpertStore>> make(Device& device, MemoryBudget& budget, const Checkpoint& checkpoint,
                                                   const ExpertCatalogue& catalogue, ExpertStoreOptions options);
  // What make() will charge in all, by class, without making anything: the plan's numbers.
  struct Cost {
    uint64_t slots_bytes, read_buffer_bytes, table_bytes, stack_bytes;
  };
  static Cost cost(const ExpertCatalogue& catalogue, const ExpertStoreOptions& options, bool host_visible);
  // With a read that hangs, the store's memory and its readers are left to it: the kernel may still write there.
  ~ExpertStore();

  // Starts a step for one layer; an open batch is ended first. REQUIRES: ids unique, each in [0, num_experts); otherwise
  // kInvalidArgument and no batch. `offsets` [num_experts + 1], ascending: rows that go to experts before this one, which policies weigh;
  // empty: one row to each.
  Status begin(int moe_layer_idx, std::span<const int32_t> expert_ids, std::span<const int32_t> offsets = {});
  // The next ready expert; an empty handle when all of the batch were handed out. With all slots pinned by handles that the
  // caller still holds, the result is kInternal (release before asking for more). After the first failed read of a batch every
  // next() returns that error, until the batch ends; handles given out before stay valid. kDeadlineExceeded: no read came back within
  // the time-out; begin() then refuses until they do.
  Result<ExpertHandle> next();
  // The same without waiting: an empty handle also when none is ready yet.
  Result<ExpertHandle> try_next();
  // Ends the batch: cancels reads not started, waits for those in flight (what they read stays resident), unless they are overdue.
  // Handles that the caller holds stay valid. Called by the next begin() too.
  void end();

  // Reads experts of a layer ahead of its begin(), as far as slots allow: never one that was read ahead and not used yet, and never so
  // many that a batch finds fewer than two. Ids may repeat. A failed read is dropped: begin() will meet it again.
  // Predicted ones are read in the order given, best first; a prediction is about the next batch.
  // kInvalidArgument: no such layer or expert. Does not wait.
  Status prefetch(int moe_layer_idx, std::span<const int32_t> expert_ids, ReadAhead why = ReadAhead::kKnown);

  std::span<const ExpertLayerStats> stats() const;  // per MoE layer; exact between batches
  void reset_stats();
  // Rows that went to each expert [layers * experts] since make(); those of kept layers are not counted.
  std::vector<uint32_t> uses() const;
  int64_t num_slots() const;
  ReadMethod io() const;  // that is used
  // Drops every unpinned expert (tests, benchmarks of the cold case), uncounted, but for kept layers. Digests are remembered, unless
  // the next read of each is to be its first once more. REQUIRES then: no batch.
  void evict_all(bool forget_digests = false);

 private:
  friend class ExpertHandle;
  struct Impl;
  explicit ExpertStore(std::unique_ptr<Impl> impl);
  void release(int slot);
  Result<ExpertHandle> take(bool waits);
  Weight part(int slot, int layer, int expert, ExpertPart p) const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pointsman
