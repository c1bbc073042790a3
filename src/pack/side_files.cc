// SPDX-License-Identifier: Apache-2.0
#include "pack/side_files.h"

#include <algorithm>
#include <array>

#include "base/log.h"
#include "checkpoint/lockfile.h"
#include "model/binding.h"
#include "pack/config.h"

namespace pointsman {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr uint64_t kMaxCopiedBytes = 256 << 20;

// Text that belongs to a model. Weights in other formats and code stay behind.
bool is_copied(const std::string& name) {
  if (name.empty() || name[0] == '.' || name == "config.json" || name == kLockFileName || name.ends_with(".index.json") || name == kPackProgressName) return false;
  for (const char* suffix : {".json", ".jinja", ".txt", ".model", ".tiktoken", ".md"}) {
    if (name.ends_with(suffix)) return true;
  }
  return name.starts_with("LICENSE") || name.starts_with("NOTICE");
}

Status copy_file(FileSystem& fs, const std::string& from, const std::string& to) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<File> source, fs.open(from));
  PM_ASSIGN_OR_RETURN(const FileInfo info, source->stat());
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> target, fs.create_atomic(to));
  std::vector<std::byte> buffer(std::min<uint64_t>(info.size_bytes, 1 << 20));
  for (uint64_t at = 0; at < info.size_bytes;) {
    const std::span<std::byte> piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), info.size_bytes - at));
    PM_RETURN_IF_ERROR(read_exact(*source, piece, at));
    PM_RETURN_IF_ERROR(target->pwrite(piece, at));
    at += piece.size();
  }
  return target->commit();
}

Status copy_small_files(FileSystem& fs, const std::string& model, const std::string& directory) {
  PM_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(model));
  for (const std::string& name : names) {
    if (!is_copied(name)) continue;
    const std::string from = join_path(model, name);
    PM_ASSIGN_OR_RETURN(const FileInfo info, fs.stat(from));
    if (!info.is_regular) continue;
    if (info.size_bytes > kMaxCopiedBytes) {
      log_warning("{}: {} bytes; not copied", from, info.size_bytes);
      continue;
    }
    PM_RETURN_IF_ERROR(copy_file(fs, from, join_path(directory, name)));
  }
  return ok_status();
}

std::string index_json(const PackPlan& plan) {
  Json map = Json::object();
  for (const ShardPlan& shard : plan.shards) {
    for (const SafetensorsWriter::Declaration& t : shard.tensors) map.as_object().emplace_back(t.name, Json(shard.file_name));
  }
  std::sort(map.as_object().begin(), map.as_object().end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Json metadata = Json::object();
  metadata.set("total_size", plan.output_bytes);
  Json root = Json::object();
  root.set("metadata", std::move(metadata));
  root.set("weight_map", std::move(map));
  return root.dump(2) + "\n";
}

Status wrong(std::string_view name, std::string_view what) { return error(StatusCode::kInternal, "{}: what was written reads as something else ({})", name, what); }

// One aligned read brings an expert of a packed folder, part after part where a slot has them.
Status check_expert(const ExpertInfo& info, const PackRecord& record, bool is_packed) {
  const uint64_t begin = info.parts[0].offset;
  if (is_packed && begin % kRecordAlignment != 0) return wrong(record.name, "not aligned");
  size_t weight = 0;
  for (int p = 0; p < kMaxExpertParts; ++p) {
    const ExpertPartInfo& part = info.parts[static_cast<size_t>(p)];
    if (part.size_bytes == 0) continue;
    if (is_packed && (part.file_idx != info.parts[0].file_idx || part.offset != begin + part.slot_offset)) return wrong(record.name, "its parts are not one record");
    if (p >= kNumWeightParts) continue;
    const Weight& to = record.matrices[weight++].to;
    if (part.layout != to.layout || part.dtype != to.dtype || part.format != to.format || part.rows != to.rows || part.cols != to.cols) {
      return wrong(record.name, "another format");
    }
  }
  return ok_status();
}

Result<LockFile> make_lock_of(FileSystem& fs, const std::string& directory, const PackPlan& plan, const PackProgressFile& done) {
  PM_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(fs, directory));
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(fs, directory));
  PM_ASSIGN_OR_RETURN(const Binding binding, bind_model(*checkpoint, config));
  LockFile lock;
  std::map<std::string, Sha256Digest, std::less<>> digests;
  for (const PackRecord& record : plan.records) {
    const auto it = done.records.find(record.name);
    if (it == done.records.end()) return wrong(record.name, "no digest");
    const std::vector<Sha256Digest>& d = it->second.digests;
    if (record.is_expert()) {
      const ExpertInfo& info = binding.experts->at(record.moe_layer, record.expert);
      PM_RETURN_IF_ERROR(check_expert(info, record, config.quantization.is_packed()));
      lock.experts[record.name] = {.sha256 = d.at(0), .size_bytes = info.size_bytes(), .xxh3 = it->second.xxh3};
      continue;
    }
    digests[record.name] = d.at(0);
    if (d.size() > 1) digests[record.matrices[0].scale_name] = d[1];
  }
  for (const DenseBinding& b : binding.dense) {
    const auto it = digests.find(b.entry->name);
    if (it == digests.end()) return wrong(b.entry->name, "no digest");
    lock.tensors[std::string(b.entry->name)] = {.sha256 = it->second, .size_bytes = b.entry->size_bytes};
  }
  for (const PackRecord& record : plan.records) {
    if (record.is_expert() || record.matrices.empty()) continue;
    const Weight& to = record.matrices[0].to;
    for (const DenseBinding& b : binding.dense) {
      if (b.weight == nullptr || b.entry->name != record.name) continue;
      if (b.weight->layout != to.layout || b.weight->dtype != to.dtype || b.weight->format != to.format) return wrong(record.name, "another format");
    }
  }
  for (const char* name : kLockedFiles) {
    Result<LockFile::Entry> entry = hash_file(fs, join_path(directory, name));
    if (entry.ok()) {
      lock.files.emplace(name, *entry);
    } else if (entry.status().code() != StatusCode::kNotFound) {
      return entry.status();
    }
  }
  return lock;
}

}  // namespace

Status write_side_files(FileSystem& fs, const std::string& model, const std::string& directory, const PackPlan& plan, const PackOptions& options,
                        const PackProgressFile& done, const PackIdentity& identity) {
  PM_RETURN_IF_ERROR(copy_small_files(fs, model, directory));
  PM_ASSIGN_OR_RETURN(const std::string config, make_packed_config(fs, model, options, plan.formats, plan.has_tied_head));
  PM_RETURN_IF_ERROR(write_text_file(fs, join_path(directory, "config.json"), config));
  if (plan.shards.size() > 1) PM_RETURN_IF_ERROR(write_text_file(fs, join_path(directory, kIndexName), index_json(plan)));
  PM_ASSIGN_OR_RETURN(LockFile lock, make_lock_of(fs, directory, plan, done));
  lock.tool_version = identity.tool_version;
  lock.created = identity.created;
  return write_lock_file(fs, directory, lock);
}

}  // namespace pointsman
