// SPDX-License-Identifier: Apache-2.0
//
// ExpertReader: brings one expert from the checkpoint into a slot and proves that it is the right one. Bytes are hashed in the
// chunks in which they were read, while they are in the cache. On a device that the host cannot write, chunks go through two
// staging buffers: one is read and hashed while the other is copied.
//
// Parts that lie one after the other both in the file and in the slot are read as one run.
//
// One object per reader thread. read() does not allocate unless it fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "device/device.h"
#include "experts/catalogue.h"
#include "memory/budget.h"
#include "pointsman/status.h"

namespace pointsman {

// Large enough that the disk is as fast as it gets (docs/design/performance.md: 1 MiB), small enough for the second-level cache
// or close to it.
inline constexpr size_t kReadChunkBytes = 1 << 20;
inline constexpr size_t kStagingBytesPerReader = 2 * kReadChunkBytes;
// Heap of one reader: hash contexts (OpenSSL's are some hundred bytes, xxHash's 576) and the objects around them.
inline constexpr uint64_t kReaderTableBytes = 4096;

// What this process knows of an expert's bytes since it verified them for the first time.
struct RememberedDigest {
  Xxh3Digest xxh3;
  bool known = false;
};

struct ReadOutcome {
  uint64_t bytes = 0;  // read, whatever came of them
  bool verified_sha256 = false;
  bool verified_lock_xxh3 = false;
  bool verified_xxh3 = false;
};

class ExpertReader {
 public:
  // `compute` is the stream whose work may still read a slot, or null. Charges staging to kReadBuffers when the device is not
  // host_visible. `verify_fast`: first reads are held against the lock's XXH3-128, not against its SHA-256.
  static Result<std::unique_ptr<ExpertReader>> make(Device& device, Device& host, MemoryBudget& budget,
                                                    const Checkpoint& checkpoint, const ExpertCatalogue& catalogue,
                                                    Stream* compute, bool drop_page_cache, bool verify_fast = false);

  // Fills `slot` (device address) and verifies. `compute_ticket` is waited for before the first byte of the slot changes. On
  // failure the slot's contents are arbitrary and nothing writes to it any more.
  Status read(int moe_layer_idx, int expert_id, std::byte* slot, uint64_t compute_ticket, RememberedDigest& remembered,
              ReadOutcome& outcome);

 private:
  ExpertReader(const Checkpoint& checkpoint, const ExpertCatalogue& catalogue, Stream* compute, bool drop_page_cache, bool verify_fast)
      : checkpoint_(checkpoint), catalogue_(catalogue), compute_(compute), drop_page_cache_(drop_page_cache), verify_fast_(verify_fast) {}
  struct Run {
    uint32_t file_idx;
    uint64_t offset, bytes, slot_offset;
  };
  Status read_run(const Run& run, std::byte* slot, bool with_sha256, ReadOutcome& outcome);
  Status await_slot();
  Status check(int moe_layer_idx, int expert_id, bool with_sha256, std::byte* slot, RememberedDigest& remembered, ReadOutcome& outcome);
  // Once per expert: coded weights whose values no trained model has. Host memory only.
  void warn_of_nonsense(int moe_layer_idx, int expert_id, std::byte* slot);

  const Checkpoint& checkpoint_;
  const ExpertCatalogue& catalogue_;
  Stream* const compute_;
  const bool drop_page_cache_, verify_fast_;
  Sha256 sha256_;
  Xxh3 xxh3_;
  Buffer staging_;                  // empty: read straight into the slot
  std::unique_ptr<Stream> stream_;  // of the copies out of staging_
  uint64_t half_tickets_[2] = {0, 0};
  int warnings_left_ = 4;
  int half_ = 0;
  uint64_t slot_ticket_ = 0;  // not yet waited for
};

}  // namespace pointsman
