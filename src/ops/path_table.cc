// SPDX-License-Identifier: Apache-2.0
#include "ops/path_table.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"

namespace pointsman::ops {
namespace {

constexpr int64_t kSchemaVersion = 1;
constexpr uint64_t kMaxFileBytes = 64 << 10;
constexpr size_t kMaxShapes = 256;
constexpr int64_t kMaxSize = int64_t{1} << 24;

std::string_view format_name(DType w) {
  switch (w) {
    case DType::kBF16: return "bf16";
    case DType::kF8E4M3: return "fp8";
    case DType::kI8: return "int8";
    default: return "fp4";
  }
}

Status bad(std::string_view where, std::string_view expected) { return error(StatusCode::kCorrupt, "{}: expected {}", where, expected); }

Result<int64_t> read_integer(const Json& object, std::string_view where, std::string_view key, int64_t most) {
  const Json* v = object.find(key);
  if (v == nullptr || !v->is_int() || v->as_int() < 1 || v->as_int() > most) return bad(format("{}.{}", where, key), format("an integer from 1 to {}", most));
  return v->as_int();
}
Result<std::string> read_text(const Json& object, std::string_view key) {
  const Json* v = object.find(key);
  if (v == nullptr || !v->is_string()) return bad(key, "a string");
  return v->as_string();
}

Status read_paths(const Json* all, const std::string& where, PanelPaths& out) {
  if (all == nullptr || !all->is_object()) return bad(where + ".paths", "an object");
  for (size_t f = 0; f < std::size(kPanelFormats); ++f) {
    const std::string at = format("{}.paths.{}", where, format_name(kPanelFormats[f]));
    const Json* list = all->find(format_name(kPanelFormats[f]));
    if (list == nullptr) continue;  // the built-in rule
    if (!list->is_array() || list->as_array().size() != static_cast<size_t>(kNumPathRows)) return bad(at, format("a list of {}", kNumPathRows));
    for (size_t i = 0; i < static_cast<size_t>(kNumPathRows); ++i) {
      const Json& v = list->as_array()[i];
      int p = 0;
      while (p < kNumPanelPaths && !(v.is_string() && v.as_string() == panel_path_name(static_cast<PanelPath>(p)))) ++p;
      if (p == kNumPanelPaths) return bad(format("{}[{}]", at, i), "row_dot, small_tile or packed_tile");
      out.of[f][i] = static_cast<PanelPath>(p);
    }
  }
  return ok_status();
}

}  // namespace

std::string_view panel_path_name(PanelPath path) {
  switch (path) {
    case PanelPath::kRowDot: return "row_dot";
    case PanelPath::kSmallTile: return "small_tile";
    case PanelPath::kPackedTile: return "packed_tile";
  }
  return "?";
}

PanelPaths::PanelPaths() {
  for (size_t f = 0; f < std::size(kPanelFormats); ++f) {
    for (size_t i = 0; i < static_cast<size_t>(kNumPathRows); ++i) of[f][i] = built_in_path(kPanelFormats[f], kPathRows[i]);
  }
}
bool operator==(const PanelPaths& a, const PanelPaths& b) {
  return std::equal(&a.of[0][0], &a.of[0][0] + std::size(kPanelFormats) * kNumPathRows, &b.of[0][0]);
}

const PanelPaths* nearest_paths(const PathTable& table, const MoeShape& shape) {
  const auto ratio = [](int64_t a, int64_t b) { return std::fabs(std::log(static_cast<double>(std::max<int64_t>(1, a)) / static_cast<double>(std::max<int64_t>(1, b)))); };
  const PanelPaths* nearest = nullptr;
  double least = 0;
  for (const TunedShape& t : table.shapes) {
    const double d = ratio(t.shape.experts, shape.experts) + ratio(t.shape.top_k, shape.top_k) + ratio(t.shape.hidden, shape.hidden) + ratio(t.shape.width, shape.width);
    if (nearest != nullptr && d >= least) continue;
    nearest = &t.paths;
    least = d;
  }
  return nearest;
}

std::string path_table_file_name(const MachineKey& key) {
  Xxh3 hash;
  hash.update(std::as_bytes(std::span(key.cpu)));
  return format("kernel-paths-{}-{}-{:016x}.json", key.isa, key.threads, hash.finish().low);
}

std::string path_table_json(const PathTable& table) {
  Json bounds = Json::array();
  for (const int64_t r : kPathRows) bounds.push_back(r);
  Json shapes = Json::array();
  for (const TunedShape& t : table.shapes) {
    Json paths = Json::object();
    for (size_t f = 0; f < std::size(kPanelFormats); ++f) {
      Json list = Json::array();
      for (const PanelPath p : t.paths.of[f]) list.push_back(std::string(panel_path_name(p)));
      paths.set(format_name(kPanelFormats[f]), std::move(list));
    }
    Json j = Json::object();
    j.set("experts", t.shape.experts);
    j.set("top_k", t.shape.top_k);
    j.set("hidden", t.shape.hidden);
    j.set("width", t.shape.width);
    j.set("paths", std::move(paths));
    shapes.push_back(std::move(j));
  }
  Json root = Json::object();
  root.set("schema_version", kSchemaVersion);
  root.set("cpu", table.key.cpu);
  root.set("isa", table.key.isa);
  root.set("threads", table.key.threads);
  root.set("rows_up_to", std::move(bounds));
  root.set("shapes", std::move(shapes));
  return root.dump(1) + "\n";
}

Result<PathTable> parse_path_table(std::string_view text) {
  if (text.size() > kMaxFileBytes) return bad("a table of paths", format("at most {} bytes", kMaxFileBytes));
  PM_ASSIGN_OR_RETURN(const Json root, parse_json(text));
  if (!root.is_object()) return bad("a table of paths", "an object");
  const Json* version = root.find("schema_version");
  if (version == nullptr || !version->is_int() || version->as_int() != kSchemaVersion) return bad("schema_version", format("{}", kSchemaVersion));
  PathTable out;
  PM_ASSIGN_OR_RETURN(out.key.cpu, read_text(root, "cpu"));
  PM_ASSIGN_OR_RETURN(out.key.isa, read_text(root, "isa"));
  PM_ASSIGN_OR_RETURN(const int64_t threads, read_integer(root, "", "threads", 1 << 16));
  out.key.threads = static_cast<int>(threads);
  const Json* bounds = root.find("rows_up_to");
  const auto is_bound = [&](size_t i) { return bounds->as_array()[i].is_int() && bounds->as_array()[i].as_int() == kPathRows[i]; };
  bool same = bounds != nullptr && bounds->is_array() && bounds->as_array().size() == static_cast<size_t>(kNumPathRows);
  for (size_t i = 0; same && i < static_cast<size_t>(kNumPathRows); ++i) same = is_bound(i);
  if (!same) return bad("rows_up_to", format("the {} bounds of this version", kNumPathRows));
  const Json* shapes = root.find("shapes");
  if (shapes == nullptr || !shapes->is_array() || shapes->as_array().size() > kMaxShapes) return bad("shapes", format("a list of at most {}", kMaxShapes));
  for (size_t i = 0; i < shapes->as_array().size(); ++i) {
    const Json& j = shapes->as_array()[i];
    const std::string where = format("shapes[{}]", i);
    if (!j.is_object()) return bad(where, "an object");
    TunedShape t;
    PM_ASSIGN_OR_RETURN(t.shape.experts, read_integer(j, where, "experts", kMaxSize));
    PM_ASSIGN_OR_RETURN(t.shape.top_k, read_integer(j, where, "top_k", kMaxSize));
    PM_ASSIGN_OR_RETURN(t.shape.hidden, read_integer(j, where, "hidden", kMaxSize));
    PM_ASSIGN_OR_RETURN(t.shape.width, read_integer(j, where, "width", kMaxSize));
    PM_RETURN_IF_ERROR(read_paths(j.find("paths"), where, t.paths));
    out.shapes.push_back(std::move(t));
  }
  return out;
}

Result<PathTable> read_path_table(FileSystem& fs, const std::string& folder, const MachineKey& key) {
  const std::string path = join_path(folder, path_table_file_name(key));
  Result<std::string> text = read_text_file(fs, path, kMaxFileBytes);
  if (!text.ok()) return text.status();
  Result<PathTable> table = parse_path_table(*text);
  if (!table.ok()) return table.status().with_context(path);
  if (table->key == key) return table;
  return error(StatusCode::kCorrupt, "{}: made on {}, {}, {} threads; this is {}, {}, {} threads", path, table->key.cpu.substr(0, 80), table->key.isa.substr(0, 16),
               table->key.threads, key.cpu, key.isa, key.threads);
}

Status write_path_table(FileSystem& fs, const std::string& folder, const PathTable& table) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return error(StatusCode::kIo, "{}: cannot be made: {}", folder, failed.message());
  return write_text_file(fs, join_path(folder, path_table_file_name(table.key)), path_table_json(table));
}

}  // namespace pointsman::ops
