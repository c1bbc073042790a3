// SPDX-License-Identifier: Apache-2.0
#include "verify/foreign_trace.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "base/log.h"
#include "verify/npy.h"
#include "verify/trace_names.h"

namespace pointsman {
namespace {

constexpr uint64_t kMaxDumpJsonBytes = uint64_t{256} << 20;
constexpr size_t kMaxEntries = 1'000'000;

std::string_view without_suffix(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

// Appends the array of one file; a file that cannot be read becomes a note.
void add_file(FileSystem& fs, const std::string& path, const std::string& name, ForeignTrace& out) {
  const auto read = [&]() -> Result<NpyHeader> {
    PM_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.open(path));
    return read_npy_header(*file);
  };
  const Result<NpyHeader> h = read();
  if (!h.ok()) {
    out.notes.push_back(h.status().message());
    return;
  }
  if (!is_trace_type(h->dtype)) {
    out.skipped.push_back(name);
    return;
  }
  TraceTensor t{.name = name, .dtype = h->dtype, .shape = h->shape, .rows = 1, .cols = 1, .offset = h->offset, .file = path};
  // A batch of one is no dimension of a trace.
  while (t.shape.size() > 2 && t.shape[0] == 1) t.shape.erase(t.shape.begin());
  if (h->size_bytes == 0) {
    t.rows = t.cols = 0;  // its other sizes are not bounded by anything
    out.tensors.push_back(std::move(t));
    return;
  }
  if (!t.shape.empty()) t.cols = t.shape.back();
  for (size_t i = 0; i + 1 < t.shape.size(); ++i) t.rows *= t.shape[i];
  out.tensors.push_back(std::move(t));
}

Result<ForeignTrace> read_npy_folder(FileSystem& fs, const std::string& directory, const std::vector<std::string>& names) {
  ForeignTrace out;
  size_t others = 0;
  for (const std::string& file : names) {
    if (!file.ends_with(".npy")) {
      ++others;
      continue;
    }
    if (out.tensors.size() >= kMaxEntries) return error(StatusCode::kUnsupported, "{}: more than {} arrays", directory, kMaxEntries);
    add_file(fs, join_path(directory, file), point_of_dump(without_suffix(file, ".npy")), out);
  }
  if (out.tensors.empty() && !out.notes.empty()) return error(StatusCode::kCorrupt, "{}: no array could be read: {}", directory, out.notes.front());
  if (others > 0) out.notes.push_back(format("{} files that are no .npy were not read", others));
  return out;
}

// All statistics as one small tensor, kept in the trace itself.
void add_statistics(const DumpEntry& e, ForeignTrace& out) {
  TraceTensor t{.name = e.name + "#statistics", .dtype = DType::kF64, .shape = {1, 4}, .rows = 1, .cols = 4};
  t.inline_bytes.resize(e.statistics.size() * sizeof(double));
  std::memcpy(t.inline_bytes.data(), e.statistics.data(), t.inline_bytes.size());
  out.tensors.push_back(std::move(t));
}

Result<ForeignTrace> read_msprobe(FileSystem& fs, const std::string& directory) {
  ForeignTrace out;
  PM_ASSIGN_OR_RETURN(const std::string text, read_text_file(fs, join_path(directory, "dump.json"), kMaxDumpJsonBytes));
  const Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context(join_path(directory, "dump.json"));
  const Result<std::vector<DumpEntry>> entries = parse_dump_json(*json, out.notes);
  if (!entries.ok()) return entries.status().with_context(join_path(directory, "dump.json"));
  const std::string payload = join_path(directory, "dump_tensor_data");
  size_t pickles = 0, without = 0;
  std::set<std::string> seen;
  for (const DumpEntry& e : *entries) {
    const std::string point = point_of_dump(e.name);
    // A module that runs several times gives the same point again; the first call is the prompt.
    const std::string name = seen.insert(point).second ? point : e.name;
    if (e.file.ends_with(".npy")) {
      add_file(fs, join_path(payload, e.file), name, out);
      continue;
    }
    pickles += e.file.ends_with(".pt");
    if (e.statistics.size() == 4) {
      DumpEntry named = e;
      named.name = name;
      add_statistics(named, out);
    } else {
      ++without;
    }
  }
  if (pickles > 0) {
    out.notes.push_back(format("{} payloads are .pt files, which are pickles and are not read: python/pt_to_npy.py {} makes .npy of them; until then "
                               "their statistics are compared", pickles, directory));
  }
  if (without > 0) out.notes.push_back(format("{} entries have neither a readable payload nor statistics", without));
  return out;
}

// Where the dump.json of one step and rank is.
Result<std::string> find_dump(FileSystem& fs, const std::string& directory) {
  const auto has = [&](const std::string& d) { return fs.stat(join_path(d, "dump.json")).ok(); };
  if (has(directory)) return directory;
  std::vector<std::string> found;
  const auto look = [&](const std::string& under) {
    const Result<std::vector<std::string>> names = fs.list(under);
    if (!names.ok()) return;
    for (const std::string& n : *names) {
      if ((n.starts_with("rank") || n.starts_with("proc")) && has(join_path(under, n))) found.push_back(join_path(under, n));
    }
  };
  look(directory);
  PM_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  for (const std::string& n : names) {
    if (n.starts_with("step")) look(join_path(directory, n));
  }
  if (found.size() == 1) return found[0];
  if (found.empty()) return std::string();
  return error(StatusCode::kInvalidArgument, "{} holds {} dumps, {} first: name one of them", directory, found.size(), found[0]);
}

}  // namespace

std::string point_of_dump(std::string_view name) {
  // Already a trace point?
  if (const TracePlace p = trace_place(name); p.point != TracePoint::kOutside && p.point != TracePoint::kOther) return std::string(name);
  // Everything up to the class name and the call is a module path; what follows says which of its tensors.
  std::string_view path = name;
  for (const std::string_view prefix : {"Module.", "Cell.", "module.", "model."}) {
    if (path.starts_with(prefix)) path.remove_prefix(prefix.size());
  }
  enum { kOutput, kInput } side = kOutput;
  int index = 0;
  const auto number_at_end = [&](std::string_view& text, int& out) {
    const size_t dot = text.rfind('.');
    if (dot == text.npos || dot + 1 == text.size() || text.size() - dot > 4) return false;
    int value = 0;
    for (const char ch : text.substr(dot + 1)) {
      if (ch < '0' || ch > '9') return false;
      value = value * 10 + (ch - '0');
    }
    out = value;
    text = text.substr(0, dot);
    return true;
  };
  if (const size_t forward = path.find(".forward."); forward != path.npos) {
    // PATH.Class.forward.CALL.(input|output).INDEX
    std::string_view rest = path.substr(forward + 9);
    path = path.substr(0, forward);
    const size_t dot = rest.find('.');
    if (dot == rest.npos || rest.substr(0, dot) != "0") return std::string(name);  // a later call is a later token
    rest.remove_prefix(dot + 1);
    if (rest.starts_with("input")) side = kInput;
    else if (!rest.starts_with("output")) return std::string(name);
    number_at_end(rest, index);
    const size_t last = path.rfind('.');
    if (last == path.npos) return std::string(name);
    path = path.substr(0, last);  // without the class
  } else {
    number_at_end(path, index);
    if (path.ends_with(".input")) side = kInput, path = without_suffix(path, ".input");
    else if (path.ends_with(".output")) path = without_suffix(path, ".output");
    else return std::string(name);
  }
  if (path.starts_with("model.")) path.remove_prefix(6);
  struct Known {
    std::string_view module;
    int side, index;
    TracePoint point;
  };
  constexpr Known kOutside[] = {{"embed_tokens", kOutput, 0, TracePoint::kEmbedding}, {"norm", kOutput, 0, TracePoint::kFinalNorm}, {"lm_head", kOutput, 0, TracePoint::kLogits}};
  constexpr Known kInside[] = {
      {"", kOutput, 0, TracePoint::kHidden},
      {"input_layernorm", kOutput, 0, TracePoint::kAttentionInput},
      {"self_attn.q_proj", kOutput, 0, TracePoint::kQ},
      {"self_attn.k_proj", kOutput, 0, TracePoint::kK},
      {"self_attn.v_proj", kOutput, 0, TracePoint::kV},
      {"self_attn.o_proj", kInput, 0, TracePoint::kContext},
      {"post_attention_layernorm", kInput, 0, TracePoint::kResidual},
      {"post_attention_layernorm", kOutput, 0, TracePoint::kMlpInput},
      {"mlp.gate", kOutput, 0, TracePoint::kRouterLogits},
      {"mlp.gate", kOutput, 1, TracePoint::kRouterWeights},
      {"mlp.gate", kOutput, 2, TracePoint::kRouterIds},
  };
  for (const Known& k : kOutside) {
    if (path == k.module && side == k.side && index == k.index) return trace_name({0, k.point});
  }
  if (!path.starts_with("layers.")) return std::string(name);
  std::string_view module = path.substr(7);
  const size_t dot = std::min(module.find('.'), module.size());
  const TracePlace layer = trace_place("layers." + std::string(module.substr(0, dot)) + ".hidden");
  if (layer.point != TracePoint::kHidden) return std::string(name);
  module.remove_prefix(std::min(module.size(), dot + 1));
  for (const Known& k : kInside) {
    if (module == k.module && side == k.side && index == k.index) return trace_name({layer.layer, k.point});
  }
  return std::string(name);
}

Result<std::vector<DumpEntry>> parse_dump_json(const Json& json, std::vector<std::string>& notes) {
  const Json* data = json.find("data");
  if (data == nullptr || !data->is_object()) return error(StatusCode::kCorrupt, "no object `data`: is this an msprobe dump?");
  std::vector<DumpEntry> out;
  size_t unknown = 0;
  const auto add = [&](const std::string& name, const Json& j) {
    if (!j.is_object() || out.size() >= kMaxEntries) return;
    DumpEntry e{.name = name, .file = "", .statistics = {}};
    if (const Json* file = j.find("data_name"); file != nullptr && file->is_string()) e.file = file->as_string();
    // Names of files in one folder, and no way out of it.
    if (e.file.find('/') != e.file.npos || e.file == "..") e.file.clear();
    for (const char* key : {"Max", "Min", "Mean", "Norm"}) {
      const Json* v = j.find(key);
      if (v != nullptr && v->is_number()) e.statistics.push_back(v->as_double());
    }
    if (e.statistics.size() != 4) e.statistics.clear();
    if (e.file.empty() && e.statistics.empty()) {
      ++unknown;
      return;
    }
    out.push_back(std::move(e));
  };
  for (const auto& [call, sides] : data->as_object()) {
    if (!sides.is_object()) {
      ++unknown;
      continue;
    }
    for (const auto& [side, tensors] : sides.as_object()) {
      const bool is_input = side == "input_args" || side == "input";
      if (!is_input && side != "output") continue;  // parameters, gradients, keyword arguments
      if (tensors.is_object()) add(call + (is_input ? ".input.0" : ".output.0"), tensors);
      if (!tensors.is_array()) continue;
      for (size_t i = 0; i < tensors.as_array().size(); ++i)
        add(format("{}.{}.{}", call, is_input ? "input" : "output", i), tensors.as_array()[i]);
    }
  }
  if (unknown > 0) notes.push_back(format("{} entries of dump.json have another form than is known and were left out", unknown));
  notes.push_back("msprobe: names, statistics and .npy payloads follow its published description; its own files were not at hand to confirm it");
  return out;
}

Result<ForeignTrace> read_foreign_trace(FileSystem& fs, const std::string& directory) {
  PM_ASSIGN_OR_RETURN(const std::string dump, find_dump(fs, directory));
  if (!dump.empty()) return read_msprobe(fs, dump);
  PM_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(directory));
  if (std::any_of(names.begin(), names.end(), [](const std::string& n) { return n.ends_with(".npy"); })) return read_npy_folder(fs, directory, names);
  return error(StatusCode::kNotFound, "{}: a folder without .npy files and without dump.json; expected a trace", directory);
}

}  // namespace pointsman
