// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/gpt_oss_names.h"
#include "checkpoint/lfs_pointer.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace pointsman {
namespace {

constexpr const char* kSingleName = "model.safetensors";
// 140,000 tensors make an index of about 12 MB.
constexpr uint64_t kMaxIndexBytes = 256ull << 20;
// A second descriptor each, within what a process may have; the others are opened for each read.
constexpr uint32_t kMaxOpenDirectFiles = 128;

// Counts every name, keeps the first ten: a listing that stays readable when 10^5 tensors are missing.
class Listing {
 public:
  void add(std::string_view name) {
    if (count_++ < 10) text_ += (text_.empty() ? "" : ", ") + std::string(name);
  }
  size_t count() const { return count_; }
  std::string text() const { return count_ <= 10 ? text_ : format("{} and {} more", text_, count_ - 10); }

 private:
  size_t count_ = 0;
  std::string text_;
};

// What a shard contributes while the folder is being read; names move on into the one table.
struct Found {
  SafetensorsEntry entry;
  uint32_t file_idx;
};

// Tensors of a first release under the names of transformers. The files have been checked by their own names.
Status use_known_names(const std::string& directory, std::vector<Found>& found) {
  std::vector<SafetensorsEntry*> entries;
  entries.reserve(found.size());
  for (Found& f : found) entries.push_back(&f.entry);
  if (!has_gpt_oss_names(entries)) return ok_status();
  std::vector<CutEntry> more;
  PM_RETURN_IF_ERROR(rename_gpt_oss(entries, more));
  for (CutEntry& cut : more) found.push_back({std::move(cut.entry), found[cut.from].file_idx});
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.entry.name < b.entry.name; });
  const auto twice = std::adjacent_find(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.entry.name == b.entry.name; });
  if (twice != found.end()) return error(StatusCode::kCorrupt, "{} is stored under the original name of gpt-oss and under this one, too", twice->entry.name);
  log_info("{}: gpt-oss under its original names (block.N...); those of transformers are shown", directory);
  return ok_status();
}

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Status removed(const std::string& path) {
  return error(StatusCode::kCorrupt, "{}: the file was removed while in use; fetch it and load the model again", path);
}

}  // namespace

std::string shape_string(const TensorEntry& t) {
  std::string text = "[";
  for (int i = 0; i < t.num_dims; ++i) text += (i == 0 ? "" : ", ") + std::to_string(t.shape[i]);
  return text + "]";
}

struct Checkpoint::Impl {
  FileSystem* fs = nullptr;
  std::string directory;
  CheckpointOptions options;
  std::string names;                 // every tensor name, one after the other
  std::vector<TensorEntry> tensors;  // sorted by name
  std::vector<CheckpointFile> files;
  std::vector<std::shared_ptr<File>> handles;  // null beyond max_open_files
  mutable std::mutex direct_mutex;
  mutable std::vector<std::shared_ptr<File>> direct_handles;  // of the first kMaxOpenDirectFiles, each opened when it is first needed
  // When the name of each file was last seen to lead to the same inode, milliseconds of the steady clock.
  std::unique_ptr<std::atomic<int64_t>[]> path_checked_ms;

  std::string path(uint32_t file_idx) const { return join_path(directory, files[file_idx].name); }
  Result<std::unique_ptr<File>> open_checked(const std::string& name) const;
  Status add_file(const std::string& name, std::vector<Found>& found);
  Status add_shards(const ShardIndex& index, const std::string& index_path, std::vector<Found>& found);
  Status check_against_index(const ShardIndex& index, const std::string& index_path, const std::vector<Found>& found) const;
  void warn_of_strays(const std::vector<std::string>& names) const;
  void build_table(std::vector<Found>& found);
  Status compare(uint32_t file_idx, const FileInfo& now) const;
  Status check_unchanged(uint32_t file_idx, File& file) const;
};

Result<std::unique_ptr<File>> Checkpoint::Impl::open_checked(const std::string& name) const {
  const std::string file_path = join_path(directory, name);
  // stat before open: opening a device or a pipe can have effects.
  PM_ASSIGN_OR_RETURN(const FileInfo info, fs->stat(file_path));
  if (!info.is_regular)
    return error(StatusCode::kUnsupported, "{}: a folder, pipe or device, expected a regular file", file_path);
  return fs->open(file_path);
}

Status Checkpoint::Impl::add_file(const std::string& name, std::vector<Found>& found) {
  PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, open_checked(name));
  PM_ASSIGN_OR_RETURN(const FileInfo info, file->stat());
  PM_ASSIGN_OR_RETURN(SafetensorsHeader header, read_safetensors_header(*file, info.size_bytes, options.max_header_bytes));
  if (header.entries.size() > options.max_tensors - found.size()) {
    return error(StatusCode::kUnsupported, "{}: the checkpoint has more than {} tensors", file->path(), options.max_tensors);
  }
  const auto file_idx = static_cast<uint32_t>(files.size());
  if (found.empty()) found.reserve(header.entries.size());
  for (SafetensorsEntry& e : header.entries) found.push_back({std::move(e), file_idx});
  files.push_back({name, info});
  handles.push_back(files.size() <= options.max_open_files ? std::move(file) : nullptr);
  return ok_status();
}

Status Checkpoint::Impl::add_shards(const ShardIndex& index, const std::string& index_path, std::vector<Found>& found) {
  Listing missing;
  Status dangling;
  for (const std::string& shard : index.shards) {
    const Result<FileInfo> info = fs->stat(join_path(directory, shard));
    if (info.ok()) continue;
    if (info.status().code() != StatusCode::kNotFound) return info.status();
    if (missing.count() == 0) dangling = info.status();
    missing.add(shard);
  }
  // One shard: the system's own words also tell a dangling link from an absent name.
  if (missing.count() == 1) {
    return error(StatusCode::kNotFound, "{}: 1 of {} shards is missing: {}; fetch it into the model folder ({})", index_path,
                 index.shards.size(), missing.text(), dangling.message());
  }
  if (missing.count() > 1) {
    return error(StatusCode::kNotFound, "{}: {} of {} shards are missing: {}; fetch them into the model folder", index_path,
                 missing.count(), index.shards.size(), missing.text());
  }
  for (const std::string& shard : index.shards) PM_RETURN_IF_ERROR(add_file(shard, found));
  return ok_status();
}

// Both directions: what the index names must be in the shard it names, and a shard holds nothing that the index does not name.
// REQUIRES: `found` is sorted by name.
Status Checkpoint::Impl::check_against_index(const ShardIndex& index, const std::string& index_path,
                                             const std::vector<Found>& found) const {
  Listing absent, elsewhere, unmentioned;
  uint64_t total = 0;
  size_t i = 0;
  for (const auto& [tensor, shard] : index.weight_map) {
    for (; i < found.size() && found[i].entry.name < tensor; ++i)
      unmentioned.add(format("{} (in {})", found[i].entry.name, files[found[i].file_idx].name));
    if (i == found.size() || found[i].entry.name != tensor) {
      absent.add(format("{} ({})", tensor, index.shards[shard]));
      continue;
    }
    // Shards are opened in the order of the index, so positions agree.
    if (found[i].file_idx != shard)
      elsewhere.add(format("{} (in {}, not in {})", tensor, files[found[i].file_idx].name, index.shards[shard]));
    ++i;
  }
  for (; i < found.size(); ++i) unmentioned.add(format("{} (in {})", found[i].entry.name, files[found[i].file_idx].name));
  if (absent.count() > 0) {
    return error(
        StatusCode::kCorrupt,
        "{}: {} of {} tensors are in no shard: {}; the shards and the index are of different versions: fetch them again",
        index_path, absent.count(), index.weight_map.size(), absent.text());
  }
  if (elsewhere.count() > 0) {
    return error(StatusCode::kCorrupt,
                 "{}: {} tensors are in another shard than the index says: {}; fetch index and shards again", index_path,
                 elsewhere.count(), elsewhere.text());
  }
  if (unmentioned.count() > 0) {
    return error(StatusCode::kCorrupt, "{}: {} tensors of the shards are not in the index: {}; fetch index and shards again",
                 index_path, unmentioned.count(), unmentioned.text());
  }
  for (const Found& f : found) total += f.entry.size_bytes;
  if (index.total_size && *index.total_size != total) {
    log_warning("{}: metadata.total_size says {}, the tensors have {} bytes; the tensors are used", index_path,
                *index.total_size, total);
  }
  return ok_status();
}

void Checkpoint::Impl::warn_of_strays(const std::vector<std::string>& names_in_folder) const {
  Listing stray;
  std::vector<std::string_view> used;
  for (const CheckpointFile& f : files) used.push_back(f.name);
  std::sort(used.begin(), used.end());
  for (const std::string& name : names_in_folder) {
    if (name.ends_with(".safetensors") && !std::binary_search(used.begin(), used.end(), name)) stray.add(name);
  }
  if (stray.count() > 0) {
    log_warning("{}: ignored, as they are not part of the checkpoint: {} ({} in all)", directory, stray.text(), stray.count());
  }
}

// REQUIRES: `found` is sorted by name.
void Checkpoint::Impl::build_table(std::vector<Found>& found) {
  size_t total = 0;
  for (const Found& f : found) total += f.entry.name.size();
  names.reserve(total);  // views into it must stay
  tensors.reserve(found.size());
  for (const auto& [e, file_idx] : found) {
    const size_t begin = names.size();
    names += e.name;
    TensorEntry t{.name = std::string_view(names).substr(begin),
                  .dtype = e.dtype,
                  .num_dims = e.num_dims,
                  .file_idx = file_idx,
                  .offset = e.offset,
                  .size_bytes = e.size_bytes};
    std::copy(std::begin(e.shape), std::end(e.shape), std::begin(t.shape));
    tensors.push_back(t);
  }
  path_checked_ms = std::make_unique<std::atomic<int64_t>[]>(files.size());
  for (size_t i = 0; i < files.size(); ++i) path_checked_ms[i] = now_ms();
}

Status Checkpoint::Impl::compare(uint32_t file_idx, const FileInfo& now) const {
  const FileInfo& then = files[file_idx].info;
  const bool is_same_file = now.inode == then.inode && now.device == then.device;
  if (!is_same_file)
    return error(StatusCode::kCorrupt, "{}: the file was replaced while in use; load the model again", path(file_idx));
  if (now.size_bytes < then.size_bytes) {
    return error(StatusCode::kCorrupt, "{}: the file was truncated while in use: {} bytes, expected {}", path(file_idx),
                 now.size_bytes, then.size_bytes);
  }
  if (now.size_bytes != then.size_bytes || now.mtime_ns != then.mtime_ns) {
    return error(StatusCode::kCorrupt, "{}: the file was written to while in use ({} bytes, {} at load); load the model again",
                 path(file_idx), now.size_bytes, then.size_bytes);
  }
  return ok_status();
}

Status Checkpoint::Impl::check_unchanged(uint32_t file_idx, File& file) const {
  PM_ASSIGN_OR_RETURN(const FileInfo info, file.stat());
  PM_RETURN_IF_ERROR(compare(file_idx, info));
  // An open descriptor outlives a rename over its name: only the name tells.
  const int64_t now = now_ms();
  std::atomic<int64_t>& checked = path_checked_ms[file_idx];
  if (now - checked.load(std::memory_order_relaxed) < options.path_check_interval_ms) return ok_status();
  Result<FileInfo> named = fs->stat(file.path());  // the path it was opened by: joining it anew would allocate in a decode step
  if (!named.ok()) {
    return named.status().code() == StatusCode::kNotFound ? removed(path(file_idx)) : named.status();
  }
  PM_RETURN_IF_ERROR(compare(file_idx, *named));
  checked.store(now, std::memory_order_relaxed);
  return ok_status();
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

namespace {

// The index to use, or nothing when the folder's single file is the checkpoint.
Result<std::optional<ShardIndex>> choose_index(FileSystem& fs, const std::string& directory, bool has_single, bool has_index) {
  if (!has_index) return std::optional<ShardIndex>();
  const std::string path = join_path(directory, kShardIndexName);
  PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, path, kMaxIndexBytes));
  if (is_lfs_pointer(text)) return lfs_pointer_error(path);
  Result<ShardIndex> parsed = parse_shard_index(text);
  if (!parsed.ok()) return parsed.status().with_context(path);
  if (has_single && !std::binary_search(parsed->shards.begin(), parsed->shards.end(), kSingleName)) {
    log_warning("{}: does not mention {}, which is in the folder; the index is stale and ignored, the file is used", path,
                kSingleName);
    return std::optional<ShardIndex>();
  }
  return std::optional<ShardIndex>(std::move(*parsed));
}

Status nothing_to_read(const std::string& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    for (const char* ending : {".bin", ".pt", ".pth", ".pkl", ".ckpt"}) {
      if (!name.ends_with(ending)) continue;
      return error(StatusCode::kUnsupported,
                   "{}: only pickled weights ({}), which can run code when read and are never opened; convert them where you "
                   "trust them: load with "
                   "transformers and call save_pretrained(path, safe_serialization=True)",
                   directory, name);
    }
  }
  for (const std::string& name : names) {
    if (name.ends_with(".gguf"))
      return error(StatusCode::kUnsupported, "{}: a GGUF file ({}); use the safetensors checkpoint it was made from", directory,
                   name);
  }
  return error(StatusCode::kNotFound, "{}: neither {} nor {}; expected a Hugging Face model folder", directory, kSingleName,
               kShardIndexName);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(FileSystem& fs, const std::string& directory, CheckpointOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->fs = &fs;
  impl->directory = directory;
  impl->options = options;
  PM_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  const auto has = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  PM_ASSIGN_OR_RETURN(const std::optional<ShardIndex> index,
                      choose_index(fs, directory, has(kSingleName), has(kShardIndexName)));
  const std::string index_path = join_path(directory, kShardIndexName);
  std::vector<Found> found;
  if (index) {
    PM_RETURN_IF_ERROR(impl->add_shards(*index, index_path, found));
  } else if (has(kSingleName)) {
    PM_RETURN_IF_ERROR(impl->add_file(kSingleName, found));
  } else {
    return nothing_to_read(directory, names);
  }
  // One file is sorted already.
  if (impl->files.size() > 1)
    std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.entry.name < b.entry.name; });
  const auto twice = std::adjacent_find(found.begin(), found.end(),
                                        [](const Found& a, const Found& b) { return a.entry.name == b.entry.name; });
  if (twice != found.end()) {
    return error(StatusCode::kCorrupt, "{}: tensor {} is in two shards, {} and {}; fetch index and shards again", index_path,
                 twice->entry.name, impl->files[twice->file_idx].name, impl->files[std::next(twice)->file_idx].name);
  }
  if (index) PM_RETURN_IF_ERROR(impl->check_against_index(*index, index_path, found));
  impl->warn_of_strays(names);
  PM_RETURN_IF_ERROR(use_known_names(directory, found).with_context(directory));
  impl->build_table(found);
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

const std::string& Checkpoint::directory() const {
  return impl_->directory;
}
FileSystem& Checkpoint::fs() const {
  return *impl_->fs;
}
std::span<const TensorEntry> Checkpoint::tensors() const {
  return impl_->tensors;
}
std::span<const CheckpointFile> Checkpoint::files() const {
  return impl_->files;
}

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto it = std::lower_bound(impl_->tensors.begin(), impl_->tensors.end(), name,
                                   [](const TensorEntry& t, std::string_view n) { return t.name < n; });
  return it != impl_->tensors.end() && it->name == name ? &*it : nullptr;
}

uint64_t Checkpoint::table_bytes() const {
  uint64_t bytes = sizeof(Impl) + impl_->names.capacity() + impl_->tensors.capacity() * sizeof(TensorEntry);
  for (const CheckpointFile& f : impl_->files)
    bytes += 2 * sizeof(CheckpointFile) + 3 * f.name.size() + impl_->directory.size() + 64;
  return bytes;
}

Result<std::shared_ptr<File>> Checkpoint::open_file(uint32_t file_idx, bool direct) const {
  PM_CHECK(file_idx < impl_->files.size());
  const auto buffered = [&]() -> Result<std::shared_ptr<File>> {
    if (impl_->handles[file_idx] != nullptr) return impl_->handles[file_idx];
    Result<std::unique_ptr<File>> opened = impl_->open_checked(impl_->files[file_idx].name);
    if (!opened.ok()) return opened.status().code() == StatusCode::kNotFound ? removed(impl_->path(file_idx)) : opened.status();
    return std::shared_ptr<File>(std::move(*opened));
  };
  if (!direct) return buffered();
  if (file_idx < kMaxOpenDirectFiles) {
    std::lock_guard lock(impl_->direct_mutex);
    if (file_idx < impl_->direct_handles.size() && impl_->direct_handles[file_idx] != nullptr) return impl_->direct_handles[file_idx];
  }
  PM_ASSIGN_OR_RETURN(const std::shared_ptr<File> base, buffered());
  PM_ASSIGN_OR_RETURN(std::unique_ptr<File> opened, base->open_direct());
  std::shared_ptr<File> file = std::move(opened);
  if (file_idx < kMaxOpenDirectFiles) {
    std::lock_guard lock(impl_->direct_mutex);
    if (impl_->direct_handles.size() <= file_idx) impl_->direct_handles.resize(file_idx + 1);
    impl_->direct_handles[file_idx] = file;
  }
  return file;
}

Status Checkpoint::check_unchanged(uint32_t file_idx, File& file) const {
  return impl_->check_unchanged(file_idx, file);
}

Status Checkpoint::read(uint32_t file_idx, uint64_t offset, std::span<std::byte> out) const {
  const auto at = [&](const Status& status) {
    return error(status.code(), "{} (reading {} bytes at {:#x})", status.message(), out.size(), offset);
  };
  const Result<std::shared_ptr<File>> file = open_file(file_idx, /*direct=*/false);
  if (!file.ok()) return at(file.status());
  const Status status = read_exact(**file, out, offset);
  // After the read: bytes that came from a file whose mtime has not moved since open() are the file's. A failed read is
  // explained by a changed file, if that is what happened.
  if (Status unchanged = check_unchanged(file_idx, **file); !unchanged.ok()) return at(unchanged);
  return status.ok() ? status : at(status);
}

void Checkpoint::forget(uint32_t file_idx, uint64_t offset, uint64_t bytes) const {
  PM_CHECK(file_idx < impl_->files.size());
  if (File* file = impl_->handles[file_idx].get()) {
    file->forget(offset, bytes);
  } else if (Result<std::unique_ptr<File>> opened = impl_->open_checked(impl_->files[file_idx].name); opened.ok()) {
    (*opened)->forget(offset, bytes);  // the page cache belongs to the file, not to the descriptor
  }
}

}  // namespace pointsman
