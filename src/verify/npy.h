// SPDX-License-Identifier: Apache-2.0
//
// The header of a NumPy .npy file (NEP 1, versions 1 to 3), read without evaluating anything: the dictionary in it is a Python literal of
// three known keys.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"
#include "tensor/dtype.h"

namespace pointsman {

struct NpyHeader {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // outermost first
  uint64_t offset = 0;         // of the first element
  uint64_t size_bytes = 0;
};

// `prefix`: the beginning of a file of `file_bytes` bytes, as much of it as header and kMaxNpyHeaderBytes allow.
// kCorrupt: not such a file, truncated, a size that does not fit. kUnsupported: big-endian, column-major, objects, more than 8 dimensions.
Result<NpyHeader> parse_npy_header(std::string_view prefix, uint64_t file_bytes);
inline constexpr uint64_t kMaxNpyHeaderBytes = 65536;
// Errors name the file.
Result<NpyHeader> read_npy_header(File& file);

}  // namespace pointsman
