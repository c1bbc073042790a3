// SPDX-License-Identifier: Apache-2.0
#include "experts/reader.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pointsman {

Result<std::unique_ptr<ExpertReader>> ExpertReader::make(Device& device, Device& host, MemoryBudget& budget,
                                                         const Checkpoint& checkpoint, const ExpertCatalogue& catalogue,
                                                         Stream* compute, bool drop_page_cache, bool verify_fast) {
  auto reader = std::unique_ptr<ExpertReader>(new ExpertReader(checkpoint, catalogue, compute, drop_page_cache, verify_fast));
  if (!device.host_visible()) {
    PM_ASSIGN_OR_RETURN(reader->staging_, Buffer::make(host, budget, MemoryClass::kReadBuffers, kStagingBytesPerReader));
    PM_ASSIGN_OR_RETURN(reader->stream_, device.make_stream());
  }
  return reader;
}

Status ExpertReader::read(int moe_layer_idx, int expert_id, std::byte* slot, uint64_t compute_ticket,
                          RememberedDigest& remembered, ReadOutcome& outcome) {
  const ExpertInfo& info = catalogue_.at(moe_layer_idx, expert_id);
  const bool with_sha256 = info.sha256.has_value() && !remembered.known && !verify_fast_;
  sha256_.reset();
  xxh3_.reset();
  slot_ticket_ = compute_ticket;
  half_tickets_[0] = half_tickets_[1] = 0;

  Status status;
  for (size_t i = 0; i < info.parts.size() && status.ok();) {
    const ExpertPartInfo& first = info.parts[i];
    if (first.size_bytes == 0) {
      ++i;
      continue;
    }
    Run run = {first.file_idx, first.offset, first.size_bytes, first.slot_offset};
    for (++i; i < info.parts.size(); ++i) {
      const ExpertPartInfo& next = info.parts[i];
      if (next.file_idx != run.file_idx || next.offset != run.offset + run.bytes ||
          next.slot_offset != run.slot_offset + run.bytes)
        break;
      run.bytes += next.size_bytes;
    }
    status = read_run(run, slot, with_sha256, outcome);
  }
  if (stream_ != nullptr) {
    // Also after a failure: copies in flight still use the staging buffers and the slot.
    const Status copied = stream_->synchronize();
    if (status.ok()) status = copied;
  }
  if (!status.ok()) return status.with_context(catalogue_.describe(moe_layer_idx, expert_id, checkpoint_));
  return check(moe_layer_idx, expert_id, with_sha256, slot, remembered, outcome);
}

Status ExpertReader::read_run(const Run& run, std::byte* slot, bool with_sha256, ReadOutcome& outcome) {
  for (uint64_t done = 0; done < run.bytes;) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(kReadChunkBytes, run.bytes - done));
    std::byte* const place = slot + run.slot_offset + done;
    std::byte* target = place;
    if (stream_ != nullptr) {
      half_ ^= 1;
      PM_RETURN_IF_ERROR(stream_->wait(std::exchange(half_tickets_[half_], 0)));
      target = staging_.bytes() + static_cast<size_t>(half_) * kReadChunkBytes;
    } else {
      PM_RETURN_IF_ERROR(await_slot());
    }
    const std::span<std::byte> chunk(target, n);
    PM_RETURN_IF_ERROR(checkpoint_.read(run.file_idx, run.offset + done, chunk));
    outcome.bytes += n;
    if (with_sha256) sha256_.update(chunk);
    xxh3_.update(chunk);
    if (stream_ != nullptr) {
      PM_RETURN_IF_ERROR(await_slot());
      PM_RETURN_IF_ERROR(stream_->copy_to_device(place, target, n));
      half_tickets_[half_] = stream_->record();
    }
    done += n;
  }
  if (drop_page_cache_) checkpoint_.forget(run.file_idx, run.offset, run.bytes);
  return ok_status();
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
  if (verify_fast_ && info.xxh3) {
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
