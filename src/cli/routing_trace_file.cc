// SPDX-License-Identifier: Apache-2.0
#include "cli/routing_trace_file.h"

#include <algorithm>

#include "base/log.h"
#include "verify/trace_file.h"
#include "verify/trace_names.h"

namespace pointsman::cli {
namespace {

constexpr int64_t kRowsAtOnce = 4096;

// One file as a run.
Result<RecordedRoutes> read_run(FileSystem& fs, const std::string& path) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<TraceReader> reader, TraceReader::open(fs, path));
  RecordedRoutes r;
  r.files.push_back(path);
  r.model_type = reader->metadata("model_type");
  r.model_digest = reader->metadata("model_digest");
  std::vector<const TraceTensor*> layers;
  for (const TraceTensor& t : reader->tensors()) {
    const TracePlace place = trace_place(t.name);
    if (place.point == TracePoint::kRouterIds && t.is_integer()) layers.push_back(&t);
  }
  std::sort(layers.begin(), layers.end(), [](const auto* a, const auto* b) { return trace_place(a->name) < trace_place(b->name); });
  if (layers.empty()) {
    return error(StatusCode::kInvalidArgument, "{}: no layers.N.router.ids; record with 'pointsman trace MODEL --what router'", path);
  }
  const TraceTensor& first = *layers[0];
  if (first.cols < 1 || first.rows < 1) return error(StatusCode::kInvalidArgument, "{}: {} is empty", path, first.name);
  RoutingTrace& trace = r.trace;
  trace.num_layers = static_cast<int>(layers.size());
  trace.top_k = static_cast<int>(std::min<int64_t>(first.cols, 1 << 20));
  // Before anything is allocated: then the ids are fewer bytes than the file.
  for (const TraceTensor* t : layers) {
    if (t->rows == first.rows && t->cols == first.cols) continue;
    return error(StatusCode::kInvalidArgument, "{}: {} is [{}, {}], {} is [{}, {}]", path, t->name, t->rows, t->cols, first.name, first.rows, first.cols);
  }
  trace.ids.resize(static_cast<size_t>(first.rows) * layers.size() * static_cast<size_t>(first.cols));
  std::vector<double> rows;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const TraceTensor& t = *layers[layer];
    TracePlace place = trace_place(t.name);
    r.layer_ids.push_back(place.layer);
    place.point = TracePoint::kRouterLogits;
    const TraceTensor* const logits = reader->find(trace_name(place));
    if (logits == nullptr || (layer > 0 && logits->cols != trace.num_experts) || logits->cols > (1 << 20)) {
      return error(StatusCode::kInvalidArgument, "{}: {} is {}: its width is the number of experts, the same in every layer", path, trace_name(place),
                   logits == nullptr ? "missing" : format("{} wide", logits->cols));
    }
    trace.num_experts = static_cast<int>(logits->cols);
    for (int64_t row = 0; row < t.rows; row += kRowsAtOnce) {
      const int64_t n = std::min(kRowsAtOnce, t.rows - row);
      PM_RETURN_IF_ERROR(reader->read_rows(t, row, n, rows));
      for (int64_t i = 0; i < n; ++i) {
        int32_t* const out = trace.ids.data() + ((row + i) * trace.num_layers + static_cast<int64_t>(layer)) * trace.top_k;
        for (int64_t k = 0; k < t.cols; ++k) {
          const double id = rows[static_cast<size_t>(i * t.cols + k)];
          out[k] = id >= 0 && id < trace.num_experts ? static_cast<int32_t>(id) : -1;
        }
      }
    }
  }
  if (const Status s = trace.check(); !s.ok()) return s.with_context(path);
  return r;
}

}  // namespace

Result<RecordedRoutes> read_routes(FileSystem& fs, const std::string& path) {
  // A path that cannot be listed is a file.
  const Result<std::vector<std::string>> names = fs.list(path);
  if (!names.ok()) return read_run(fs, path);
  RecordedRoutes all;
  for (const std::string& name : *names) {
    if (!name.ends_with(".safetensors")) continue;
    const std::string file = join_path(path, name);
    PM_ASSIGN_OR_RETURN(RecordedRoutes run, read_run(fs, file));
    if (!all.files.empty() && (run.model_digest != all.model_digest || run.layer_ids != all.layer_ids)) {
      return error(StatusCode::kInvalidArgument, "{} and {} are of different models", all.files[0], file);
    }
    if (const Status s = all.trace.append(run.trace); !s.ok()) return s.with_context(file);
    all.files.push_back(file);
    all.layer_ids = run.layer_ids;
    all.model_type = run.model_type;
    all.model_digest = run.model_digest;
  }
  if (all.files.empty()) return error(StatusCode::kNotFound, "{}: no *.safetensors in this folder", path);
  return all;
}

}  // namespace pointsman::cli
