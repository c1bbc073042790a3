// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "base/log.h"

namespace pointsman {
namespace {

namespace od = simdjson::ondemand;

Status json_error(simdjson::error_code code, std::string_view where) {
  return error(StatusCode::kCorrupt, "safetensors header: {}{}{}", where, where.empty() ? "" : ": ", simdjson::error_message(code));
}

Status bad(std::string_view tensor, std::string_view what) { return error(StatusCode::kCorrupt, "tensor {}: {}", tensor, what); }

// A name that can be printed and compared: no control characters.
bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxTensorNameBytes &&
         std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

Status read_shape(od::value value, SafetensorsEntry& e) {
  od::array dims;
  if (auto code = value.get_array().get(dims)) return bad(e.name, format("\"shape\" is no array ({})", simdjson::error_message(code)));
  int n = 0;
  for (auto item : dims) {
    uint64_t d = 0;
    if (auto code = item.get_uint64().get(d)) {
      return bad(e.name, format("dimension {} of \"shape\" is no non-negative integer ({})", n, simdjson::error_message(code)));
    }
    if (n == 4) return error(StatusCode::kUnsupported, "tensor {}: more than 4 dimensions", e.name);
    if (d > static_cast<uint64_t>(INT64_MAX)) return bad(e.name, format("dimension {} is {}, which overflows", n, d));
    e.shape[n++] = static_cast<int64_t>(d);
  }
  e.num_dims = static_cast<uint8_t>(n);
  return ok_status();
}

Status read_offsets(od::value value, std::string_view name, uint64_t data_bytes, uint64_t& begin, uint64_t& end) {
  od::array offsets;
  if (auto code = value.get_array().get(offsets)) return bad(name, format("\"data_offsets\" is no array ({})", simdjson::error_message(code)));
  uint64_t pair[2] = {};
  int n = 0;
  for (auto item : offsets) {
    if (n == 2) return bad(name, "\"data_offsets\" has more than two numbers");
    if (auto code = item.get_uint64().get(pair[n])) {
      return bad(name, format("\"data_offsets\" holds no non-negative integer ({})", simdjson::error_message(code)));
    }
    ++n;
  }
  if (n != 2) return bad(name, "\"data_offsets\" needs two numbers");
  begin = pair[0];
  end = pair[1];
  if (begin > end) return bad(name, format("\"data_offsets\" are reversed: [{}, {}]", begin, end));
  if (end > data_bytes) {
    return bad(name, format("ends at byte {} of the data, but the file holds {}; it is truncated or the header lies", end, data_bytes));
  }
  return ok_status();
}

// shape x dtype in whole bytes, sub-byte types rounded from bits.
std::optional<uint64_t> size_from_shape(const SafetensorsEntry& e) {
  std::optional<uint64_t> bits = static_cast<uint64_t>(dtype_bits(e.dtype));
  for (int i = 0; i < e.num_dims && bits; ++i) bits = checked_mul(*bits, static_cast<uint64_t>(e.shape[i]));
  if (!bits || *bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

Status read_entry(od::object object, SafetensorsEntry& e, uint64_t data_bytes, uint64_t data_start) {
  bool has_dtype = false, has_shape = false, has_offsets = false;
  uint64_t begin = 0, end = 0;
  for (auto field : object) {
    std::string_view key;
    if (auto code = field.unescaped_key().get(key)) return json_error(code, e.name);
    od::value value;
    if (auto code = field.value().get(value)) return json_error(code, e.name);
    bool* seen = key == "dtype" ? &has_dtype : key == "shape" ? &has_shape : key == "data_offsets" ? &has_offsets : nullptr;
    if (seen == nullptr) return bad(e.name, format("unknown key \"{}\"", key.substr(0, 64)));
    if (std::exchange(*seen, true)) return bad(e.name, format("key \"{}\" appears twice", key));
    if (seen == &has_dtype) {
      std::string_view name;
      if (auto code = value.get_string().get(name)) return bad(e.name, format("\"dtype\" is no string ({})", simdjson::error_message(code)));
      const std::optional<DType> dtype = parse_dtype(name);
      if (!dtype) return error(StatusCode::kUnsupported, "tensor {}: unknown dtype \"{}\"", e.name, name.substr(0, 64));
      e.dtype = *dtype;
    } else if (seen == &has_shape) {
      PM_RETURN_IF_ERROR(read_shape(value, e));
    } else {
      PM_RETURN_IF_ERROR(read_offsets(value, e.name, data_bytes, begin, end));
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    return bad(e.name, format("lacks \"{}\"", !has_dtype ? "dtype" : !has_shape ? "shape" : "data_offsets"));
  }
  const std::optional<uint64_t> size = size_from_shape(e);
  if (!size) return bad(e.name, "its shape overflows, or is no whole number of bytes");
  if (*size != end - begin) {
    return bad(e.name, format("shape and dtype need {} bytes, but \"data_offsets\" span {}", *size, end - begin));
  }
  e.offset = data_start + begin;
  e.size_bytes = *size;
  return ok_status();
}

// Sorted by offset, spans must be contiguous and cover the data exactly.
Status check_layout(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, uint64_t data_start) {
  std::vector<uint32_t> order(entries.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return entries[a].offset != entries[b].offset ? entries[a].offset < entries[b].offset : entries[a].size_bytes < entries[b].size_bytes;
  });
  uint64_t expected = data_start;
  const SafetensorsEntry* previous = nullptr;
  for (const uint32_t i : order) {
    const SafetensorsEntry& e = entries[i];
    if (e.offset < expected) {
      return error(StatusCode::kCorrupt, "tensors {} and {} overlap by {} bytes", previous->name, e.name, expected - e.offset);
    }
    if (e.offset > expected) return error(StatusCode::kCorrupt, "a hole of {} bytes before tensor {}", e.offset - expected, e.name);
    expected = e.offset + e.size_bytes;
    previous = &e;
  }
  if (expected != data_start + data_bytes) {
    return error(StatusCode::kCorrupt, "{} bytes after the last tensor belong to none", data_start + data_bytes - expected);
  }
  return ok_status();
}

Status check_unique(const std::vector<SafetensorsEntry>& entries) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const SafetensorsEntry& e : entries) names.push_back(e.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return bad(*twice, "appears twice in the header");
  return ok_status();
}

}  // namespace

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes, uint64_t data_start) {
  if (json.empty() || json.front() != '{') return error(StatusCode::kCorrupt, "safetensors header: does not begin with '{{'");
  const simdjson::padded_string padded(json);
  od::parser parser;
  od::document document;
  if (auto code = parser.iterate(padded).get(document)) return json_error(code, "");
  od::object object;
  if (auto code = document.get_object().get(object)) return json_error(code, "");
  SafetensorsHeader header;
  bool has_metadata = false;
  for (auto field : object) {
    std::string_view key;
    if (auto code = field.unescaped_key().get(key)) return json_error(code, "");
    od::object value;
    if (auto code = field.value().get_object().get(value)) return json_error(code, key.substr(0, 128));
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) return error(StatusCode::kCorrupt, "safetensors header: __metadata__ appears twice");
      for (auto item : value) {
        std::string_view name, text;
        if (auto code = item.unescaped_key().get(name)) return json_error(code, "__metadata__");
        std::string kept(name);
        if (auto code = item.value().get_string().get(text)) return json_error(code, "__metadata__: values must be strings");
        for (const auto& [k, v] : header.metadata) {
          if (k == kept) return error(StatusCode::kCorrupt, "safetensors header: __metadata__ key \"{}\" appears twice", kept);
        }
        if (header.metadata.size() >= 1024) return error(StatusCode::kUnsupported, "safetensors header: more than 1024 __metadata__ keys");
        header.metadata.emplace_back(std::move(kept), std::string(text));
      }
      continue;
    }
    SafetensorsEntry& e = header.entries.emplace_back();
    if (!is_plain_name(key)) return error(StatusCode::kCorrupt, "safetensors header: a tensor name is empty, too long or holds control characters");
    e.name = key;
    PM_RETURN_IF_ERROR(read_entry(value, e, data_bytes, data_start));
  }
  const char* rest = nullptr;
  if (document.current_location().get(rest) == simdjson::SUCCESS) return error(StatusCode::kCorrupt, "safetensors header: text after the closing brace");
  PM_RETURN_IF_ERROR(check_unique(header.entries));
  PM_RETURN_IF_ERROR(check_layout(header.entries, data_bytes, data_start));
  return header;
}

Result<SafetensorsHeader> read_safetensors_header(File& file, uint64_t size_bytes, uint64_t max_header_bytes) {
  const std::string& path = file.path();
  if (size_bytes == 0) return error(StatusCode::kCorrupt, "{}: the file is empty; fetch it again", path);
  // A pointer file of Git LFS is about 130 bytes of text.
  char head[64] = {};
  const size_t head_bytes = std::min<uint64_t>(sizeof head, size_bytes);
  PM_RETURN_IF_ERROR(read_exact(file, std::as_writable_bytes(std::span(head, head_bytes)), 0));
  if (std::string_view(head, head_bytes).starts_with("version https://git-lfs")) {
    return error(StatusCode::kCorrupt, "{}: a Git LFS pointer, not the weights; run 'git lfs pull' in the model folder", path);
  }
  if (size_bytes < 8) return error(StatusCode::kCorrupt, "{}: {} bytes are too few for a safetensors file; fetch it again", path, size_bytes);
  uint64_t n = 0;
  std::memcpy(&n, head, 8);
  if (n == 0) return error(StatusCode::kCorrupt, "{}: safetensors header of length 0", path);
  if (n > max_header_bytes) {
    return error(StatusCode::kCorrupt, "{}: the safetensors header claims {} bytes, more than the limit of {}; this is no safetensors file, or it is damaged",
                 path, n, max_header_bytes);
  }
  if (n > size_bytes - 8) {
    return error(StatusCode::kCorrupt, "{}: the safetensors header claims {} bytes, but only {} follow: the file is truncated or no safetensors file; fetch it again",
                 path, n, size_bytes - 8);
  }
  std::string text(n, '\0');
  PM_RETURN_IF_ERROR(read_exact(file, std::as_writable_bytes(std::span(text)), 8));
  // Writers pad the header with spaces.
  while (!text.empty() && text.back() == ' ') text.pop_back();
  Result<SafetensorsHeader> header = parse_safetensors_header(text, size_bytes - 8 - n, 8 + n);
  if (!header.ok()) return header.status().with_context(path);
  return header;
}

}  // namespace pointsman
