// SPDX-License-Identifier: Apache-2.0
#include "doctor/lock_check.h"

#include <algorithm>
#include <vector>

#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"

namespace pointsman::doctor {
namespace {

constexpr uint64_t kChunkBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxSmallFile = uint64_t{1} << 30;

template <class ReadAt>
Result<Sha256Digest> hash(uint64_t bytes, ReadAt&& read) {
  Sha256 sha;
  std::vector<std::byte> buffer(std::min(kChunkBytes, std::max<uint64_t>(bytes, 1)));
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t n = std::min<uint64_t>(buffer.size(), bytes - at);
    PM_RETURN_IF_ERROR(read(at, std::span(buffer).first(n)));
    sha.update(std::span(buffer).first(n));
    at += n;
  }
  return sha.finish();
}

}  // namespace

Result<LockReport> check_lock_without_engine(FileSystem& fs, const std::string& model) {
  PM_ASSIGN_OR_RETURN(const LockFile lock, read_lock_file(fs, model));
  LockReport report;
  const auto compare = [&](const std::string& name, uint64_t bytes, const LockFile::Entry& entry,
                           const Result<Sha256Digest>& digest) {
    ++report.checked;
    report.bytes += bytes;
    if (!digest.ok()) {
      report.problems.push_back({name, digest.status().message()});
    } else if (*digest != entry.sha256) {
      report.problems.push_back({name, format("sha256 {} expected {}", to_hex(*digest), to_hex(entry.sha256))});
    }
  };
  for (const auto& [name, entry] : lock.files) {
    const Result<std::string> text = read_text_file(fs, join_path(model, name), kMaxSmallFile);
    if (!text.ok()) {
      ++report.checked;
      report.problems.push_back({name, text.status().message()});
      continue;
    }
    compare(name, text->size(), entry, hash(text->size(), [&](uint64_t at, std::span<std::byte> out) {
              const auto part = std::as_bytes(std::span(*text)).subspan(at, out.size());
              std::copy(part.begin(), part.end(), out.begin());
              return ok_status();
            }));
  }
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(fs, model));
  for (const auto& [name, entry] : lock.tensors) {
    const TensorEntry* tensor = checkpoint->find(name);
    if (tensor == nullptr) {
      ++report.checked;
      report.problems.push_back({name, "absent from the checkpoint"});
      continue;
    }
    compare(name, tensor->size_bytes, entry, hash(tensor->size_bytes, [&](uint64_t at, std::span<std::byte> out) {
              return checkpoint->read(tensor->file_idx, tensor->offset + at, out);
            }));
  }
  if (!lock.experts.empty())
    report.note = format("{} experts were not checked: this build is without the engine", lock.experts.size());
  return report;
}

}  // namespace pointsman::doctor
