// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"

namespace pointsman {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kSingleName = "model.safetensors";
constexpr uint64_t kMaxIndexBytes = 256ull << 20;
constexpr size_t kMaxShards = 10'000;
constexpr size_t kMaxListed = 10;

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20; });
}

// At most ten names, and how many more there are.
std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMaxListed) text += format(" and {} more", names.size() - kMaxListed);
  return text;
}

// tensor name -> shard file name, and the shard names in order.
struct ShardIndex {
  std::vector<std::pair<std::string, std::string>> weight_map;
  std::vector<std::string> shards;
  uint64_t total_size = 0;  // 0: not said
};

Result<ShardIndex> parse_index(const std::string& path, std::string_view text) {
  PM_ASSIGN_OR_RETURN(Json json, parse_json(text, {.max_depth = 8}));
  const Json* map = json.find("weight_map");
  if (map == nullptr || !map->is_object()) return error(StatusCode::kCorrupt, "{}: no object \"weight_map\"", path);
  ShardIndex index;
  std::set<std::string> shards;
  for (const auto& [tensor, file] : map->as_object()) {
    if (!file.is_string()) return error(StatusCode::kCorrupt, "{}: the shard of {} is no string", path, tensor);
    if (!is_plain_file_name(file.as_string()) || !file.as_string().ends_with(".safetensors")) {
      return error(StatusCode::kCorrupt, "{}: the shard of {} is {}: expected the plain name of a .safetensors file in the same folder", path,
                   tensor, json_quote(file.as_string().substr(0, 128)));
    }
    shards.insert(file.as_string());
    if (shards.size() > kMaxShards) return error(StatusCode::kUnsupported, "{}: more than {} shards", path, kMaxShards);
    index.weight_map.emplace_back(tensor, file.as_string());
  }
  if (shards.empty()) return error(StatusCode::kCorrupt, "{}: \"weight_map\" is empty", path);
  index.shards.assign(shards.begin(), shards.end());
  if (const Json* metadata = json.find("metadata")) {
    if (const Json* total = metadata->find("total_size"); total != nullptr && total->is_number() && total->as_double() >= 0) {
      index.total_size = static_cast<uint64_t>(total->as_double());
    }
  }
  return index;
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
  std::string names;                  // every tensor name, one after the other
  std::vector<TensorEntry> tensors;   // sorted by name
  std::vector<CheckpointFile> files;
  std::vector<std::unique_ptr<File>> handles;

  Status add_file(const std::string& name, const CheckpointOptions& options, std::vector<SafetensorsEntry>& out);
  Status add_shards(const ShardIndex& index, const std::string& index_path, const CheckpointOptions& options,
                    std::vector<std::pair<SafetensorsEntry, uint32_t>>& entries);
  void build_table(std::vector<std::pair<SafetensorsEntry, uint32_t>> entries);
  Status check_unchanged(uint32_t file_idx, uint64_t offset) const;
};

Status Checkpoint::Impl::add_file(const std::string& name, const CheckpointOptions& options, std::vector<SafetensorsEntry>& out) {
  const std::string path = join_path(directory, name);
  // stat before open: a name that is no regular file must not be opened at all.
  PM_ASSIGN_OR_RETURN(const FileInfo before, fs->stat(path));
  if (!before.is_regular) return error(StatusCode::kUnsupported, "{}: not a regular file", path);
  PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs->open(path));
  PM_ASSIGN_OR_RETURN(const FileInfo info, file->stat());
  PM_ASSIGN_OR_RETURN(SafetensorsHeader header, read_safetensors_header(*file, info.size_bytes, options.max_header_bytes));
  files.push_back({name, info});
  handles.push_back(std::move(file));
  out = std::move(header.entries);
  return ok_status();
}

Status Checkpoint::Impl::add_shards(const ShardIndex& index, const std::string& index_path, const CheckpointOptions& options,
                                    std::vector<std::pair<SafetensorsEntry, uint32_t>>& entries) {
  std::vector<std::string> absent;
  for (const std::string& shard : index.shards) {
    const Result<FileInfo> info = fs->stat(join_path(directory, shard));
    if (!info.ok() && info.status().code() == StatusCode::kNotFound) absent.push_back(shard);
  }
  if (!absent.empty()) {
    return error(StatusCode::kNotFound, "{}: {} of {} shards missing: {}; fetch them into the model folder", index_path, absent.size(),
                 index.shards.size(), list(absent));
  }
  std::map<std::string_view, uint32_t> file_of;
  for (const std::string& shard : index.shards) {
    std::vector<SafetensorsEntry> found;
    PM_RETURN_IF_ERROR(add_file(shard, options, found));
    const uint32_t file_idx = static_cast<uint32_t>(files.size() - 1);
    file_of[shard] = file_idx;
    for (SafetensorsEntry& e : found) entries.emplace_back(std::move(e), file_idx);
    if (entries.size() > options.max_tensors) return error(StatusCode::kUnsupported, "{}: more than {} tensors", index_path, options.max_tensors);
  }
  // Both directions: what the index names must be in the shard it names, and a shard holds nothing that the index does not name.
  std::map<std::string_view, uint32_t> where;
  for (const auto& [e, file_idx] : entries) {
    const auto [it, fresh] = where.emplace(e.name, file_idx);
    if (!fresh) return error(StatusCode::kCorrupt, "{}: tensor {} is in two shards, {} and {}", index_path, e.name, files[it->second].name, files[file_idx].name);
  }
  std::vector<std::string> not_there, elsewhere;
  for (const auto& [tensor, shard] : index.weight_map) {
    const auto it = where.find(tensor);
    if (it == where.end()) {
      not_there.push_back(format("{} ({})", tensor, shard));
    } else if (it->second != file_of[shard]) {
      elsewhere.push_back(format("{} (in {}, not {})", tensor, files[it->second].name, shard));
    } else {
      where.erase(it);
    }
  }
  if (!not_there.empty()) return error(StatusCode::kCorrupt, "{}: {} tensors are not in the shard that the index names: {}", index_path, not_there.size(), list(not_there));
  if (!elsewhere.empty()) return error(StatusCode::kCorrupt, "{}: {} tensors lie in another shard: {}", index_path, elsewhere.size(), list(elsewhere));
  if (!where.empty()) {
    std::vector<std::string> stray;
    for (const auto& [name, file_idx] : where) stray.push_back(format("{} ({})", name, files[file_idx].name));
    return error(StatusCode::kCorrupt, "{}: {} tensors in the shards are not in the index: {}", index_path, stray.size(), list(stray));
  }
  uint64_t total = 0;
  for (const auto& [e, file_idx] : entries) total += e.size_bytes;
  if (index.total_size != 0 && index.total_size != total) {
    log_warning("{}: metadata.total_size says {}, the tensors have {} bytes", index_path, index.total_size, total);
  }
  return ok_status();
}

void Checkpoint::Impl::build_table(std::vector<std::pair<SafetensorsEntry, uint32_t>> entries) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.first.name < b.first.name; });
  size_t total = 0;
  for (const auto& [e, file_idx] : entries) total += e.name.size();
  names.reserve(total);
  tensors.reserve(entries.size());
  for (const auto& [e, file_idx] : entries) {
    const size_t begin = names.size();
    names += e.name;
    TensorEntry t{.name = std::string_view(names).substr(begin), .dtype = e.dtype, .num_dims = e.num_dims, .file_idx = file_idx,
                  .offset = e.offset, .size_bytes = e.size_bytes};
    std::copy(std::begin(e.shape), std::end(e.shape), std::begin(t.shape));
    tensors.push_back(t);
  }
}

Status Checkpoint::Impl::check_unchanged(uint32_t file_idx, uint64_t offset) const {
  const CheckpointFile& file = files[file_idx];
  PM_ASSIGN_OR_RETURN(const FileInfo now, handles[file_idx]->stat());
  if (now.size_bytes < file.info.size_bytes) {
    return error(StatusCode::kCorrupt, "{} @ {:#x}: the file was truncated while in use: {} bytes, {} when it was opened", handles[file_idx]->path(),
                 offset, now.size_bytes, file.info.size_bytes);
  }
  if (now.size_bytes != file.info.size_bytes || now.mtime_ns != file.info.mtime_ns || now.inode != file.info.inode) {
    return error(StatusCode::kCorrupt, "{} @ {:#x}: the file was changed while in use; load the model again", handles[file_idx]->path(), offset);
  }
  return ok_status();
}

Checkpoint::Checkpoint(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Checkpoint::~Checkpoint() = default;

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(FileSystem& fs, const std::string& directory, CheckpointOptions options) {
  auto impl = std::make_unique<Impl>();
  impl->fs = &fs;
  impl->directory = directory;
  PM_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  const auto has = [&](std::string_view name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  std::vector<std::pair<SafetensorsEntry, uint32_t>> entries;
  // A single file beside an index that names other files: the index is stale (it is seen in the wild) when its shards are gone.
  const bool has_single = has(kSingleName);
  const bool has_index = has(kIndexName);
  std::optional<ShardIndex> index;
  if (has_index) {
    const std::string path = join_path(directory, kIndexName);
    PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, path, kMaxIndexBytes));
    Result<ShardIndex> parsed = parse_index(path, text);
    if (!parsed.ok()) return parsed.status().code() == StatusCode::kCorrupt ? parsed.status().with_context(path) : parsed.status();
    index = std::move(*parsed);
    if (has_single && std::none_of(index->shards.begin(), index->shards.end(), [&](const std::string& s) { return has(s); })) {
      log_warning("{}: none of its shards is in the folder; {} is used and the index ignored", path, kSingleName);
      index.reset();
    }
  }
  if (index) {
    PM_RETURN_IF_ERROR(impl->add_shards(*index, join_path(directory, kIndexName), options, entries));
  } else if (has_single) {
    std::vector<SafetensorsEntry> found;
    PM_RETURN_IF_ERROR(impl->add_file(kSingleName, options, found));
    if (found.size() > options.max_tensors) return error(StatusCode::kUnsupported, "{}: more than {} tensors", kSingleName, options.max_tensors);
    for (SafetensorsEntry& e : found) entries.emplace_back(std::move(e), 0);
  } else {
    for (const std::string& name : names) {
      if (name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".pkl")) {
        return error(StatusCode::kUnsupported,
                     "{}: only pickled weights ({}), which can run code when read; convert them with transformers' save_pretrained(safe_serialization=True)",
                     directory, name);
      }
    }
    return error(StatusCode::kNotFound, "{}: neither {} nor {}; is this a Hugging Face model folder?", directory, kSingleName, kIndexName);
  }
  for (const std::string& name : names) {
    if (!name.ends_with(".safetensors")) continue;
    if (std::none_of(impl->files.begin(), impl->files.end(), [&](const CheckpointFile& f) { return f.name == name; })) {
      log_warning("{}: not named by the index, ignored", join_path(directory, name));
    }
  }
  impl->build_table(std::move(entries));
  return std::unique_ptr<Checkpoint>(new Checkpoint(std::move(impl)));
}

const std::string& Checkpoint::directory() const { return impl_->directory; }
FileSystem& Checkpoint::fs() const { return *impl_->fs; }
std::span<const TensorEntry> Checkpoint::tensors() const { return impl_->tensors; }
std::span<const CheckpointFile> Checkpoint::files() const { return impl_->files; }

const TensorEntry* Checkpoint::find(std::string_view name) const {
  const auto it = std::lower_bound(impl_->tensors.begin(), impl_->tensors.end(), name, [](const TensorEntry& t, std::string_view n) { return t.name < n; });
  return it != impl_->tensors.end() && it->name == name ? &*it : nullptr;
}

uint64_t Checkpoint::table_bytes() const {
  return sizeof(Impl) + impl_->names.capacity() + impl_->tensors.capacity() * sizeof(TensorEntry) +
         impl_->files.capacity() * (sizeof(CheckpointFile) + 128);
}

Status Checkpoint::read(uint32_t file_idx, uint64_t offset, std::span<std::byte> out) const {
  PM_RETURN_IF_ERROR(impl_->check_unchanged(file_idx, offset));
  return read_exact(*impl_->handles[file_idx], out, offset);
}

void Checkpoint::forget(uint32_t file_idx, uint64_t offset, uint64_t bytes) const { impl_->handles[file_idx]->forget(offset, bytes); }

}  // namespace pointsman
