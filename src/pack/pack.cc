// SPDX-License-Identifier: Apache-2.0
#include "pack/pack.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

#include "base/checked_math.h"
#include "base/log.h"
#include "base/staged_folder.h"
#include "base/thread.h"
#include "checkpoint/lockfile.h"
#include "pack/config.h"
#include "pack/converter.h"
#include "pack/plan.h"
#include "pack/progress_file.h"
#include "pack/side_files.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxProgressBytes = 1ull << 30;

Status interrupted() { return {StatusCode::kUnavailable, "interrupted; --resume goes on behind the last complete file"}; }

class Packer {
 public:
  Packer(FileSystem& fs, const PackPlan& plan, const PackOptions& options, StagedFolder& folder, PackProgress progress)
      : fs_(fs), plan_(plan), options_(options), folder_(folder), progress_(progress) {
    state_.fingerprint = plan.fingerprint();
    shards_.resize(plan.shards.size());
    for (size_t s = 0; s < plan.shards.size(); ++s) shards_[s].records_left = plan.shards[s].num_records;
  }

  // Takes over what an earlier run completed.
  Status resume() {
    const std::string path = join_path(folder_.directory(), kPackProgressName);
    Result<std::string> text = read_text_file(fs_, path, kMaxProgressBytes);
    if (!text.ok() && text.status().code() != StatusCode::kNotFound) return text.status();
    PackProgressFile before;
    if (text.ok()) {
      PM_ASSIGN_OR_RETURN(before, parse_progress_json(*text));
      if (before.fingerprint != state_.fingerprint) {
        return error(StatusCode::kInvalidArgument, "{}: was begun with another source or other options; start again without --resume", folder_.directory());
      }
    }
    for (size_t s = 0; s < plan_.shards.size(); ++s) {
      const ShardPlan& shard = plan_.shards[s];
      const auto it = before.files.find(shard.file_name);
      if (it == before.files.end()) continue;
      const Result<FileInfo> info = fs_.stat(join_path(folder_.directory(), shard.file_name));
      if (!info.ok() || info->size_bytes != it->second) continue;  // written again
      for (size_t r = shard.first_record; r < shard.first_record + shard.num_records; ++r) {
        const PackRecord& record = plan_.records[r];
        const auto found = before.records.find(record.name);
        if (found == before.records.end() || found->second.errors.size() != record.matrices.size()) {
          return error(StatusCode::kCorrupt, "{}: no digest of {}; start again without --resume", kPackProgressName, record.name);
        }
        state_.records[record.name] = found->second;
        resumed_bytes_ += record.source_bytes;
      }
      state_.files[shard.file_name] = it->second;
      shards_[s].done = true;
    }
    done_bytes_ = resumed_bytes_;
    return ok_status();
  }

  Status check_disk() const {
    uint64_t needed = 0;
    for (size_t s = 0; s < plan_.shards.size(); ++s) needed += shards_[s].done ? 0 : plan_.shards[s].data_bytes;
    const Result<uint64_t> free = free_disk_bytes(folder_.directory());
    if (free.ok() && *free < needed) {
      return error(StatusCode::kIo, "{}: {} bytes are needed there and {} are free; free some, or write to another disk", folder_.directory(), needed, *free);
    }
    return ok_status();
  }

  Status write_shards() {
    int threads = options_.threads;
    if (threads == 0) threads = std::min(16, 2 * usable_cpus());
    std::vector<Thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back([this] { work(); });
    work();
    workers.clear();
    std::lock_guard guard(mutex_);
    return status_;
  }

  const PackProgressFile& state() const { return state_; }
  uint64_t resumed_bytes() const { return resumed_bytes_; }
  uint64_t complete_files() const { return state_.files.size(); }

 private:
  struct Shard {
    bool done = false;
    size_t records_left = 0;
    std::unique_ptr<SafetensorsWriter> writer;
  };

  void fail(Status status) {
    std::lock_guard guard(mutex_);
    if (status_.ok()) status_ = std::move(status);
    stop_ = true;
  }

  // The next record, its shard and the shard's writer. False when there is none.
  bool take(size_t& record, size_t& shard_idx) {
    std::lock_guard guard(mutex_);
    while (next_shard_ < plan_.shards.size()) {
      const ShardPlan& shard = plan_.shards[next_shard_];
      if (shards_[next_shard_].done || next_in_shard_ == shard.num_records) {
        ++next_shard_;
        next_in_shard_ = 0;
        continue;
      }
      if (shards_[next_shard_].writer == nullptr) {
        Status s = open_shard(next_shard_);
        if (!s.ok()) {
          if (status_.ok()) status_ = std::move(s);
          stop_ = true;
          return false;
        }
      }
      record = shard.first_record + next_in_shard_++;
      shard_idx = next_shard_;
      return true;
    }
    return false;
  }

  Status open_shard(size_t s) {
    const ShardPlan& shard = plan_.shards[s];
    PM_ASSIGN_OR_RETURN(shards_[s].writer, SafetensorsWriter::create(fs_, join_path(folder_.directory(), shard.file_name), shard.tensors, {{"format", "pt"}},
                                                                     kRecordAlignment));
    for (const SafetensorsWriter::Declaration& t : shard.tensors) {
      if (t.name.starts_with(kPaddingPrefix)) PM_RETURN_IF_ERROR(shards_[s].writer->leave_hole(t.name));
    }
    return ok_status();
  }

  void work() {
    Converter converter(*plan_.source);
    std::vector<std::byte> buffer;
    size_t r, s;
    while (!stop_ && take(r, s)) {
      PackedRecord out;
      Status status = write_record(plan_.records[r], *shards_[s].writer, converter, buffer, out);
      if (status.ok()) status = finish_record(r, s, std::move(out));
      if (!status.ok()) return fail(std::move(status));
    }
  }

  bool report(uint64_t bytes) { return progress_(done_bytes_ += bytes, plan_.source_bytes) && !stop_; }

  Status write_record(const PackRecord& record, SafetensorsWriter& writer, Converter& converter, std::vector<std::byte>& buffer, PackedRecord& out) {
    Sha256 hash;
    if (record.copied != nullptr) {
      const TensorEntry& t = *record.copied;
      buffer.resize(std::min<uint64_t>(t.size_bytes, 2 << 20));
      for (uint64_t at = 0; at < t.size_bytes;) {
        const std::span<std::byte> piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), t.size_bytes - at));
        PM_RETURN_IF_ERROR(plan_.source->read(t.file_idx, t.offset + at, piece));
        hash.update(piece);
        PM_RETURN_IF_ERROR(writer.write(record.name, at, piece));
        at += piece.size();
        if (!report(piece.size())) return interrupted();
      }
      out.digests.push_back(hash.finish());
      return ok_status();
    }
    // The digest of an expert goes over all weights first, then over the scales.
    Xxh3 fast;
    const auto digest = [&](std::span<const std::byte> bytes) {
      hash.update(bytes);
      if (record.is_expert()) fast.update(bytes);
    };
    std::vector<std::vector<std::byte>> scales;
    for (const MatrixJob& job : record.matrices) {
      QuantisationError error;
      const auto sink = [&](uint64_t offset, std::span<const std::byte> bytes) {
        digest(bytes);
        return writer.write(job.name, offset, bytes);
      };
      PM_RETURN_IF_ERROR(converter.convert(job, sink, [&](uint64_t bytes) { return report(bytes); }, error));
      out.errors.push_back(error);
      if (!record.is_expert()) {
        out.digests.push_back(hash.finish());
        hash.reset();
      }
      scales.emplace_back(converter.scales().begin(), converter.scales().end());
    }
    for (size_t i = 0; i < scales.size(); ++i) {
      if (scales[i].empty()) continue;
      digest(scales[i]);
      PM_RETURN_IF_ERROR(writer.write(record.matrices[i].scale_name, 0, scales[i]));
      if (!record.is_expert()) out.digests.push_back(hash.finish());
    }
    if (!record.is_expert()) return ok_status();
    out.digests.push_back(hash.finish());
    out.xxh3 = fast.finish();
    return ok_status();
  }

  // Whoever finishes the last record of a file completes it, while the others go on with the next.
  Status finish_record(size_t r, size_t s, PackedRecord out) {
    Shard& shard = shards_[s];
    {
      std::lock_guard guard(mutex_);
      unfinished_.emplace(plan_.records[r].name, std::move(out));
      if (--shard.records_left > 0) return ok_status();
    }
    PM_RETURN_IF_ERROR(shard.writer->commit());
    const std::string path = join_path(folder_.directory(), plan_.shards[s].file_name);
    PM_ASSIGN_OR_RETURN(const FileInfo info, fs_.stat(path));
    std::string noted;
    // Written outside the lock of the others: flushing may take as long as the disk has work. One after the other, so that none is lost.
    std::lock_guard writing(progress_mutex_);
    {
      std::lock_guard guard(mutex_);
      shard.writer.reset();
      shard.done = true;
      const ShardPlan& plan = plan_.shards[s];
      state_.files[plan.file_name] = info.size_bytes;
      for (size_t i = plan.first_record; i < plan.first_record + plan.num_records; ++i) {
        const auto it = unfinished_.find(plan_.records[i].name);
        state_.records.emplace(it->first, std::move(it->second));
        unfinished_.erase(it);
      }
      noted = progress_to_json(state_);
    }
    return write_text_file(fs_, join_path(folder_.directory(), kPackProgressName), noted);
  }

  FileSystem& fs_;
  const PackPlan& plan_;
  const PackOptions& options_;
  StagedFolder& folder_;
  PackProgress progress_;
  std::atomic<uint64_t> done_bytes_{0};
  std::atomic<bool> stop_{false};
  uint64_t resumed_bytes_ = 0;

  std::mutex progress_mutex_;  // of the progress file; before mutex_
  std::mutex mutex_;           // of everything below
  size_t next_shard_ = 0, next_in_shard_ = 0;
  std::vector<Shard> shards_;
  std::map<std::string, PackedRecord, std::less<>> unfinished_;  // of files that are not complete
  PackProgressFile state_;
  Status status_;
};

void describe(const PackPlan& plan, const PackProgressFile& state, PackReport& report) {
  for (const PackRecord& record : plan.records) {
    const auto it = state.records.find(record.name);
    if (it == state.records.end()) continue;
    (record.is_expert() ? report.experts : report.tensors) += 1;
    for (size_t i = 0; i < record.matrices.size(); ++i) {
      const MatrixJob& job = record.matrices[i];
      MatrixReport m{.name = job.name,
                     .unit = record.unit,
                     .from = stored_format_name(job.from),
                     .to = stored_format_name(job.to),
                     .layout = std::string(layout_name(job.to.layout)),
                     .is_exact = job.is_permutation(),
                     .error = it->second.errors[i]};
      report.matrices.push_back(std::move(m));
    }
  }
  find_abnormal_experts(report);
}

}  // namespace

Result<PackReport> run_pack(FileSystem& fs, const std::string& model, const std::string& out, const PackOptions& options, const PackIdentity& identity,
                            PackProgress progress) {
  const auto start = std::chrono::steady_clock::now();
  PM_ASSIGN_OR_RETURN(const PackPlan plan, make_pack_plan(fs, model, options));
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<StagedFolder> folder, StagedFolder::open(out, options.resume));
  Packer packer(fs, plan, options, *folder, progress);
  const auto pack = [&]() -> Status {
    if (options.resume) PM_RETURN_IF_ERROR(packer.resume());
    PM_RETURN_IF_ERROR(packer.check_disk());
    PM_RETURN_IF_ERROR(packer.write_shards());
    return write_side_files(fs, model, folder->directory(), plan, options, packer.state(), identity);
  };
  if (const Status s = pack(); !s.ok()) {
    if (packer.complete_files() == 0) {
      // What an earlier run left is not this one's to remove: it may have been asked for with other options.
      if (!options.resume) folder->discard();
      return s;
    }
    if (s.code() != StatusCode::kIo) return s;
    return error(s.code(), "{}; {} complete files are kept in {}: run again with --resume", s.message(), packer.complete_files(), folder->directory());
  }
  PackReport report;
  PM_ASSIGN_OR_RETURN(const LockFile lock, read_lock_file(fs, folder->directory()));
  PM_RETURN_IF_ERROR(folder->commit());
  PM_RETURN_IF_ERROR(folder->remove(kPackProgressName));
  describe(plan, packer.state(), report);
  report.formats = plan.formats;
  report.source_bytes = plan.source_bytes;
  report.output_bytes = plan.output_bytes;
  report.resumed_bytes = packer.resumed_bytes();
  report.files = plan.shards.size();
  report.model_digest = to_hex(lock.model_digest());
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace pointsman
