// SPDX-License-Identifier: Apache-2.0
#include "support/memory_model.h"

#include <filesystem>

#include "base/check.h"
#include "base/log.h"
#include "engine/planner.h"
#include "model/weight_loader.h"
#include "support/golden.h"

namespace pointsman::testing {
namespace {

struct Opened {
  std::unique_ptr<Checkpoint> checkpoint;
  ModelConfig config;
  Binding binding;
};

template <class T>
T need(Result<T> result) {
  PM_CHECK(result.ok(), "%s", result.status().to_string().c_str());
  return std::move(result).value();
}

Opened open(MemoryFs& fs) {
  Opened o;
  o.config = need(read_model_config(fs, kMemoryModelDir));
  o.checkpoint = need(Checkpoint::open(fs, kMemoryModelDir));
  o.binding = need(bind_model(*o.checkpoint, o.config));
  return o;
}

}  // namespace

MemoryModel::MemoryModel(const std::string& folder) {
  FileSystem& real = FileSystem::real();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename() == "expected.safetensors" ||
        entry.path().filename() == kLockFileName)
      continue;
    const auto file = need(real.open(entry.path()));
    std::vector<std::byte> bytes(need(file->stat()).size_bytes);
    const Status read = read_exact(*file, bytes, 0);
    PM_CHECK(read.ok(), "%s", read.to_string().c_str());
    fs.put(join_path(kMemoryModelDir, entry.path().filename()), std::move(bytes));
  }
}

std::vector<MemoryModel::Range> MemoryModel::ranges() const {
  const Opened o = open(const_cast<MemoryFs&>(fs));
  const auto path = [&](uint32_t file_idx) { return join_path(kMemoryModelDir, o.checkpoint->files()[file_idx].name); };
  std::vector<Range> all;
  for (const DenseBinding& b : o.binding.dense) {
    all.push_back({.file = path(b.entry->file_idx),
                   .offset = b.entry->offset,
                   .size_bytes = b.entry->size_bytes,
                   .tensor = std::string(b.entry->name)});
  }
  const ExpertCatalogue* experts = o.binding.experts.get();
  for (int l = 0; experts != nullptr && l < experts->num_layers(); ++l) {
    for (int e = 0; e < experts->num_experts(); ++e) {
      for (const ExpertPartInfo& p : experts->at(l, e).parts) {
        if (p.size_bytes == 0) continue;
        all.push_back({.file = path(p.file_idx),
                       .offset = p.offset,
                       .size_bytes = p.size_bytes,
                       .tensor = {},
                       .layer = experts->layer_id(l),
                       .expert = e});
      }
    }
  }
  return all;
}

std::byte& MemoryModel::byte_at(const Range& range, uint64_t offset) {
  PM_CHECK(offset < range.size_bytes);
  return fs.node(range.file).bytes.at(range.offset + offset);
}

LockFile MemoryModel::add_lock() {
  const Opened o = open(fs);
  std::vector<std::byte> chunk(64 * 1024);
  const auto hash_into = [&](Sha256& hash, uint32_t file_idx, uint64_t offset, uint64_t bytes) {
    const Status s = hash_range(*o.checkpoint, file_idx, offset, bytes, hash, chunk);
    PM_CHECK(s.ok(), "%s", s.to_string().c_str());
  };
  LockFile lock;
  lock.tool_version = "test";
  lock.created = "2025-01-01T00:00:00Z";
  for (const char* name : kLockedFiles) {
    const std::string path = join_path(kMemoryModelDir, name);
    if (fs.contains(path)) lock.files[name] = need(hash_file(fs, path));
  }
  for (const DenseBinding& b : o.binding.dense) {
    Sha256 hash;
    hash_into(hash, b.entry->file_idx, b.entry->offset, b.entry->size_bytes);
    lock.tensors[std::string(b.entry->name)] = {.sha256 = hash.finish(), .size_bytes = b.entry->size_bytes};
  }
  const ExpertCatalogue* experts = o.binding.experts.get();
  for (int l = 0; experts != nullptr && l < experts->num_layers(); ++l) {
    for (int e = 0; e < experts->num_experts(); ++e) {
      Sha256 hash;
      const ExpertInfo& info = experts->at(l, e);
      for (const ExpertPartInfo& p : info.parts) hash_into(hash, p.file_idx, p.offset, p.size_bytes);
      lock.experts[experts->lock_key(l, e)] = {.sha256 = hash.finish(), .size_bytes = info.size_bytes()};
    }
  }
  const Status written = write_lock_file(fs, kMemoryModelDir, lock);
  PM_CHECK(written.ok(), "%s", written.to_string().c_str());
  return lock;
}

Result<std::unique_ptr<Engine>> MemoryModel::load(const EngineOptions& options) {
  return load_engine(options, {.device = device.get(), .fs = &fs});
}

uint64_t MemoryModel::smallest_budget(const EngineOptions& options) {
  Opened o = open(fs);
  const PlacementMap placement = need(resolve_placement(o.binding, options.placement));
  return need(make_plan({.config = o.config,
                         .checkpoint = *o.checkpoint,
                         .binding = o.binding,
                         .placement = placement,
                         .options = options}))
      .smallest_budget_bytes;
}

EngineOptions memory_model_options() {
  return {.model_dir = kMemoryModelDir,
          .memory_bytes = 64 << 20,
          .num_threads = 2,
          .context_length = 64,
          .numerics = Numerics::kFp32,
          .num_readers = 1,
          .load_tokenizer = false};
}

std::string small_model_folder() {
  const std::string bundled = source_path("models/pointsman-tiny-moe");
  if (std::filesystem::exists(bundled + "/config.json")) return bundled;
  return source_path("tests/golden/qwen3_moe_base");
}

}  // namespace pointsman::testing
