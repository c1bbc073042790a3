// SPDX-License-Identifier: Apache-2.0
//
// ExpertReader: brings one expert from the checkpoint into a slot and proves that it is the right one. Several chunks are under way
// while one is hashed (checkpoint/range_reader.h).
//
// Chunks land in the slot. Where they cannot - the host does not see the slot, or O_DIRECT and the expert does not lie in the file as
// it lies in the slot - they come through a buffer, and are copied piece by piece as they are hashed, while they are in the cache.
//
// Parts that lie one after the other both in the file and in the slot are read as one run.
//
// One object per reader thread. read() does not allocate unless it fails.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/range_reader.h"
#include "device/device.h"
#include "experts/catalogue.h"
#include "memory/budget.h"
#include "pointsman/status.h"

namespace pointsman {

// Heap of one reader: hash contexts (OpenSSL's are some hundred bytes, xxHash's 576), the objects around them, and the rings that an
// io_uring shares with the kernel.
inline constexpr uint64_t kReaderTableBytes = 16384;

// Neighbouring parts of an expert as one range, in the order of the slot.
struct ExpertRun {
  uint32_t file_idx = 0;
  uint64_t offset = 0, bytes = 0, slot_offset = 0;
};
// Fills `runs`; the number of them.
int expert_runs(const ExpertInfo& info, std::array<ExpertRun, kMaxExpertParts>& runs);

struct ReaderOptions {
  ReadMethod method = ReadMethod::kPread;
  bool direct = false;           // O_DIRECT
  bool verify_fast = false;      // first reads are held against the lock's XXH3-128, not against its SHA-256
  bool drop_page_cache = false;  // tell the kernel that what was read will not be needed again
};

// The buffer of one reader; 0 where every chunk can land in its slot.
uint64_t reader_buffer_bytes(const ExpertCatalogue& catalogue, bool direct, bool host_visible);

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
  // `compute` is the stream whose work may still read a slot, or null. Charges its buffer to kReadBuffers. kUnavailable: the method is
  // not to be had here.
  static Result<std::unique_ptr<ExpertReader>> make(Device& device, Device& host, MemoryBudget& budget,
                                                    const Checkpoint& checkpoint, const ExpertCatalogue& catalogue,
                                                    Stream* compute, const ReaderOptions& options);

  // Fills `slot` (device address) and verifies. `compute_ticket` is waited for before the first byte of the slot changes. On
  // failure the slot's contents are arbitrary and nothing writes to it any more. Bytes from the end of the record to the end of
  // the slot are arbitrary.
  Status read(int moe_layer_idx, int expert_id, std::byte* slot, uint64_t compute_ticket, RememberedDigest& remembered,
              ReadOutcome& outcome);
  // From another thread, when a read does not come back: read(), if there is one, will touch nothing but this object any more when it
  // does, which must live on.
  void give_up();

 private:
  ExpertReader(const Checkpoint& checkpoint, const ExpertCatalogue& catalogue, Stream* compute, const ReaderOptions& options)
      : checkpoint_(checkpoint), catalogue_(catalogue), compute_(compute), options_(options), slot_bytes_(catalogue.slot_bytes()) {}
  Status read_and_check(int moe_layer_idx, int expert_id, std::byte* slot, uint64_t compute_ticket, RememberedDigest& remembered,
                        ReadOutcome& outcome);
  Status take_chunk(const ExpertInfo& info, const ExpertRun& run, const RangeReader::Chunk& chunk, std::byte* slot, bool with_sha256,
                    ReadOutcome& outcome);
  void hash(const ExpertInfo& info, std::span<const std::byte> bytes, uint64_t slot_offset, bool with_sha256);
  Status await_slot();
  Status check(int moe_layer_idx, int expert_id, bool with_sha256, std::byte* slot, RememberedDigest& remembered, ReadOutcome& outcome);
  // Once per expert: coded weights whose values no trained model has. Host memory only.
  void warn_of_nonsense(int moe_layer_idx, int expert_id, std::byte* slot);

  const Checkpoint& checkpoint_;
  const ExpertCatalogue& catalogue_;
  Stream* const compute_;
  const ReaderOptions options_;
  const uint64_t slot_bytes_;
  Sha256 sha256_;
  Xxh3 xxh3_;
  Buffer buffer_;
  std::unique_ptr<RangeReader> ranges_;  // after the buffer that it uses
  std::unique_ptr<Stream> stream_;       // of the copies out of the buffer, where the host does not see the slot
  int warnings_left_ = 4;
  uint64_t slot_ticket_ = 0;  // not yet waited for
  std::atomic<bool> is_busy_{false};
};

}  // namespace pointsman
