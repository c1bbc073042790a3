// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.h"

#include <cstring>

#include "base/json.h"
#include "base/log.h"

namespace pointsman {

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(FileSystem& fs, const std::string& path,
                                                                     std::vector<Declaration> tensors,
                                                                     const std::vector<std::pair<std::string, std::string>>& metadata) {
  auto writer = std::make_unique<SafetensorsWriter>();
  Json header = Json::object();
  if (!metadata.empty()) {
    Json m = Json::object();
    for (const auto& [k, v] : metadata) m.set(k, v);
    header.as_object().emplace_back("__metadata__", std::move(m));
  }
  uint64_t offset = 0;
  for (const Declaration& t : tensors) {
    uint64_t size = static_cast<uint64_t>(dtype_bits(t.dtype)) / 8;
    Json shape = Json::array();
    for (const int64_t d : t.shape) {
      size *= static_cast<uint64_t>(d);
      shape.push_back(d);
    }
    Json entry = Json::object();
    entry.set("dtype", dtype_name(t.dtype));
    entry.set("shape", std::move(shape));
    entry.set("data_offsets", Json(Json::Array{Json(offset), Json(offset + size)}));
    header.as_object().emplace_back(t.name, std::move(entry));
    if (!writer->places_.emplace(t.name, Place{offset, size}).second) {
      return error(StatusCode::kInvalidArgument, "{}: tensor {} is declared twice", path, t.name);
    }
    offset += size;
  }
  writer->declared_ = offset;
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts at a multiple of 8
  const uint64_t n = text.size();
  for (auto& [name, place] : writer->places_) place.begin += 8 + n;
  PM_ASSIGN_OR_RETURN(writer->file_, fs.create_atomic(path));
  PM_RETURN_IF_ERROR(writer->file_->pwrite(std::as_bytes(std::span(&n, 1)), 0));
  PM_RETURN_IF_ERROR(writer->file_->pwrite(std::as_bytes(std::span(text)), 8));
  return writer;
}

Status SafetensorsWriter::write(std::string_view name, uint64_t offset, std::span<const std::byte> data) {
  const auto it = places_.find(name);
  if (it == places_.end()) return error(StatusCode::kInvalidArgument, "tensor {} was not declared", name);
  if (offset > it->second.size || data.size() > it->second.size - offset) {
    return error(StatusCode::kInvalidArgument, "tensor {}: {} bytes at {} go beyond its {}", name, data.size(), offset, it->second.size);
  }
  written_ += data.size();
  return file_->pwrite(data, it->second.begin + offset);
}

Status SafetensorsWriter::commit() {
  if (written_ < declared_) return error(StatusCode::kInternal, "{} of {} bytes were written", written_, declared_);
  return file_->commit();
}

}  // namespace pointsman
