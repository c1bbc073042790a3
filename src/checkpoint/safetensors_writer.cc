// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/checked_math.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/safetensors.h"

namespace pointsman {
namespace {

Result<uint64_t> size_of(const SafetensorsWriter::Declaration& t) {
  if (!is_plain_tensor_name(t.name) || t.name == "__metadata__") {
    return error(StatusCode::kInvalidArgument, "tensor name {} cannot be written", json_quote(t.name.substr(0, 64)));
  }
  if (t.shape.size() > kMaxTensorDims)
    return error(StatusCode::kInvalidArgument, "tensor {}: more than {} dimensions", t.name, kMaxTensorDims);
  std::optional<uint64_t> bits = static_cast<uint64_t>(dtype_bits(t.dtype));
  bool is_empty = false;
  for (const int64_t d : t.shape) {
    if (d < 0) return error(StatusCode::kInvalidArgument, "tensor {}: dimension {} is negative", t.name, d);
    is_empty |= d == 0;
    if (bits) bits = checked_mul(*bits, static_cast<uint64_t>(std::max<int64_t>(1, d)));
  }
  if (!bits) return error(StatusCode::kInvalidArgument, "tensor {}: its size overflows", t.name);
  if (is_empty) return uint64_t{0};
  if (*bits % 8 != 0)
    return error(StatusCode::kInvalidArgument, "tensor {}: {} bits of {} are no whole number of bytes", t.name, *bits,
                 dtype_name(t.dtype));
  return *bits / 8;
}

// Adds [begin, end) to disjoint ranges that do not touch.
void add_range(std::map<uint64_t, uint64_t>& ranges, uint64_t begin, uint64_t end) {
  auto it = ranges.upper_bound(begin);
  if (it != ranges.begin() && std::prev(it)->second >= begin) --it;
  while (it != ranges.end() && it->first <= end) {
    begin = std::min(begin, it->first);
    end = std::max(end, it->second);
    it = ranges.erase(it);
  }
  ranges.emplace(begin, end);
}

}  // namespace

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    FileSystem& fs, const std::string& path, std::vector<Declaration> tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata, uint64_t alignment) {
  auto writer = std::make_unique<SafetensorsWriter>();
  writer->path_ = path;
  Json header = Json::object();
  if (!metadata.empty()) {
    Json m = Json::object();
    for (const auto& [k, v] : metadata) m.set(k, v);
    header.as_object().emplace_back("__metadata__", std::move(m));
  }
  uint64_t offset = 0;
  for (const Declaration& t : tensors) {
    Result<uint64_t> size = size_of(t);
    if (!size.ok()) return size.status().with_context(path);
    const std::optional<uint64_t> end = checked_add(offset, *size);
    // Files end at 2^63 - 1.
    if (!end || *end > static_cast<uint64_t>(INT64_MAX) - kMaxReadHeaderBytes - 8) {
      return error(StatusCode::kInvalidArgument, "{}: the file's size overflows at tensor {}", path, t.name);
    }
    Json shape = Json::array();
    for (const int64_t d : t.shape) shape.push_back(d);
    Json entry = Json::object();
    entry.set("dtype", dtype_name(t.dtype));
    entry.set("shape", std::move(shape));
    entry.set("data_offsets", Json(Json::Array{Json(offset), Json(*end)}));
    header.as_object().emplace_back(t.name, std::move(entry));
    if (!writer->places_.emplace(t.name, Place{offset, *size}).second) {
      return error(StatusCode::kInvalidArgument, "{}: tensor {} is declared twice", path, t.name);
    }
    offset = *end;
  }
  std::string text = header.dump();
  text.resize(align_up(text.size() + 8, alignment) - 8, ' ');
  const uint64_t n = text.size();
  if (n > kMaxReadHeaderBytes) {
    return error(StatusCode::kInvalidArgument,
                 "{}: the header of {} tensors has {} bytes, more than the {} that this program reads", path, tensors.size(), n,
                 kMaxReadHeaderBytes);
  }
  for (auto& [name, place] : writer->places_) place.begin += 8 + n;
  PM_ASSIGN_OR_RETURN(writer->file_, fs.create_atomic(path));
  PM_RETURN_IF_ERROR(writer->file_->pwrite(std::as_bytes(std::span(&n, 1)), 0));
  PM_RETURN_IF_ERROR(writer->file_->pwrite(std::as_bytes(std::span(text)), 8));
  return writer;
}

Status SafetensorsWriter::write(std::string_view name, uint64_t offset, std::span<const std::byte> data) {
  const auto it = places_.find(name);
  if (it == places_.end()) return error(StatusCode::kInvalidArgument, "{}: tensor {} was not declared", path_, name);
  const Place& place = it->second;
  if (offset > place.size || data.size() > place.size - offset) {
    return error(StatusCode::kInvalidArgument, "{}: tensor {}: {} bytes at {} go beyond its {}", path_, name, data.size(),
                 offset, place.size);
  }
  if (data.empty()) return ok_status();
  const uint64_t begin = place.begin + offset;
  PM_RETURN_IF_ERROR(file_->pwrite(data, begin));
  std::lock_guard guard(mutex_);
  add_range(written_, begin, begin + data.size());
  return ok_status();
}

Status SafetensorsWriter::leave_hole(std::string_view name) {
  const auto it = places_.find(name);
  if (it == places_.end()) return error(StatusCode::kInvalidArgument, "{}: tensor {} was not declared", path_, name);
  const Place& place = it->second;
  if (place.size == 0) return ok_status();
  constexpr std::byte kZero{0};
  PM_RETURN_IF_ERROR(write(name, place.size - 1, {&kZero, 1}));  // the file reaches its end
  std::lock_guard guard(mutex_);
  add_range(written_, place.begin, place.begin + place.size);
  return ok_status();
}

Status SafetensorsWriter::commit() {
  for (const auto& [name, place] : places_) {
    if (place.size == 0) continue;
    auto it = written_.upper_bound(place.begin);
    const uint64_t reached = it == written_.begin() ? 0 : std::prev(it)->second;
    if (reached < place.begin + place.size) {
      return error(StatusCode::kInternal, "{}: tensor {} was not written from byte {} on", path_, name,
                   reached > place.begin ? reached - place.begin : 0);
    }
  }
  return file_->commit();
}

}  // namespace pointsman
