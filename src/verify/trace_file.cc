// SPDX-License-Identifier: Apache-2.0
#include "verify/trace_file.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "verify/foreign_trace.h"

namespace pointsman {
namespace {

// Elements of one position.
int64_t row_width(const SafetensorsWriter::Declaration& d) {
  int64_t width = 1;
  for (size_t i = 1; i < d.shape.size(); ++i) width *= d.shape[i];
  return width;
}

template <class T, class Convert>
void convert(std::span<const std::byte> raw, std::vector<double>& out, Convert to_double) {
  out.resize(raw.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, raw.data() + i * sizeof(T), sizeof(T));  // the file need not be aligned
    out[i] = to_double(value);
  }
}

}  // namespace

// What the reader converts; the element type comes from the header, so the switch is the whole door.
bool is_trace_type(DType d) {
  switch (d) {
    case DType::kF32:
    case DType::kF64:
    case DType::kBF16:
    case DType::kF16:
    case DType::kI32:
    case DType::kI64: return true;
    default: return false;
  }
}

Result<TraceSelection> parse_trace_selection(std::string_view text) {
  TraceSelection s{.logits = false, .router = false, .hidden = false};
  struct Word {
    std::string_view name;
    bool TraceSelection::*member;
  };
  constexpr Word kWords[] = {{"logits", &TraceSelection::logits},       {"router", &TraceSelection::router},
                             {"hidden", &TraceSelection::hidden},       {"embedding", &TraceSelection::embedding},
                             {"attention", &TraceSelection::attention}, {"mlp", &TraceSelection::mlp},
                             {"experts", &TraceSelection::experts},     {"norm", &TraceSelection::norm}};
  while (true) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string_view word = text.substr(0, comma);
    bool known = false;
    for (const Word& w : kWords) {
      if (word != w.name && word != "all") continue;
      s.*w.member = true;
      known = true;
    }
    if (!known) return error(StatusCode::kInvalidArgument, "'{}': expected a list of {}", word, kTraceSelectionWords);
    if (comma == text.size()) return s;
    text.remove_prefix(comma + 1);
  }
}

Result<std::unique_ptr<TraceWriter>> TraceWriter::create(FileSystem& fs, const std::string& path, const ModelConfig& config,
                                                         const TraceSelection& selection, int64_t tokens,
                                                         const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::vector<SafetensorsWriter::Declaration> list;
  const auto declare = [&](std::string name, DType dtype, std::vector<int64_t> row) {
    row.insert(row.begin(), tokens);
    list.push_back({std::move(name), dtype, std::move(row)});
  };
  const int64_t q = config.num_attention_heads * config.head_dim, kv = config.num_key_value_heads * config.head_dim;
  const int64_t hidden = config.hidden_size, top_k = config.num_experts_per_tok;
  // Hyper-connection models have several residual streams; compressed attention has no points inside, latent attention no keys and
  // values of its own heads.
  const bool has_streams = config.hyper.streams > 0;
  const std::vector<int64_t> residual = has_streams ? std::vector<int64_t>{config.hyper.streams, hidden} : std::vector<int64_t>{hidden};
  const bool plain_attention = config.compressed.layers.empty() && !has_streams;
  if (selection.embedding) declare("embedding", DType::kF32, residual);
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    const auto in_layer = [&](const char* what, DType dtype, std::vector<int64_t> row) {
      declare(format("layers.{}.{}", i, what), dtype, std::move(row));
    };
    const bool is_moe = config.layer_is_moe[static_cast<size_t>(i)];
    if (selection.attention && config.latent) {
      in_layer("attention.context", DType::kF32, {config.num_attention_heads * config.latent.v});
      in_layer("attention.residual", DType::kF32, {hidden});
    } else if (selection.attention && plain_attention) {
      in_layer("attention.input", DType::kF32, {hidden});
      in_layer("attention.q", DType::kF32, {q});
      in_layer("attention.k", DType::kF32, {kv});
      in_layer("attention.v", DType::kF32, {kv});
      in_layer("attention.q_rotated", DType::kF32, {q});
      in_layer("attention.k_rotated", DType::kF32, {kv});
      in_layer("attention.context", DType::kF32, {q});
      in_layer("attention.residual", DType::kF32, {hidden});
    }
    if (selection.mlp) in_layer("mlp.input", DType::kF32, {hidden});
    if (selection.router && is_moe) {
      in_layer("router.logits", DType::kF32, {config.num_experts});
      in_layer("router.ids", DType::kI32, {top_k});
      in_layer("router.weights", DType::kF32, {top_k});
    }
    if (selection.experts && is_moe) {
      in_layer("experts.act", DType::kF32, {top_k, config.moe_intermediate_size});
      in_layer("experts.output", DType::kF32, {top_k, hidden});
    }
    if (selection.hidden) in_layer("hidden", DType::kF32, residual);
  }
  if (selection.norm) declare("final_norm", DType::kF32, {hidden});
  if (selection.logits) declare("logits", DType::kF32, {config.vocab_size});
  if (list.empty()) return error(StatusCode::kInvalidArgument, "a dense model has no router and no experts: nothing to trace");
  auto writer = std::make_unique<TraceWriter>();
  for (const auto& d : list) {
    writer->tensors_.emplace(d.name, d);
    writer->bytes_ += static_cast<uint64_t>(tokens * row_width(d)) * 4;
  }
  PM_ASSIGN_OR_RETURN(writer->file_, SafetensorsWriter::create(fs, path, std::move(list), metadata));
  return writer;
}

bool TraceWriter::wants(std::string_view name) {
  return tensors_.find(name) != tensors_.end();
}

Status TraceWriter::rows(std::string_view name, DType dtype, int64_t first_row, int64_t rows, int64_t cols, const void* data) {
  const auto it = tensors_.find(name);
  if (it == tensors_.end() || it->second.dtype != dtype || row_width(it->second) != cols ||
      first_row + rows > it->second.shape[0]) {
    return error(StatusCode::kInternal, "trace of {}: {} rows of {} from row {} were not announced", name, rows, cols,
                 first_row);
  }
  return file_->write(name, static_cast<uint64_t>(first_row * cols) * 4,
                      {static_cast<const std::byte*>(data), static_cast<size_t>(rows * cols) * 4});
}
Status TraceWriter::rows_f32(std::string_view name, int64_t first_row, int64_t n, int64_t cols, const float* data) {
  return rows(name, DType::kF32, first_row, n, cols, data);
}
Status TraceWriter::rows_i32(std::string_view name, int64_t first_row, int64_t n, int64_t cols, const int32_t* data) {
  return rows(name, DType::kI32, first_row, n, cols, data);
}

Result<std::unique_ptr<TraceReader>> TraceReader::open(FileSystem& fs, const std::string& path) {
  auto reader = std::make_unique<TraceReader>();
  reader->path_ = path;
  reader->fs_ = &fs;
  if (const Result<FileInfo> what = fs.stat(path); (what.ok() && !what->is_regular) || (!what.ok() && fs.list(path).ok())) {
    PM_ASSIGN_OR_RETURN(ForeignTrace folder, read_foreign_trace(fs, path));
    reader->tensors_ = std::move(folder.tensors);
    reader->skipped_ = std::move(folder.skipped);
    reader->notes_ = std::move(folder.notes);
    std::stable_sort(reader->tensors_.begin(), reader->tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
    const auto same = std::unique(reader->tensors_.begin(), reader->tensors_.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
    if (same != reader->tensors_.end())
      reader->notes_.push_back(format("{} more arrays of a name that another has already", reader->tensors_.end() - same));
    reader->tensors_.erase(same, reader->tensors_.end());
    return reader;
  }
  PM_ASSIGN_OR_RETURN(reader->file_, fs.open(path));
  PM_ASSIGN_OR_RETURN(const FileInfo info, reader->file_->stat());
  if (!info.is_regular) return error(StatusCode::kUnsupported, "{}: not a regular file", path);
  PM_ASSIGN_OR_RETURN(SafetensorsHeader header, read_safetensors_header(*reader->file_, info.size_bytes));
  reader->metadata_ = std::move(header.metadata);
  for (const SafetensorsEntry& e : header.entries) {
    if (!is_trace_type(e.dtype)) {
      reader->skipped_.push_back(e.name);
      continue;
    }
    TraceTensor t{
        .name = e.name, .dtype = e.dtype, .shape = {e.shape, e.shape + e.num_dims}, .rows = 1, .cols = 1, .offset = e.offset};
    if (!t.shape.empty()) t.cols = t.shape.back();
    for (size_t d = 0; d + 1 < t.shape.size(); ++d) t.rows *= t.shape[d];
    reader->tensors_.push_back(std::move(t));
  }
  std::sort(reader->tensors_.begin(), reader->tensors_.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return reader;
}

const TraceTensor* TraceReader::find(std::string_view name) const {
  const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TraceTensor& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

std::string TraceReader::metadata(std::string_view key) const {
  for (const auto& [k, v] : metadata_) {
    if (k == key) return v;
  }
  return "";
}

Status TraceReader::read_bytes(const TraceTensor& t, int64_t first, int64_t count, std::vector<std::byte>& out) {
  const uint64_t row_bytes = static_cast<uint64_t>(t.cols) * static_cast<uint64_t>(dtype_bits(t.dtype) / 8);
  out.resize(static_cast<size_t>(count) * row_bytes);
  if (!t.inline_bytes.empty()) {
    const uint64_t begin = static_cast<uint64_t>(first) * row_bytes;
    if (begin + out.size() > t.inline_bytes.size()) return error(StatusCode::kInternal, "{}: rows beyond its end", t.name);
    std::copy_n(t.inline_bytes.begin() + static_cast<ptrdiff_t>(begin), out.size(), out.begin());
    return ok_status();
  }
  if (!t.file.empty() && t.file != open_path_) {
    PM_ASSIGN_OR_RETURN(file_, fs_->open(t.file));
    open_path_ = t.file;
  }
  return read_exact(*file_, out, t.offset + static_cast<uint64_t>(first) * row_bytes);
}

Status TraceReader::read_rows(const TraceTensor& t, int64_t first, int64_t count, std::vector<double>& out) {
  PM_RETURN_IF_ERROR(read_bytes(t, first, count, raw_));
  switch (t.dtype) {
    case DType::kF32: convert<float>(raw_, out, [](float v) { return double{v}; }); break;
    case DType::kF64: convert<double>(raw_, out, [](double v) { return v; }); break;
    case DType::kBF16: convert<bf16>(raw_, out, [](bf16 v) { return double{to_float(v)}; }); break;
    case DType::kF16: convert<f16>(raw_, out, [](f16 v) { return double{to_float(v)}; }); break;
    case DType::kI32: convert<int32_t>(raw_, out, [](int32_t v) { return static_cast<double>(v); }); break;
    default: convert<int64_t>(raw_, out, [](int64_t v) { return static_cast<double>(v); }); break;
  }
  return ok_status();
}

}  // namespace pointsman
