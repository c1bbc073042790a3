// SPDX-License-Identifier: Apache-2.0
#include "experts/reader.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "base/log.h"

namespace pointsman {

namespace {

// Two are not enough to keep the disk busy while one is hashed: the request after next must be there already.
constexpr int kChunksUnderWay = 3;
// What a hash reads and a copy moves while it is in the first-level or second-level cache.
constexpr size_t kHashBytes = 64 * 1024;

bool can_land_in_slot(const ExpertInfo& info) {
  std::array<ExpertRun, kMaxExpertParts> runs;
  const int n = expert_runs(info, runs);
  return std::all_of(runs.begin(), runs.begin() + n,
                     [](const ExpertRun& r) { return r.offset % kDirectAlignment == 0 && r.slot_offset % kDirectAlignment == 0; });
}

// Chunks no larger than the largest expert needs.
size_t chunk_bytes(const ExpertCatalogue& catalogue) {
  return static_cast<size_t>(std::min<uint64_t>(kReadChunkBytes, catalogue.slot_bytes() + kDirectAlignment));
}

}  // namespace

int expert_runs(const ExpertInfo& info, std::array<ExpertRun, kMaxExpertParts>& runs) {
  int n = 0;
  for (const ExpertPartInfo& part : info.parts) {
    if (part.size_bytes == 0) continue;
    if (n > 0) {
      ExpertRun& last = runs[static_cast<size_t>(n - 1)];
      // The padding of a packed record is that of a slot: it is read along.
      const uint64_t slot_gap = part.slot_offset - (last.slot_offset + last.bytes);
      if (part.file_idx == last.file_idx && part.offset >= last.offset + last.bytes &&
          part.offset - (last.offset + last.bytes) == slot_gap && slot_gap < kExpertPartAlignment) {
        last.bytes += slot_gap + part.size_bytes;
        continue;
      }
    }
    runs[static_cast<size_t>(n++)] = {part.file_idx, part.offset, part.size_bytes, part.slot_offset};
  }
  return n;
}

uint64_t reader_buffer_bytes(const ExpertCatalogue& catalogue, bool direct, bool host_visible) {
  bool needed = !host_visible;
  for (int l = 0; direct && !needed && l < catalogue.num_layers(); ++l) {
    for (int e = 0; !needed && e < catalogue.num_experts(); ++e) needed = !can_land_in_slot(catalogue.at(l, e));
  }
  return needed ? kChunksUnderWay * chunk_bytes(catalogue) : 0;
}

Result<std::unique_ptr<ExpertReader>> ExpertReader::make(Device& device, Device& host, MemoryBudget& budget,
                                                         const Checkpoint& checkpoint, const ExpertCatalogue& catalogue,
                                                         Stream* compute, const ReaderOptions& options) {
  auto reader = std::unique_ptr<ExpertReader>(new ExpertReader(checkpoint, catalogue, compute, options));
  const uint64_t buffer_bytes = reader_buffer_bytes(catalogue, options.direct, device.host_visible());
  if (buffer_bytes > 0) {
    PM_ASSIGN_OR_RETURN(reader->buffer_, Buffer::make(host, budget, MemoryClass::kReadBuffers, buffer_bytes));
  }
  if (!device.host_visible()) {
    PM_ASSIGN_OR_RETURN(reader->stream_, device.make_stream());
  }
  const RangeReaderOptions ranges{
      .method = options.method, .direct = options.direct, .depth = kChunksUnderWay, .chunk_bytes = chunk_bytes(catalogue)};
  PM_ASSIGN_OR_RETURN(reader->ranges_, RangeReader::make(checkpoint, ranges, {reader->buffer_.bytes(), reader->buffer_.size_bytes()}));
  return reader;
}

Status ExpertReader::read(int moe_layer_idx, int expert_id, std::byte* slot, uint64_t compute_ticket,
                          RememberedDigest& remembered, ReadOutcome& outcome) {
  is_busy_.store(true, std::memory_order_release);
  Status status = read_and_check(moe_layer_idx, expert_id, slot, compute_ticket, remembered, outcome);
  is_busy_.store(false, std::memory_order_release);
  return status;
}

void ExpertReader::give_up() {
  // What it does between two waits is short, and its owner's checkpoint is still there.
  while (is_busy_.load(std::memory_order_acquire) && !ranges_->try_give_up()) std::this_thread::yield();
}

Status ExpertReader::read_and_check(int moe_layer_idx, int expert_id, std::byte* slot, uint64_t compute_ticket,
                                    RememberedDigest& remembered, ReadOutcome& outcome) {
  const ExpertInfo& info = catalogue_.at(moe_layer_idx, expert_id);
  const bool with_sha256 = info.sha256.has_value() && !remembered.known && !options_.verify_fast;
  sha256_.reset();
  xxh3_.reset();
  slot_ticket_ = compute_ticket;

  std::array<ExpertRun, kMaxExpertParts> runs;
  std::array<ByteRange, kMaxExpertParts> ranges;
  const auto n = static_cast<size_t>(expert_runs(info, runs));
  for (size_t i = 0; i < n; ++i) {
    const ExpertRun& run = runs[i];
    const uint64_t end = i + 1 < n ? runs[i + 1].slot_offset : slot_bytes_;
    ranges[i] = {.file_idx = run.file_idx, .offset = run.offset, .bytes = run.bytes};
    if (stream_ == nullptr) {
      ranges[i].target = slot + run.slot_offset;
      ranges[i].target_room = end - run.slot_offset;
    }
  }
  Status status = stream_ == nullptr ? await_slot() : ok_status();
  if (status.ok()) {
    status = ranges_->read(std::span(ranges).first(n), [&](const RangeReader::Chunk& chunk) {
      return take_chunk(info, runs[chunk.range_idx], chunk, slot, with_sha256, outcome);
    });
  }
  if (ranges_->is_given_up()) return status;
  for (size_t i = 0; options_.drop_page_cache && i < n; ++i) checkpoint_.forget(runs[i].file_idx, runs[i].offset, runs[i].bytes);
  if (!status.ok()) return status.with_context(catalogue_.describe(moe_layer_idx, expert_id, checkpoint_));
  return check(moe_layer_idx, expert_id, with_sha256, slot, remembered, outcome);
}

Status ExpertReader::take_chunk(const ExpertInfo& info, const ExpertRun& run, const RangeReader::Chunk& chunk, std::byte* slot,
                                bool with_sha256, ReadOutcome& outcome) {
  const uint64_t slot_offset = run.slot_offset + chunk.at;
  outcome.bytes += chunk.bytes.size();
  for (size_t i = 0; i < chunk.bytes.size(); i += kHashBytes) {
    const std::span<std::byte> piece = chunk.bytes.subspan(i, std::min(kHashBytes, chunk.bytes.size() - i));
    hash(info, piece, slot_offset + i, with_sha256);
    if (!chunk.is_in_place && stream_ == nullptr) std::memcpy(slot + slot_offset + i, piece.data(), piece.size());
  }
  if (stream_ == nullptr) return ok_status();
  PM_RETURN_IF_ERROR(await_slot());
  PM_RETURN_IF_ERROR(stream_->copy_to_device(slot + slot_offset, chunk.bytes.data(), chunk.bytes.size()));
  return stream_->synchronize();  // the buffer is read into next
}

// What of `bytes` belongs to parts; digests do not cover the padding.
void ExpertReader::hash(const ExpertInfo& info, std::span<const std::byte> bytes, uint64_t slot_offset, bool with_sha256) {
  for (const ExpertPartInfo& part : info.parts) {
    const uint64_t begin = std::max<uint64_t>(part.slot_offset, slot_offset);
    const uint64_t end = std::min<uint64_t>(part.slot_offset + part.size_bytes, slot_offset + bytes.size());
    if (begin >= end) continue;
    const auto piece = bytes.subspan(static_cast<size_t>(begin - slot_offset), static_cast<size_t>(end - begin));
    if (with_sha256) sha256_.update(piece);
    xxh3_.update(piece);
  }
}

Status ExpertReader::await_slot() {
  if (slot_ticket_ == 0) return ok_status();
  return compute_->wait_from_any_thread(std::exchange(slot_ticket_, 0));
}

void ExpertReader::warn_of_nonsense(int moe_layer_idx, int expert_id, std::byte* slot) {
  for (int p = 0; p < kNumWeightParts && warnings_left_ > 0; ++p) {
    const Weight w = catalogue_.at(moe_layer_idx, expert_id).weight(static_cast<ExpertPart>(p), slot);
    if (!w.format) continue;
    const std::string odd = magnitude_problem(w);
    if (odd.empty()) continue;
    log_warning("{}: {}{}", catalogue_.describe(moe_layer_idx, expert_id, checkpoint_), odd,
                --warnings_left_ == 0 ? "; no more of these" : "");
  }
}

Status ExpertReader::check(int moe_layer_idx, int expert_id, bool with_sha256, std::byte* slot, RememberedDigest& remembered,
                           ReadOutcome& outcome) {
  const ExpertInfo& info = catalogue_.at(moe_layer_idx, expert_id);
  const Xxh3Digest found = xxh3_.finish();
  if (remembered.known) {
    if (found != remembered.xxh3) {
      return error(StatusCode::kCorrupt,
                   "{}: the bytes are not those that were verified before in this process: xxh3 {} expected {}; the "
                   "file, the disk or the memory changed: run 'pointsman lock --check'",
                   catalogue_.describe(moe_layer_idx, expert_id, checkpoint_), to_hex(found), to_hex(remembered.xxh3));
    }
    outcome.verified_xxh3 = true;
    return ok_status();
  }
  if (with_sha256) {
    const Sha256Digest digest = sha256_.finish();
    if (digest != *info.sha256) {
      return error(StatusCode::kCorrupt,
                   "{}: sha256 {} expected {}; fetch the shard again, or run 'pointsman lock --check' for the whole list",
                   catalogue_.describe(moe_layer_idx, expert_id, checkpoint_), to_hex(digest), to_hex(*info.sha256));
    }
    outcome.verified_sha256 = true;
  }
  if (options_.verify_fast && info.xxh3) {
    if (found != *info.xxh3) {
      return error(StatusCode::kCorrupt,
                   "{}: xxh3 {} expected {}; fetch the shard again, or run 'pointsman lock --check' for the whole list",
                   catalogue_.describe(moe_layer_idx, expert_id, checkpoint_), to_hex(found), to_hex(*info.xxh3));
    }
    outcome.verified_lock_xxh3 = true;
  }
  remembered = {.xxh3 = found, .known = true};
  if (stream_ == nullptr) warn_of_nonsense(moe_layer_idx, expert_id, slot);
  return ok_status();
}

}  // namespace pointsman
