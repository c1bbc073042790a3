// SPDX-License-Identifier: Apache-2.0
//
// The only file that includes simdjson. Its on-demand reader validates what it visits; here every value is visited.
#include "checkpoint/safetensors.h"

#include <simdjson.h>

#include <algorithm>
#include <cstring>

#include "base/checked_math.h"
#include "base/log.h"
#include "checkpoint/lfs_pointer.h"

namespace pointsman {
namespace {

namespace od = simdjson::ondemand;

constexpr size_t kMaxMetadataKeys = 1024;

// Text from the file as it may appear in a message: bounded, and nothing that a terminal would obey.
std::string printable(std::string_view text, size_t max_bytes = 48) {
  while (!text.empty() && (text.back() == ' ' || text.back() == '\n')) text.remove_suffix(1);
  std::string out;
  for (const char c : text.substr(0, max_bytes)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return text.size() > max_bytes ? out + "..." : out;
}

Status bad(std::string_view tensor, std::string_view what) {
  return error(StatusCode::kCorrupt, "tensor {}: {}", printable(tensor, 200), what);
}

Status json_error(simdjson::error_code code, std::string_view where) {
  return error(StatusCode::kCorrupt, "safetensors header: {}{}{}", printable(where, 200), where.empty() ? "" : ": ",
               simdjson::error_message(code));
}

// The value's own text, for a message; asking does not consume it, and costs nothing until it is printed.
std::string_view raw_token(simdjson::simdjson_result<od::value>& value) {
  std::string_view token;
  return value.raw_json_token().get(token) ? "unreadable" : token;
}

Status read_shape(simdjson::simdjson_result<od::value> value, SafetensorsEntry& e) {
  const std::string_view found = raw_token(value);
  od::array dims;
  if (value.get_array().get(dims))
    return bad(e.name, format("\"shape\" is {}, expected a list of dimensions", printable(found)));
  size_t n = 0;
  for (simdjson::simdjson_result<od::value> item : dims) {
    const std::string_view text = raw_token(item);
    uint64_t d = 0;
    if (item.get_uint64().get(d))
      return bad(e.name, format("dimension {} of \"shape\" is {}, expected a non-negative integer", n, printable(text)));
    if (n == kMaxTensorDims)
      return error(StatusCode::kUnsupported, "tensor {}: more than {} dimensions", e.name, kMaxTensorDims);
    if (d > static_cast<uint64_t>(INT64_MAX))
      return bad(e.name, format("dimension {} of \"shape\" is {}, which no file can hold", n, d));
    e.shape[n++] = static_cast<int64_t>(d);
  }
  e.num_dims = static_cast<uint8_t>(n);
  return ok_status();
}

Status read_offsets(simdjson::simdjson_result<od::value> value, std::string_view name, uint64_t data_bytes,
                    uint64_t (&pair)[2]) {
  const std::string_view found = raw_token(value);
  od::array offsets;
  if (value.get_array().get(offsets))
    return bad(name, format("\"data_offsets\" is {}, expected [begin, end]", printable(found)));
  size_t n = 0;
  for (simdjson::simdjson_result<od::value> item : offsets) {
    if (n == 2) return bad(name, "\"data_offsets\" has more than two numbers, expected [begin, end]");
    const std::string_view text = raw_token(item);
    if (item.get_uint64().get(pair[n]))
      return bad(name, format("\"data_offsets\" holds {}, expected a non-negative integer", printable(text)));
    ++n;
  }
  if (n != 2) return bad(name, format("\"data_offsets\" has {} numbers, expected [begin, end]", n));
  if (pair[0] > pair[1]) return bad(name, format("\"data_offsets\" are reversed: begin {} is after end {}", pair[0], pair[1]));
  if (pair[1] > data_bytes) {
    return bad(name,
               format("ends at byte {} of the data, but the file has {} data bytes: it is truncated, or the header is wrong",
                      pair[1], data_bytes));
  }
  return ok_status();
}

// shape x dtype must be the span, in whole bytes: the product runs in bits, so that F4 and F6 come out right.
Status check_size(const SafetensorsEntry& e, uint64_t span) {
  const auto width = static_cast<uint64_t>(dtype_bits(e.dtype));
  std::optional<uint64_t> bits = width;
  bool is_empty = false;
  for (size_t i = 0; i < e.num_dims && bits; ++i) {
    // A zero does not excuse the other dimensions: whoever multiplies them in another order must not overflow either.
    is_empty |= e.shape[i] == 0;
    bits = checked_mul(*bits, static_cast<uint64_t>(std::max<int64_t>(1, e.shape[i])));
  }
  if (!bits) return bad(e.name, "the product of \"shape\" overflows 64 bits");
  if (is_empty) bits = 0;
  if (*bits % 8 != 0)
    return bad(e.name,
               format("{} elements of {} are {} bits, no whole number of bytes", *bits / width, dtype_name(e.dtype), *bits));
  if (*bits / 8 != span)
    return bad(e.name, format("shape and dtype need {} bytes, but \"data_offsets\" span {}", *bits / 8, span));
  return ok_status();
}

Status read_entry(od::object object, SafetensorsEntry& e, uint64_t data_bytes, uint64_t data_start) {
  bool has_dtype = false, has_shape = false, has_offsets = false;
  uint64_t pair[2] = {};
  for (auto field : object) {
    std::string_view key;
    if (auto code = field.unescaped_key().get(key)) return json_error(code, e.name);
    simdjson::simdjson_result<od::value> value = field.value();
    bool* seen = key == "dtype" ? &has_dtype : key == "shape" ? &has_shape : key == "data_offsets" ? &has_offsets : nullptr;
    if (seen == nullptr) return bad(e.name, format("unknown key \"{}\"", printable(key)));
    if (std::exchange(*seen, true)) return bad(e.name, format("key \"{}\" appears twice", key));
    if (seen == &has_dtype) {
      const std::string_view found = raw_token(value);
      std::string_view name;
      if (value.get_string().get(name)) return bad(e.name, format("\"dtype\" is {}, expected a string", printable(found)));
      const std::optional<DType> dtype = parse_dtype(name);
      if (!dtype) return error(StatusCode::kUnsupported, "tensor {}: unknown dtype \"{}\"", e.name, printable(name));
      e.dtype = *dtype;
    } else if (seen == &has_shape) {
      PM_RETURN_IF_ERROR(read_shape(value, e));
    } else {
      PM_RETURN_IF_ERROR(read_offsets(value, e.name, data_bytes, pair));
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) {
    return bad(e.name, format("lacks \"{}\"", !has_dtype ? "dtype" : !has_shape ? "shape" : "data_offsets"));
  }
  PM_RETURN_IF_ERROR(check_size(e, pair[1] - pair[0]));
  e.offset = data_start + pair[0];
  e.size_bytes = pair[1] - pair[0];
  return ok_status();
}

Status read_metadata(od::object object, SafetensorsHeader& header) {
  for (auto item : object) {
    std::string_view name, text;
    if (auto code = item.unescaped_key().get(name)) return json_error(code, "__metadata__");
    std::string kept(name);
    simdjson::simdjson_result<od::value> value = item.value();
    const std::string_view found = raw_token(value);
    if (value.get_string().get(text)) {
      return error(StatusCode::kCorrupt, "safetensors header: __metadata__ \"{}\" is {}, expected a string", printable(kept),
                   printable(found));
    }
    for (const auto& [k, v] : header.metadata) {
      if (k == kept)
        return error(StatusCode::kCorrupt, "safetensors header: __metadata__ key \"{}\" appears twice", printable(kept));
    }
    if (header.metadata.size() == kMaxMetadataKeys) {
      return error(StatusCode::kUnsupported, "safetensors header: more than {} __metadata__ keys", kMaxMetadataKeys);
    }
    header.metadata.emplace_back(std::move(kept), std::string(text));
  }
  return ok_status();
}

// In the order of their offsets, spans must touch one another, begin at 0 and end at the end.
Status check_layout(const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes, uint64_t data_start) {
  // Empty tensors sort before the one that begins where they lie.
  std::vector<std::pair<uint64_t, const SafetensorsEntry*>> order;
  order.reserve(entries.size());
  for (const SafetensorsEntry& e : entries) order.emplace_back(e.offset, &e);
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second->size_bytes < b.second->size_bytes;
  };
  if (!std::is_sorted(order.begin(), order.end(), before)) std::sort(order.begin(), order.end(), before);
  uint64_t expected = data_start;
  const SafetensorsEntry* previous = nullptr;
  for (const auto& [offset, e] : order) {
    if (offset < expected)
      return bad(e->name, format("overlaps tensor {} by {} bytes", printable(previous->name, 200), expected - offset));
    if (offset > expected) {
      return bad(e->name, format("begins at byte {} of the data, expected {}: the {} bytes before it belong to no tensor",
                                 offset - data_start, expected - data_start, offset - expected));
    }
    expected = offset + e->size_bytes;
    previous = e;
  }
  const uint64_t rest = data_start + data_bytes - expected;
  if (rest != 0) {
    return error(
        StatusCode::kCorrupt,
        "safetensors header: the tensors end at byte {} of the data, but the file has {} data bytes: {} belong to no tensor",
        expected - data_start, data_bytes, rest);
  }
  return ok_status();
}

// Sorts by name and finds names that appear twice. Views are sorted, entries then moved once.
Status sort_by_name(std::vector<SafetensorsEntry>& entries) {
  std::vector<std::pair<std::string_view, uint32_t>> order;
  order.reserve(entries.size());
  for (const SafetensorsEntry& e : entries) order.emplace_back(e.name, static_cast<uint32_t>(order.size()));
  const bool is_sorted = std::is_sorted(order.begin(), order.end());
  if (!is_sorted) std::sort(order.begin(), order.end());
  const auto twice =
      std::adjacent_find(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
  if (twice != order.end()) return bad(twice->first, "appears twice in the header");
  if (is_sorted) return ok_status();
  std::vector<SafetensorsEntry> sorted;
  sorted.reserve(entries.size());
  for (const auto& [name, i] : order) sorted.push_back(std::move(entries[i]));
  entries = std::move(sorted);
  return ok_status();
}

Result<SafetensorsHeader> parse(simdjson::padded_string_view json, uint64_t data_bytes, uint64_t data_start) {
  if (json.length() == 0 || json.data()[0] != '{')
    return error(StatusCode::kCorrupt, "safetensors header: does not begin with '{{'; this is no safetensors file");
  // simdjson would report both a cut header and text after it as "ended early".
  const size_t last = std::string_view(json).find_last_not_of(" \t\r\n");
  if (json.data()[last] != '}') {
    return error(StatusCode::kCorrupt,
                 "safetensors header: ends with \"{}\", expected '}}': it is cut, or something follows it",
                 printable(std::string_view(json).substr(last < 15 ? 0 : last - 15, 16)));
  }
  od::parser parser;
  od::document document;
  if (auto code = parser.iterate(json).get(document)) return json_error(code, "");
  od::object object;
  if (auto code = document.get_object().get(object)) return json_error(code, "");
  SafetensorsHeader header;
  header.entries.reserve(json.length() / 128);  // what an entry usually takes: growing would touch twice the memory
  bool has_metadata = false;
  for (auto field : object) {
    std::string_view key;
    if (auto code = field.unescaped_key().get(key)) return json_error(code, "");
    simdjson::simdjson_result<od::value> value = field.value();
    const bool is_metadata = key == "__metadata__";
    if (!is_metadata && !is_plain_tensor_name(key)) {
      return error(StatusCode::kCorrupt,
                   "safetensors header: name of tensor {} (\"{}\"): expected 1 to {} bytes without control characters",
                   header.entries.size(), printable(key), kMaxTensorNameBytes);
    }
    od::object members;
    if (value.get_object().get(members)) return bad(key, "expected an object with dtype, shape and data_offsets");
    if (is_metadata) {
      if (std::exchange(has_metadata, true))
        return error(StatusCode::kCorrupt, "safetensors header: __metadata__ appears twice");
      PM_RETURN_IF_ERROR(read_metadata(members, header));
      continue;
    }
    SafetensorsEntry& e = header.entries.emplace_back();
    e.name = key;
    PM_RETURN_IF_ERROR(read_entry(members, e, data_bytes, data_start));
  }
  const char* rest = nullptr;
  if (document.current_location().get(rest) == simdjson::SUCCESS) {
    return error(StatusCode::kCorrupt, "safetensors header: text after the closing brace: {}",
                 printable(std::string_view(rest, std::min<size_t>(16, json.data() + json.length() - rest))));
  }
  PM_RETURN_IF_ERROR(check_layout(header.entries, data_bytes, data_start));
  PM_RETURN_IF_ERROR(sort_by_name(header.entries));
  return header;
}

}  // namespace

bool is_plain_tensor_name(std::string_view name) {
  if (name.empty() || name.size() > kMaxTensorNameBytes) return false;
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c < 0x20 || c == 0x7f) return false;
    // U+0080 to U+009F in UTF-8: terminals obey some of them.
    if (c == 0xc2 && i + 1 < name.size() && static_cast<unsigned char>(name[i + 1]) < 0xa0) return false;
  }
  return true;
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes, uint64_t data_start) {
  const simdjson::padded_string padded(json);
  return parse(padded, data_bytes, data_start);
}

Result<SafetensorsHeader> read_safetensors_header(File& file, uint64_t size_bytes, uint64_t max_header_bytes) {
  const std::string& path = file.path();
  if (size_bytes == 0) return error(StatusCode::kCorrupt, "{}: the file is empty (0 bytes); fetch it again", path);
  char head[64] = {};
  const size_t head_bytes = std::min<uint64_t>(sizeof head, size_bytes);
  PM_RETURN_IF_ERROR(read_exact(file, std::as_writable_bytes(std::span(head, head_bytes)), 0));
  if (is_lfs_pointer({head, head_bytes})) return lfs_pointer_error(path);
  if (size_bytes < 8)
    return error(StatusCode::kCorrupt, "{}: {} bytes, too few for a safetensors file; fetch it again", path, size_bytes);
  uint64_t n = 0;
  std::memcpy(&n, head, 8);
  const auto refuse = [&](std::string_view why) {
    return error(StatusCode::kCorrupt,
                 "{}: the safetensors header claims {} bytes, {}; the file is no safetensors file, or damaged: fetch it again",
                 path, n, why);
  };
  if (n == 0) return refuse("expected at least 2");
  if (n > kMaxSafetensorsHeaderBytes) return refuse(format("more than the limit of {}", kMaxSafetensorsHeaderBytes));
  if (n > size_bytes - 8) return refuse(format("but only {} follow", size_bytes - 8));
  if (n > max_header_bytes) {
    return error(StatusCode::kUnsupported,
                 "{}: the safetensors header has {} bytes, more than this reader's limit of {}; store the tensors in several files", path,
                 n, max_header_bytes);
  }
  std::string text;
  text.reserve(n + simdjson::SIMDJSON_PADDING);
  text.resize(n);
  PM_RETURN_IF_ERROR(read_exact(file, std::as_writable_bytes(std::span(text)), 8));
  Result<SafetensorsHeader> header =
      parse(simdjson::padded_string_view(text.data(), n, text.capacity()), size_bytes - 8 - n, 8 + n);
  if (header.ok()) return header;
  const char* advice = header.status().code() == StatusCode::kCorrupt
                           ? "; fetch the file again, or write it again with a current safetensors library"
                           : "";
  return error(header.status().code(), "{}: {}{}", path, header.status().message(), advice);
}

}  // namespace pointsman
