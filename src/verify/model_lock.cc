// SPDX-License-Identifier: Apache-2.0
#include "verify/model_lock.h"

#include <algorithm>
#include <atomic>

#include "base/log.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "model/binding.h"

namespace pointsman {
namespace {

// Large enough for the disk, small enough for many threads.
constexpr uint64_t kChunkBytes = 1 << 20;

struct Range {
  uint32_t file_idx;
  uint64_t offset, size_bytes;
};

// One entry of the lock file and where its bytes are.
struct Item {
  bool is_expert = false;
  std::string name;
  Range ranges[kMaxExpertParts];
  int num_ranges = 0;
  uint64_t size_bytes = 0;
  LockFile::Entry found;
  Status status;
};

struct Model {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  Binding binding;
  std::vector<Item> items;  // in the order of the bytes on disk
  uint64_t total_bytes = 0;
};

Result<Model> open_model(FileSystem& fs, const std::string& directory) {
  Model m;
  PM_ASSIGN_OR_RETURN(m.config, read_model_config(fs, directory));
  PM_ASSIGN_OR_RETURN(m.checkpoint, Checkpoint::open(fs, directory));
  PM_ASSIGN_OR_RETURN(m.binding, bind_model(*m.checkpoint, m.config));
  for (const DenseBinding& b : m.binding.dense) {
    Item item{.name = std::string(b.entry->name), .num_ranges = 1, .size_bytes = b.entry->size_bytes};
    item.ranges[0] = {b.entry->file_idx, b.entry->offset, b.entry->size_bytes};
    m.items.push_back(std::move(item));
  }
  const ExpertCatalogue* experts = m.binding.experts.get();
  for (int l = 0; experts != nullptr && l < experts->num_layers(); ++l) {
    for (int e = 0; e < experts->num_experts(); ++e) {
      const ExpertInfo& info = experts->at(l, e);
      Item item{
          .is_expert = true, .name = experts->lock_key(l, e), .num_ranges = kMaxExpertParts, .size_bytes = info.size_bytes()};
      for (int p = 0; p < kMaxExpertParts; ++p) {
        const ExpertPartInfo& part = info.parts[static_cast<size_t>(p)];
        item.ranges[p] = {part.file_idx, part.offset, part.size_bytes};
      }
      m.items.push_back(std::move(item));
    }
  }
  std::sort(m.items.begin(), m.items.end(), [](const Item& a, const Item& b) {
    return std::tie(a.ranges[0].file_idx, a.ranges[0].offset) < std::tie(b.ranges[0].file_idx, b.ranges[0].offset);
  });
  for (const Item& i : m.items) m.total_bytes += i.size_bytes;
  return m;
}

// Fills `found` or `status` of every item. False when progress() asked to stop.
bool hash_items(Model& m, int num_threads, LockProgress progress) {
  std::atomic<uint64_t> done{0};
  std::atomic<bool> stop{false};
  ThreadPool pool(num_threads, /*pin=*/false);
  pool.parallel_for(static_cast<int64_t>(m.items.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Item& item = m.items[static_cast<size_t>(i)];
      std::vector<std::byte> buffer(std::min(kChunkBytes, item.size_bytes));
      Sha256 hash;
      Xxh3 fast;
      for (int r = 0; r < item.num_ranges && item.status.ok(); ++r) {
        const Range& range = item.ranges[r];
        for (uint64_t at = 0; at < range.size_bytes;) {
          if (stop) return;
          const std::span<std::byte> chunk = std::span(buffer).first(std::min<uint64_t>(buffer.size(), range.size_bytes - at));
          item.status = m.checkpoint->read(range.file_idx, range.offset + at, chunk);
          if (!item.status.ok()) break;
          hash.update(chunk);
          if (item.is_expert) fast.update(chunk);
          at += chunk.size();
          if (!progress(done += chunk.size(), m.total_bytes)) stop = true;
        }
      }
      item.found = {.sha256 = hash.finish(), .size_bytes = item.size_bytes};
      if (item.is_expert) item.found.xxh3 = fast.finish();
    }
  });
  return !stop;
}

Status interrupted() {
  return {StatusCode::kUnavailable, "interrupted; nothing was written"};
}

std::string place(const Model& m, const Item& item) {
  const Range& r = item.ranges[0];
  return format("{} @ {:#x}", m.checkpoint->files()[r.file_idx].name, r.offset);
}

void check_files(FileSystem& fs, const std::string& directory, const LockFile& lock, LockCheck& out) {
  const auto mismatch = [&](const std::string& name, std::string what) {
    out.mismatches.push_back({"file", name, std::move(what)});
  };
  for (const auto& [name, expected] : lock.files) {
    ++out.files;
    const Result<LockFile::Entry> found = hash_file(fs, join_path(directory, name));
    if (!found.ok()) {
      mismatch(name, found.status().code() == StatusCode::kNotFound ? "absent from the folder" : found.status().to_string());
    } else if (*found != expected) {
      mismatch(name, format("{} bytes, sha256 {} expected {} bytes, {}", found->size_bytes, to_hex(found->sha256),
                            expected.size_bytes, to_hex(expected.sha256)));
    }
  }
  // A file that came later changes what the model does as much as an edit.
  for (const char* name : kLockedFiles) {
    if (lock.files.count(std::string_view(name)) == 0 && fs.stat(join_path(directory, name)).ok())
      mismatch(name, "absent from the lock file");
  }
}

}  // namespace

Result<LockFile> make_lock(FileSystem& fs, const std::string& model_dir, int num_threads, LockProgress progress) {
  PM_ASSIGN_OR_RETURN(Model m, open_model(fs, model_dir));
  LockFile lock;
  for (const char* name : kLockedFiles) {
    Result<LockFile::Entry> entry = hash_file(fs, join_path(model_dir, name));
    if (entry.ok()) {
      lock.files.emplace(name, *entry);
    } else if (entry.status().code() != StatusCode::kNotFound) {
      return entry.status();
    }
  }
  if (!hash_items(m, num_threads, progress)) return interrupted();
  for (const Item& item : m.items) {
    if (!item.status.ok()) return item.status.with_context(item.name);
    (item.is_expert ? lock.experts : lock.tensors).emplace(item.name, item.found);
  }
  return lock;
}

Result<LockCheck> check_lock(FileSystem& fs, const std::string& model_dir, const LockFile& lock, int num_threads,
                             LockProgress progress) {
  LockCheck out;
  check_files(fs, model_dir, lock, out);
  Result<Model> opened = open_model(fs, model_dir);
  if (!opened.ok()) {
    out.mismatches.push_back({"checkpoint", model_dir, opened.status().to_string()});
    return out;
  }
  Model& m = *opened;
  if (!hash_items(m, num_threads, progress)) return interrupted();
  for (const bool experts : {false, true}) {
    const char* kind = experts ? "expert" : "tensor";
    const auto& entries = experts ? lock.experts : lock.tensors;
    std::vector<std::string_view> present;
    for (const Item& item : m.items) {
      if (item.is_expert != experts) continue;
      present.push_back(item.name);
      ++(experts ? out.experts : out.tensors);
      out.bytes += item.size_bytes;
      const auto it = entries.find(item.name);
      if (it == entries.end()) {
        out.mismatches.push_back({kind, item.name, "absent from the lock file"});
      } else if (!item.status.ok()) {
        out.mismatches.push_back({kind, item.name, item.status.to_string()});
      } else if (item.found.size_bytes != it->second.size_bytes) {
        out.mismatches.push_back(
            {kind, item.name,
             format("{} bytes expected {} ({})", item.found.size_bytes, it->second.size_bytes, place(m, item))});
      } else if (item.found.sha256 != it->second.sha256) {
        out.mismatches.push_back(
            {kind, item.name,
             format("sha256 {} expected {} ({})", to_hex(item.found.sha256), to_hex(it->second.sha256), place(m, item))});
      } else if (it->second.xxh3 && item.found.xxh3 != it->second.xxh3) {
        out.mismatches.push_back({kind, item.name,
                                  format("xxh3 {} expected {}, though the sha256 is right: the lock file is damaged; write it again",
                                         to_hex(*item.found.xxh3), to_hex(*it->second.xxh3))});
      }
    }
    std::sort(present.begin(), present.end());
    for (const auto& [name, entry] : entries) {
      if (!std::binary_search(present.begin(), present.end(), std::string_view(name))) {
        out.mismatches.push_back({kind, name, "absent from the checkpoint"});
      }
    }
  }
  return out;
}

}  // namespace pointsman
