// SPDX-License-Identifier: Apache-2.0
#include "audit/facts.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/edit_distance.h"
#include "base/embedded_data.h"
#include "base/log.h"

namespace pointsman::audit {
namespace {

constexpr int64_t kSchema = 1;

struct DataFile {
  std::string_view name;
  std::string_view (*embedded)();
};
constexpr DataFile kDataFiles[] = {
    {"cann_ops.json", embedded_cann_ops},
    {"cann_versions.json", embedded_cann_versions},
    {"torch_npu_names.json", embedded_torch_npu_names},
};

Result<std::vector<std::string>> strings(const Json& file, std::string_view key) {
  const Json* list = file.find(key);
  if (!list || !list->is_array()) return error(StatusCode::kCorrupt, "'{}' is {}, expected a list of names", key, list ? list->type_name() : "absent");
  std::vector<std::string> out;
  for (const Json& j : list->as_array()) {
    if (!j.is_string()) return error(StatusCode::kCorrupt, "'{}' holds {}, expected names", key, j.type_name());
    out.push_back(j.as_string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* j = object.find(key);
  return j && j->is_string() ? j->as_string() : std::string();
}

// Parts of a version: numbers, and words ("rc", "post", "alpha", "beta") with a rank around 0 = a release's end.
std::vector<std::pair<int, long>> version_parts(std::string_view v) {
  std::vector<std::pair<int, long>> parts;
  v = v.substr(0, v.find('+'));
  if (!v.empty() && (v[0] == 'v' || v[0] == 'V')) v.remove_prefix(1);
  for (size_t i = 0; i < v.size() && parts.size() < 12;) {
    const char c = v[i];
    if (c >= '0' && c <= '9') {
      long n = 0;
      for (; i < v.size() && v[i] >= '0' && v[i] <= '9'; ++i) n = std::min(n * 10 + (v[i] - '0'), 100'000'000L);
      parts.push_back({0, n});
    } else if ((c | 32) >= 'a' && (c | 32) <= 'z') {
      std::string word;
      for (; i < v.size() && ((v[i] | 32) >= 'a' && (v[i] | 32) <= 'z'); ++i) word += static_cast<char>(v[i] | 32);
      const int rank = word == "dev" ? -4 : word == "alpha" || word == "a" ? -3 : word == "beta" || word == "b" ? -2 : word == "rc" ? -1 : word == "post" ? 1 : 0;
      long n = 0;
      while (i < v.size() && (v[i] == '.' || v[i] == '-')) ++i;
      for (; i < v.size() && v[i] >= '0' && v[i] <= '9'; ++i) n = std::min(n * 10 + (v[i] - '0'), 100'000'000L);
      parts.push_back({rank, n});
    } else {
      ++i;
    }
  }
  return parts;
}

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : name) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (c == '_' || c == '.' || upper) {
      if (!word.empty()) words.push_back(std::exchange(word, {}));
      if (!upper) continue;
    }
    word += upper ? static_cast<char>(c + 32) : c;
  }
  if (!word.empty()) words.push_back(word);
  return words;
}

}  // namespace

const char* soc_name(Soc soc) {
  constexpr const char* kNames[] = {"unknown", "a2", "a3", "950pr", "950dt"};
  return kNames[static_cast<size_t>(soc)];
}

std::optional<Soc> parse_soc(std::string_view name) {
  for (const Soc s : {Soc::kA2, Soc::kA3, Soc::k950Pr, Soc::k950Dt}) {
    if (name == soc_name(s)) return s;
  }
  return std::nullopt;
}

int compare_versions(std::string_view a, std::string_view b) {
  auto x = version_parts(a), y = version_parts(b);
  // The release numbers first, filled up with zeros; then the words.
  const auto release = [](const std::vector<std::pair<int, long>>& parts) {
    std::vector<long> n;
    for (const auto& [rank, value] : parts) {
      if (rank != 0) break;
      n.push_back(value);
    }
    return n;
  };
  auto rx = release(x), ry = release(y);
  const size_t nx = rx.size(), ny = ry.size(), n = std::max(nx, ny);
  rx.resize(n);
  ry.resize(n);
  if (rx != ry) return rx < ry ? -1 : 1;
  for (size_t i = 0;; ++i) {
    const bool hx = nx + i < x.size(), hy = ny + i < y.size();
    if (!hx && !hy) return 0;
    const std::pair<int, long> px = hx ? x[nx + i] : std::pair(0, 0L), py = hy ? y[ny + i] : std::pair(0, 0L);
    if (px != py) return px < py ? -1 : 1;
  }
}

const Facts& Facts::embedded() {
  static const Facts* const kFacts = [] {
    auto* f = new Facts;  // lives as long as the program
    for (const DataFile& file : kDataFiles) {
      const Status s = f->read(file.name, file.embedded());
      PM_CHECK(s.ok(), "built-in audit data: %s", s.to_string().c_str());
    }
    return f;
  }();
  return *kFacts;
}

Result<Facts> Facts::load(FileSystem& fs, const std::string& directory) {
  Facts facts = embedded();
  bool any = false;
  for (const DataFile& file : kDataFiles) {
    const std::string path = join_path(directory, std::string(file.name));
    Result<std::string> text = read_text_file(fs, path, 64u << 20);
    if (!text.ok()) {
      if (text.status().code() == StatusCode::kNotFound) continue;
      return text.status().with_context(path);
    }
    any = true;
    const Status s = facts.read(file.name, *text);
    if (!s.ok()) return s.with_context(path);
  }
  if (!any) {
    std::string names;
    for (const DataFile& file : kDataFiles) names += (names.empty() ? "" : ", ") + std::string(file.name);
    return error(StatusCode::kNotFound, "{}: none of {} is there", directory, names);
  }
  return facts;
}

Status Facts::read(std::string_view file, std::string_view text) {
  PM_ASSIGN_OR_RETURN(Json json, parse_json(text));
  const Json* schema = json.find("schema");
  if (!schema || !schema->is_int()) return error(StatusCode::kCorrupt, "'schema' is {}, expected the number {}", schema ? schema->type_name() : "absent", kSchema);
  if (schema->as_int() != kSchema) return error(StatusCode::kUnsupported, "schema {}, this program reads schema {}; use data of that schema or a newer program", schema->as_int(), kSchema);
  if (text_of(json, "generated").empty()) return error(StatusCode::kCorrupt, "'generated' is absent, expected a date");
  if (file == "cann_versions.json") {
    const Json* matrix = json.find("torch_npu_matrix");
    if (!matrix || !matrix->is_array()) return error(StatusCode::kCorrupt, "'torch_npu_matrix' is no list");
    versions_.clear();
    for (const Json& row : matrix->as_array()) versions_.push_back({text_of(row, "torch_npu"), text_of(row, "torch"), text_of(row, "cann")});
    const Json* recommended = json.find("recommended");
    if (recommended) recommended_ = {text_of(*recommended, "torch_npu"), text_of(*recommended, "torch"), text_of(*recommended, "cann")};
    first_cann_.clear();
    if (const Json* socs = json.find("soc"); socs && socs->is_array()) {
      for (const Json& s : socs->as_array()) {
        std::string family = text_of(s, "family");
        std::transform(family.begin(), family.end(), family.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
        const std::optional<Soc> soc = parse_soc(family);
        if (soc && !text_of(s, "min_cann").empty()) first_cann_[*soc] = text_of(s, "min_cann");
      }
    }
    generated_ = text_of(json, "generated");
    versions_json_ = std::move(json);
  } else if (file == "torch_npu_names.json") {
    PM_ASSIGN_OR_RETURN(operator_names_, strings(json, "torch_npu_ops"));
    PM_ASSIGN_OR_RETURN(module_names_, strings(json, "torch_npu_npu"));
    deprecated_.clear();
    if (const Json* list = json.find("deprecated"); list && list->is_object()) {
      for (const auto& [name, instead] : list->as_object()) {
        if (instead.is_string()) deprecated_[name] = instead.as_string();
      }
    }
    names_json_ = std::move(json);
  } else {
    const Json* ops = json.find("ops");
    if (!ops || !ops->is_object()) return error(StatusCode::kCorrupt, "'ops' is no object");
    operators_.clear();
    for (const auto& [name, op] : ops->as_object()) {
      Operator& o = operators_[name];
      o.name = name;
      if (const Json* socs = op.find("soc"); socs && socs->is_object()) {
        for (const auto& [family, supported] : socs->as_object()) {
          if (supported.is_bool()) o.soc[family] = supported.as_bool();
        }
      }
    }
    operators_json_ = std::move(json);
  }
  return ok_status();
}

std::string_view Facts::deprecated(std::string_view name) const {
  const auto it = deprecated_.find(name);
  return it == deprecated_.end() ? std::string_view() : std::string_view(it->second);
}

const Operator* Facts::find_operator(std::string_view name) const {
  const auto it = operators_.find(name);
  return it == operators_.end() ? nullptr : &it->second;
}

std::vector<const VersionRow*> Facts::rows_of_torch_npu(std::string_view version) const {
  std::vector<const VersionRow*> rows;
  for (const VersionRow& r : versions_) {
    if (compare_versions(r.torch_npu, version) == 0) rows.push_back(&r);
  }
  return rows;
}

std::string_view Facts::first_cann(Soc soc) const {
  const auto it = first_cann_.find(soc);
  return it == first_cann_.end() ? std::string_view() : std::string_view(it->second);
}

std::vector<std::string> nearest_names(std::string_view name, const std::vector<std::string>& names, size_t count) {
  const std::string_view asked = name.substr(0, 100);
  const std::vector<std::string> words = words_of(asked);
  std::vector<std::pair<double, const std::string*>> ranked;
  for (const std::string& n : names) {
    size_t shared = 0;
    for (const std::string& w : words_of(n)) shared += w != "npu" && w.size() > 2 && std::find(words.begin(), words.end(), w) != words.end();
    const double distance = static_cast<double>(edit_distance(asked, n)) / static_cast<double>(std::max(asked.size(), n.size()));
    const double score = distance - 0.25 * static_cast<double>(shared);
    if (score < 0.45) ranked.push_back({score, &n});
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (size_t i = 0; i < std::min(count, ranked.size()); ++i) out.push_back(*ranked[i].second);
  return out;
}

}  // namespace pointsman::audit
