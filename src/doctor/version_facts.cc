// SPDX-License-Identifier: Apache-2.0
#include "doctor/version_facts.h"

#include "base/check.h"
#include "base/embedded_data.h"
#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxRows = 10'000;

std::string text_of(const Json& row, std::string_view key) {
  const Json* v = row.find(key);
  return v != nullptr && v->is_string() ? printable(v->as_string(), 200) : "";
}

std::vector<std::string> texts_of(const Json& row, std::string_view key) {
  std::vector<std::string> out;
  const Json* v = row.find(key);
  if (v == nullptr) return out;
  if (v->is_string()) out.push_back(printable(v->as_string(), 200));
  if (!v->is_array()) return out;
  for (const Json& item : v->as_array()) {
    if (item.is_string() && out.size() < kMaxRows) out.push_back(printable(item.as_string(), 200));
  }
  return out;
}

Result<const Json::Array*> rows(const Json& root, std::string_view key) {
  const Json* v = root.find(key);
  if (v == nullptr || !v->is_array()) return error(StatusCode::kCorrupt, "version tables: no list \"{}\"", key);
  if (v->as_array().size() > kMaxRows)
    return error(StatusCode::kCorrupt, "version tables: \"{}\" has more than {} rows", key, kMaxRows);
  return &v->as_array();
}

}  // namespace

Result<VersionFacts> parse_version_facts(std::string_view json) {
  PM_ASSIGN_OR_RETURN(const Json root, parse_json(json));
  const Json* schema = root.find("schema");
  if (schema == nullptr || !schema->is_int() || schema->as_int() != 1) {
    return {
        error(StatusCode::kUnsupported, "version tables: \"schema\" is not 1; expected a cann_versions.json of this release")};
  }
  VersionFacts f;
  f.generated = text_of(root, "generated");
  PM_ASSIGN_OR_RETURN(const Json::Array* torch_rows, rows(root, "torch_npu_matrix"));
  for (const Json& r : *torch_rows)
    f.torch_rows.push_back({text_of(r, "torch_npu"), text_of(r, "branch"), text_of(r, "torch"), text_of(r, "cann")});
  PM_ASSIGN_OR_RETURN(const Json::Array* driver_rows, rows(root, "driver_cann"));
  for (const Json& r : *driver_rows) f.driver_rows.push_back({text_of(r, "cann"), texts_of(r, "hdk"), texts_of(r, "not")});
  PM_ASSIGN_OR_RETURN(const Json::Array* socs, rows(root, "soc"));
  for (const Json& r : *socs) {
    const Json* mc2 = r.find("mc2_moe_dispatch");
    f.socs.push_back({text_of(r, "family"), texts_of(r, "soc_prefix"), text_of(r, "min_cann"),
                      mc2 == nullptr || !mc2->is_bool() || mc2->as_bool(), text_of(r, "note")});
  }
  if (const Json* hardware = root.find("hardware_driver_cann_9_1_0"); hardware != nullptr && hardware->is_array()) {
    for (const Json& r : hardware->as_array())
      f.hardware_drivers.push_back({text_of(r, "hardware"), text_of(r, "hdk"), text_of(r, "cann")});
  }
  if (const Json* pythons = root.find("torch_python"); pythons != nullptr && pythons->is_object()) {
    for (const auto& [torch, list] : pythons->as_object()) f.torch_python[torch] = texts_of(*pythons, torch);
  }
  if (const Json* range = root.find("extension_release_cann_range"); range != nullptr) {
    f.extension_releases = texts_of(*range, "releases");
    f.extension_cann = texts_of(*range, "cann");
  }
  if (const Json* r = root.find("recommended"); r != nullptr) {
    f.recommended = format("torch_npu {}, torch {}, CANN {}, driver package {}", text_of(*r, "torch_npu"), text_of(*r, "torch"),
                           text_of(*r, "cann"), text_of(*r, "hdk"));
  }
  return f;
}

VersionFacts builtin_version_facts() {
  Result<VersionFacts> facts = parse_version_facts(embedded_cann_versions());
  PM_CHECK(facts.ok(), "data/audit/cann_versions.json: %s", facts.status().to_string().c_str());
  return std::move(*facts);
}

const VersionFacts::SocRow* VersionFacts::soc(std::string_view soc_name) const {
  const SocRow* best = nullptr;
  size_t length = 0;
  for (const SocRow& row : socs) {
    for (const std::string& prefix : row.prefixes) {
      if (lower(soc_name).starts_with(lower(prefix)) && prefix.size() > length) {
        best = &row;
        length = prefix.size();
      }
    }
  }
  return best;
}

const VersionFacts::SocRow* VersionFacts::family(std::string_view family_name) const {
  for (const SocRow& row : socs) {
    if (lower(row.family) == lower(family_name)) return &row;
  }
  return nullptr;
}

const VersionFacts::TorchRow* VersionFacts::torch_row(const Version& torch_npu) const {
  for (const TorchRow& row : torch_rows) {
    if (Version(row.torch_npu).compare(torch_npu) == 0) return &row;
  }
  return nullptr;
}

const VersionFacts::DriverRow* VersionFacts::driver_row(const Version& cann) const {
  for (const DriverRow& row : driver_rows) {
    if (!lower(row.cann).ends_with(".x") && Version(row.cann).compare(cann) == 0) return &row;
  }
  for (const DriverRow& row : driver_rows) {
    if (lower(row.cann).ends_with(".x") && cann.matches(row.cann)) return &row;
  }
  return nullptr;
}

}  // namespace pointsman::doctor
