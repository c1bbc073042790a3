// SPDX-License-Identifier: Apache-2.0
#include "pack/progress_file.h"

#include "base/json.h"
#include "base/log.h"

namespace pointsman {
namespace {

Status bad(std::string_view what) { return error(StatusCode::kCorrupt, "{}: {}; start again without --resume", kPackProgressName, what); }

}  // namespace

std::string progress_to_json(const PackProgressFile& progress) {
  Json files = Json::object(), records = Json::object();
  for (const auto& [name, size] : progress.files) files.as_object().emplace_back(name, Json(size));
  for (const auto& [name, record] : progress.records) {
    Json digests = Json::array(), errors = Json::array();
    for (const Sha256Digest& d : record.digests) digests.push_back(to_hex(d));
    for (const QuantisationError& e : record.errors) errors.push_back(Json(Json::Array{Json(e.max_abs), Json(e.sum_squares), Json(e.value_squares), Json(e.count)}));
    Json entry = Json::object();
    entry.set("sha256", std::move(digests));
    if (record.xxh3) entry.set("xxh3", to_hex(*record.xxh3));
    entry.set("errors", std::move(errors));
    records.as_object().emplace_back(name, std::move(entry));
  }
  Json root = Json::object();
  root.set("format_version", 1);
  root.set("fingerprint", progress.fingerprint);
  root.set("files", std::move(files));
  root.set("records", std::move(records));
  return root.dump() + "\n";
}

Result<PackProgressFile> parse_progress_json(std::string_view text) {
  Result<Json> root = parse_json(text);
  if (!root.ok()) return bad(root.status().message());
  const Json *version = root->find("format_version"), *fingerprint = root->find("fingerprint"), *files = root->find("files"), *records = root->find("records");
  if (version == nullptr || !version->is_int() || version->as_int() != 1) return bad("format_version is not 1");
  if (fingerprint == nullptr || !fingerprint->is_string() || files == nullptr || !files->is_object() || records == nullptr || !records->is_object()) {
    return bad("keys are missing");
  }
  PackProgressFile out;
  out.fingerprint = fingerprint->as_string();
  for (const auto& [name, size] : files->as_object()) {
    if (!size.is_int() || size.as_int() < 0) return bad("a size is no number");
    out.files.emplace(name, static_cast<uint64_t>(size.as_int()));
  }
  for (const auto& [name, entry] : records->as_object()) {
    const Json *digests = entry.find("sha256"), *errors = entry.find("errors");
    if (digests == nullptr || !digests->is_array() || errors == nullptr || !errors->is_array()) return bad("a record is incomplete");
    PackedRecord record;
    for (const Json& d : digests->as_array()) {
      Sha256Digest digest;
      if (!d.is_string() || !from_hex(d.as_string(), digest)) return bad("a digest is not 64 hexadecimal digits");
      record.digests.push_back(digest);
    }
    if (const Json* fast = entry.find("xxh3"); fast != nullptr) {
      record.xxh3.emplace();
      if (!fast->is_string() || !from_hex(fast->as_string(), *record.xxh3)) return bad("an xxh3 is not 32 hexadecimal digits");
    }
    for (const Json& e : errors->as_array()) {
      if (!e.is_array() || e.as_array().size() != 4) return bad("an error is not four numbers");
      for (const Json& v : e.as_array()) {
        if (!v.is_number()) return bad("an error is not four numbers");
      }
      const Json::Array& v = e.as_array();
      if (!v[3].is_int() || v[3].as_int() < 0) return bad("a count is negative");
      record.errors.push_back({v[0].as_double(), v[1].as_double(), v[2].as_double(), static_cast<uint64_t>(v[3].as_int())});
    }
    out.records.emplace(name, std::move(record));
  }
  return out;
}

}  // namespace pointsman
