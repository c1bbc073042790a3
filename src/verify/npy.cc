// SPDX-License-Identifier: Apache-2.0
#include "verify/npy.h"

#include <algorithm>
#include <charconv>
#include <string>

#include "base/log.h"

namespace pointsman {
namespace {

constexpr size_t kMaxDims = 8;

// A cursor over the literal: blanks do not count.
struct Cursor {
  std::string_view text;
  void skip() {
    while (!text.empty() && (text[0] == ' ' || text[0] == '\n' || text[0] == '\t')) text.remove_prefix(1);
  }
  bool take(std::string_view word) {
    skip();
    if (!text.starts_with(word)) return false;
    text.remove_prefix(word.size());
    return true;
  }
  bool quoted(std::string_view& out) {
    skip();
    if (text.empty() || (text[0] != '\'' && text[0] != '"')) return false;
    const size_t end = text.find(text[0], 1);
    if (end == text.npos) return false;
    out = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    return true;
  }
  bool number(int64_t& out) {
    skip();
    const auto [rest, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (ec != std::errc()) return false;
    text.remove_prefix(static_cast<size_t>(rest - text.data()));
    return true;
  }
};

Status bad(const char* what) { return error(StatusCode::kCorrupt, "npy header: {}", what); }

Result<DType> dtype_of(std::string_view descr) {
  struct Name {
    std::string_view numpy;
    DType dtype;
  };
  for (const Name& n : {Name{"<f4", DType::kF32}, Name{"<f8", DType::kF64}, Name{"<f2", DType::kF16}, Name{"<i4", DType::kI32},
                        Name{"<i8", DType::kI64}, Name{"|u1", DType::kU8}, Name{"|i1", DType::kI8}, Name{"|b1", DType::kBool},
                        Name{"<i2", DType::kI16}, Name{"<u2", DType::kU16}, Name{"<u4", DType::kU32}, Name{"<u8", DType::kU64}}) {
    if (descr == n.numpy) return n.dtype;
  }
  return error(StatusCode::kUnsupported, "npy type '{}': expected little-endian floats or integers, such as <f4, <f2, <i8", descr.substr(0, 32));
}

Status parse_shape(Cursor& c, std::vector<int64_t>& shape) {
  if (!c.take("(")) return bad("shape is no tuple");
  while (!c.take(")")) {
    int64_t n = 0;
    if (!c.number(n) || n < 0) return bad("shape holds something that is no size");
    if (shape.size() == kMaxDims) return error(StatusCode::kUnsupported, "npy array of more than {} dimensions", kMaxDims);
    shape.push_back(n);
    if (!c.take(",") && !c.text.starts_with(")")) return bad("shape is not closed");
  }
  return ok_status();
}

}  // namespace

Result<NpyHeader> parse_npy_header(std::string_view prefix, uint64_t file_bytes) {
  constexpr std::string_view kMagic = "\x93NUMPY";
  if (!prefix.starts_with(kMagic) || prefix.size() < 10) return bad("no npy magic");
  const auto byte = [&](size_t i) { return static_cast<uint64_t>(static_cast<unsigned char>(prefix[i])); };
  const uint64_t major = byte(6);
  if (major < 1 || major > 3) return error(StatusCode::kUnsupported, "npy version {}: expected 1 to 3", major);
  const size_t start = major == 1 ? 10 : 12;
  if (prefix.size() < start) return bad("truncated");
  uint64_t length = byte(8) | byte(9) << 8;
  if (major > 1) length |= byte(10) << 16 | byte(11) << 24;
  if (length > kMaxNpyHeaderBytes) return error(StatusCode::kUnsupported, "npy header of {} bytes: at most {}", length, kMaxNpyHeaderBytes);
  if (length > prefix.size() - start) return bad("truncated");

  NpyHeader h{.offset = start + length};
  bool has_type = false, has_order = false, has_shape = false, column_major = false;
  Cursor c{prefix.substr(start, length)};
  if (!c.take("{")) return bad("no dictionary");
  while (!c.take("}")) {
    std::string_view key, type;
    if (!c.quoted(key) || !c.take(":")) return bad("a key is missing");
    if (key == "descr" && !has_type) {
      if (!c.quoted(type)) return error(StatusCode::kUnsupported, "npy array of records");
      PM_ASSIGN_OR_RETURN(h.dtype, dtype_of(type));
      has_type = true;
    } else if (key == "fortran_order" && !has_order) {
      column_major = c.take("True");
      if (!column_major && !c.take("False")) return bad("fortran_order is neither True nor False");
      has_order = true;
    } else if (key == "shape" && !has_shape) {
      PM_RETURN_IF_ERROR(parse_shape(c, h.shape));
      has_shape = true;
    } else {
      return bad("an unknown or repeated key");
    }
    if (!c.take(",")) {
      if (!c.take("}")) return bad("the dictionary is not closed");
      break;
    }
  }
  if (!has_type || !has_order || !has_shape) return bad("descr, fortran_order or shape is missing");
  if (column_major && h.shape.size() > 1) return error(StatusCode::kUnsupported, "npy array in column-major order: save it with order 'C'");
  const uint64_t width = static_cast<uint64_t>(dtype_bits(h.dtype) / 8), there = file_bytes < h.offset ? 0 : file_bytes - h.offset;
  // Against what is there, so that no product can overflow; an empty array may have any other sizes.
  uint64_t elements = 1;
  const bool is_empty = std::find(h.shape.begin(), h.shape.end(), 0) != h.shape.end();
  for (const int64_t n : h.shape) {
    if (is_empty) break;
    if (static_cast<uint64_t>(n) > there / width / elements) return bad("truncated: fewer bytes than its shape says");
    elements *= static_cast<uint64_t>(n);
  }
  h.size_bytes = is_empty ? 0 : elements * width;
  if (h.size_bytes != there) return bad("its size does not fit its shape");
  return h;
}

Result<NpyHeader> read_npy_header(File& file) {
  PM_ASSIGN_OR_RETURN(const FileInfo info, file.stat());
  if (!info.is_regular) return error(StatusCode::kUnsupported, "{}: not a regular file", file.path());
  std::string prefix(static_cast<size_t>(std::min<uint64_t>(info.size_bytes, kMaxNpyHeaderBytes + 12)), '\0');
  PM_RETURN_IF_ERROR(read_exact(file, std::as_writable_bytes(std::span(prefix)), 0));
  Result<NpyHeader> h = parse_npy_header(prefix, info.size_bytes);
  if (!h.ok()) return h.status().with_context(file.path());
  return h;
}

}  // namespace pointsman
