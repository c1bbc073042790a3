// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/lockfile.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

namespace pointsman {
namespace {

// An entry is about 150 bytes of text.
constexpr uint64_t kMaxLockBytes = 512ull << 20;
constexpr uint64_t kFileChunkBytes = 256 * 1024;

using Entries = std::map<std::string, LockFile::Entry, std::less<>>;

Json to_json(const Entries& entries) {
  Json object = Json::object();
  for (const auto& [name, entry] : entries) {
    Json e = Json::object();
    e.set("sha256", to_hex(entry.sha256));
    e.set("size", entry.size_bytes);
    if (entry.xxh3) e.set("xxh3", to_hex(*entry.xxh3));
    object.as_object().emplace_back(name, std::move(e));  // names are unique: no search
  }
  return object;
}

// Refuses keys outside `known`: a lock that says more than this build understands is not half-checked.
Status check_keys(const Json& object, std::initializer_list<std::string_view> known, std::string_view where) {
  for (const auto& [key, value] : object.as_object()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      return error(StatusCode::kCorrupt, "{}unknown key {}", where, json_quote(key.substr(0, 64)));
    }
  }
  return ok_status();
}

Status read_entries(const Json& json, const char* section, bool may_have_xxh3, Entries& out) {
  const Json* object = json.find(section);
  if (object == nullptr || !object->is_object()) return error(StatusCode::kCorrupt, "no object \"{}\"", section);
  for (const auto& [name, e] : object->as_object()) {
    const std::string where = format("{} {}: ", section, json_quote(name.substr(0, 128)));
    if (!e.is_object()) return error(StatusCode::kCorrupt, "{}expected an object, found {}", where, e.type_name());
    const Json* xxh3 = may_have_xxh3 ? e.find("xxh3") : nullptr;
    PM_RETURN_IF_ERROR(xxh3 != nullptr ? check_keys(e, {"sha256", "size", "xxh3"}, where) : check_keys(e, {"sha256", "size"}, where));
    const Json* digest = e.find("sha256");
    const Json* size = e.find("size");
    LockFile::Entry entry;
    if (digest == nullptr || !digest->is_string() || !from_hex(digest->as_string(), entry.sha256)) {
      return error(StatusCode::kCorrupt, "{}\"sha256\" must be 64 hexadecimal digits", where);
    }
    if (size == nullptr || !size->is_int() || size->as_int() < 0) {
      return error(StatusCode::kCorrupt, "{}\"size\" must be a non-negative integer", where);
    }
    entry.size_bytes = static_cast<uint64_t>(size->as_int());
    if (xxh3 != nullptr && (!xxh3->is_string() || !from_hex(xxh3->as_string(), entry.xxh3.emplace()))) {
      return error(StatusCode::kCorrupt, "{}\"xxh3\" must be 32 hexadecimal digits", where);
    }
    out.emplace_hint(out.end(), name, entry);
  }
  return ok_status();
}

Status read_text(const Json& json, const char* key, std::string& out) {
  const Json* v = json.find(key);
  if (v == nullptr || !v->is_string()) return error(StatusCode::kCorrupt, "no string \"{}\"", key);
  out = v->as_string();
  return ok_status();
}

}  // namespace

Sha256Digest LockFile::model_digest() const {
  // Every field is delimited, so that no two locks hash the same bytes: names hold no zero, digests and sizes have fixed
  // lengths, and each section begins with its name and its count.
  Sha256 hash;
  const auto add = [&hash](const void* data, size_t bytes) { hash.update({static_cast<const std::byte*>(data), bytes}); };
  const auto add_number = [&add](uint64_t v) {
    uint8_t little_endian[8];
    for (int i = 0; i < 8; ++i) little_endian[i] = static_cast<uint8_t>(v >> (8 * i));
    add(little_endian, 8);
  };
  const std::pair<const char*, const Entries*> sections[] = {{"files", &files}, {"tensors", &tensors}, {"experts", &experts}};
  for (const auto& [section, entries] : sections) {
    add(section, std::strlen(section) + 1);
    add_number(entries->size());
    for (const auto& [name, entry] : *entries) {
      add(name.c_str(), name.size() + 1);
      add(entry.sha256.data(), entry.sha256.size());
      add_number(entry.size_bytes);
    }
  }
  return hash.finish();
}

Result<LockFile::Entry> hash_file(FileSystem& fs, const std::string& path) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open(path));
  PM_ASSIGN_OR_RETURN(const FileInfo info, file->stat());
  if (!info.is_regular) return error(StatusCode::kUnsupported, "{}: not a regular file", path);
  std::vector<std::byte> buffer(std::min(kFileChunkBytes, info.size_bytes));
  Sha256 hash;
  for (uint64_t at = 0; at < info.size_bytes;) {
    const std::span<std::byte> chunk = std::span(buffer).first(std::min<uint64_t>(buffer.size(), info.size_bytes - at));
    PM_RETURN_IF_ERROR(read_exact(*file, chunk, at));
    hash.update(chunk);
    at += chunk.size();
  }
  return LockFile::Entry{.sha256 = hash.finish(), .size_bytes = info.size_bytes};
}

std::string lock_to_json(const LockFile& lock) {
  Json json = Json::object();
  json.set("format_version", lock.format_version);
  json.set("tool_version", lock.tool_version);
  json.set("created", lock.created);
  json.set("model_digest", to_hex(lock.model_digest()));
  json.set("files", to_json(lock.files));
  json.set("tensors", to_json(lock.tensors));
  json.set("experts", to_json(lock.experts));
  return json.dump(1) + "\n";
}

Result<LockFile> parse_lock_json(std::string_view text) {
  PM_ASSIGN_OR_RETURN(const Json json, parse_json(text, {.max_depth = 4}));
  if (!json.is_object()) return error(StatusCode::kCorrupt, "expected an object, found {}", json.type_name());
  // Before all else: another version may mean anything by the other keys.
  LockFile lock;
  const Json* version = json.find("format_version");
  if (version == nullptr || !version->is_int()) return error(StatusCode::kCorrupt, "no integer \"format_version\"");
  if (version->as_int() != lock.format_version) {
    return error(StatusCode::kUnsupported, "format_version {}: this build reads {}; run 'pointsman lock' again",
                 version->as_int(), lock.format_version);
  }
  PM_RETURN_IF_ERROR(
      check_keys(json, {"format_version", "tool_version", "created", "model_digest", "files", "tensors", "experts"}, ""));
  PM_RETURN_IF_ERROR(read_text(json, "tool_version", lock.tool_version));
  PM_RETURN_IF_ERROR(read_text(json, "created", lock.created));
  PM_RETURN_IF_ERROR(read_entries(json, "files", false, lock.files));
  PM_RETURN_IF_ERROR(read_entries(json, "tensors", false, lock.tensors));
  PM_RETURN_IF_ERROR(read_entries(json, "experts", true, lock.experts));
  for (const auto& [name, entry] : lock.files) {
    if (!is_plain_file_name(name))
      return error(StatusCode::kCorrupt, "files {}: expected a plain file name", json_quote(name.substr(0, 128)));
  }
  for (const Entries* entries : {&lock.tensors, &lock.experts}) {
    for (const auto& [name, entry] : *entries) {
      if (!is_plain_tensor_name(name))
        return error(StatusCode::kCorrupt, "name {} is empty, too long or holds control characters",
                     json_quote(name.substr(0, 128)));
    }
  }
  std::string claimed_text;
  PM_RETURN_IF_ERROR(read_text(json, "model_digest", claimed_text));
  Sha256Digest claimed;
  if (!from_hex(claimed_text, claimed) || claimed != lock.model_digest()) {
    return error(StatusCode::kCorrupt,
                 "\"model_digest\" does not match the entries: the file was edited or damaged; run 'pointsman lock' again");
  }
  return lock;
}

Result<LockFile> read_lock_file(FileSystem& fs, const std::string& directory) {
  const std::string path = join_path(directory, kLockFileName);
  PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, path, kMaxLockBytes));
  Result<LockFile> lock = parse_lock_json(text);
  if (!lock.ok()) return lock.status().with_context(path);
  return lock;
}

Status write_lock_file(FileSystem& fs, const std::string& directory, const LockFile& lock) {
  return write_text_file(fs, join_path(directory, kLockFileName), lock_to_json(lock));
}

}  // namespace pointsman
