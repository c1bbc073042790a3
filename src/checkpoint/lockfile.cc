// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/lockfile.h"

#include "base/json.h"
#include "base/log.h"

namespace pointsman {
namespace {

// An entry is about 150 bytes of text.
constexpr uint64_t kMaxLockBytes = 512ull << 20;

using Entries = std::map<std::string, LockFile::Entry, std::less<>>;

Json to_json(const Entries& entries) {
  Json object = Json::object();
  for (const auto& [name, entry] : entries) {
    Json e = Json::object();
    e.set("sha256", to_hex(entry.sha256));
    e.set("size", entry.size_bytes);
    object.as_object().emplace_back(name, std::move(e));  // names are unique: no search
  }
  return object;
}

Status read_entries(const Json& json, const char* key, Entries& out) {
  const Json* object = json.find(key);
  if (object == nullptr || !object->is_object()) return error(StatusCode::kCorrupt, "no object \"{}\"", key);
  for (const auto& [name, e] : object->as_object()) {
    const Json* digest = e.find("sha256");
    const Json* size = e.find("size");
    LockFile::Entry entry;
    if (digest == nullptr || !digest->is_string() || !from_hex(digest->as_string(), entry.sha256)) {
      return error(StatusCode::kCorrupt, "{} \"{}\": \"sha256\" must be 64 hexadecimal digits", key, name);
    }
    if (size == nullptr || !size->is_int() || size->as_int() < 0) {
      return error(StatusCode::kCorrupt, "{} \"{}\": \"size\" must be a non-negative integer", key, name);
    }
    entry.size_bytes = static_cast<uint64_t>(size->as_int());
    out.emplace(name, entry);
  }
  return ok_status();
}

}  // namespace

Sha256Digest LockFile::model_digest() const {
  Sha256 hash;
  for (const Entries* entries : {&files, &tensors, &experts}) {
    for (const auto& [name, entry] : *entries) {
      hash.update(std::as_bytes(std::span(name)));
      hash.update(std::as_bytes(std::span("\0", 1)));
      hash.update(std::as_bytes(std::span(entry.sha256)));
    }
  }
  return hash.finish();
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
  const Json* version = json.find("format_version");
  if (version == nullptr || !version->is_int()) return error(StatusCode::kCorrupt, "no integer \"format_version\"");
  LockFile lock;
  if (version->as_int() != lock.format_version) {
    return error(StatusCode::kUnsupported, "format_version {}: this build reads {}; run 'pointsman lock' again", version->as_int(), lock.format_version);
  }
  if (const Json* v = json.find("tool_version"); v != nullptr && v->is_string()) lock.tool_version = v->as_string();
  if (const Json* v = json.find("created"); v != nullptr && v->is_string()) lock.created = v->as_string();
  PM_RETURN_IF_ERROR(read_entries(json, "files", lock.files));
  PM_RETURN_IF_ERROR(read_entries(json, "tensors", lock.tensors));
  PM_RETURN_IF_ERROR(read_entries(json, "experts", lock.experts));
  for (const auto& [name, entry] : lock.files) {
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return error(StatusCode::kCorrupt, "files {}: expected a plain file name", json_quote(name));
    }
  }
  // The digest of all entries guards against an edit by hand or a cut file.
  const Json* digest = json.find("model_digest");
  Sha256Digest claimed;
  if (digest == nullptr || !digest->is_string() || !from_hex(digest->as_string(), claimed) || claimed != lock.model_digest()) {
    return error(StatusCode::kCorrupt, "\"model_digest\" does not match the entries; the file was edited or damaged");
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
