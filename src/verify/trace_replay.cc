// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <limits>

#include "base/log.h"
#include "verify/trace_file.h"

namespace pointsman {
namespace {

constexpr std::string_view kIds = ".router.ids", kHidden = ".hidden", kEmbedding = "embedding";

bool fits_i32(double v) {
  return v == static_cast<double>(static_cast<int64_t>(v)) && v >= std::numeric_limits<int32_t>::min() &&
         v <= std::numeric_limits<int32_t>::max();
}

}  // namespace

Result<std::unique_ptr<TraceReplay>> TraceReplay::create(TraceReader& reader, bool inputs, bool routes) {
  const auto has = [&](std::string_view suffix) {
    return std::any_of(reader.tensors().begin(), reader.tensors().end(), [&](const TraceTensor& t) { return t.name.ends_with(suffix); });
  };
  if (inputs && !has(kHidden) && !has(kEmbedding))
    return error(StatusCode::kInvalidArgument, "{} has no layers.N.hidden: there are no layer inputs to replay", reader.path());
  if (routes && !has(kIds))
    return error(StatusCode::kInvalidArgument, "{} has no layers.N.router.ids: there are no routes to replay", reader.path());
  return std::make_unique<TraceReplay>(reader, inputs, routes);
}

Result<bool> TraceReplay::read(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, bool is_integer) {
  const TraceTensor* t = reader_.find(name);
  if (t == nullptr) return false;
  // A position may have several dimensions: residual streams.
  const int64_t positions = t->shape.size() > 1 ? t->shape[0] : t->rows;
  const int64_t per_position = positions > 0 ? t->rows / positions : 0;
  if (per_position * t->cols != cols || t->is_integer() != is_integer) {
    return error(StatusCode::kInvalidArgument, "replay of {}: {} has {} x {} values of {} for a position, expected {} {}; is it a trace of this model?",
                 name, reader_.path(), per_position, t->cols, dtype_name(t->dtype), cols, is_integer ? "integers" : "floats");
  }
  if (first_row + rows > positions) {
    return error(StatusCode::kInvalidArgument, "replay of {}: {} has {} positions, row {} was asked for", name, reader_.path(), positions,
                 first_row + rows - 1);
  }
  PM_RETURN_IF_ERROR(reader_.read_rows(*t, first_row * per_position, rows * per_position, values_));
  return true;
}

Result<bool> TraceReplay::rows_f32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, float* out) {
  if (!inputs_) return false;
  PM_ASSIGN_OR_RETURN(const bool found, read(name, first_row, rows, cols, false));
  if (found) std::transform(values_.begin(), values_.end(), out, [](double v) { return static_cast<float>(v); });
  return found;
}

Result<bool> TraceReplay::rows_i32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, int32_t* out) {
  if (!routes_) return false;
  PM_ASSIGN_OR_RETURN(const bool found, read(name, first_row, rows, cols, true));
  if (!found) return false;
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!fits_i32(values_[i])) return error(StatusCode::kInvalidArgument, "replay of {}: {} is no expert id", name, values_[i]);
    out[i] = static_cast<int32_t>(values_[i]);
  }
  return true;
}

Result<std::vector<int32_t>> trace_tokens(TraceReader& reader) {
  std::vector<int32_t> ids;
  const std::string text = reader.metadata("tokens");
  for (const char *at = text.data(), *end = at + text.size(); at < end;) {
    int32_t id = 0;
    const auto [rest, ec] = std::from_chars(at, end, id);
    if (ec != std::errc() || (rest != end && *rest != ','))
      return error(StatusCode::kCorrupt, "{}: tokens of its metadata are no list of ids", reader.path());
    ids.push_back(id);
    at = rest == end ? end : rest + 1;
  }
  if (!ids.empty()) return ids;
  const TraceTensor* t = reader.find("tokens");
  constexpr int64_t kMaxTokens = 1 << 24;
  if (t == nullptr || !t->is_integer() || t->rows != 1 || t->cols > kMaxTokens) {
    return error(StatusCode::kNotFound, "{} does not say which tokens it is of (metadata or an integer tensor `tokens`); give --tokens",
                 reader.path());
  }
  std::vector<double> values;
  PM_RETURN_IF_ERROR(reader.read_rows(*t, 0, 1, values));
  for (const double v : values) {
    if (!fits_i32(v)) return error(StatusCode::kCorrupt, "{}: tokens has {}, which is no id", reader.path(), v);
    ids.push_back(static_cast<int32_t>(v));
  }
  return ids;
}

}  // namespace pointsman
