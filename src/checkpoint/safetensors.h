// SPDX-License-Identifier: Apache-2.0
//
// The header of one safetensors file, read strictly (docs/formats/safetensors.md): every span lies inside the file, spans are
// contiguous from 0 to the end, sizes equal shape times dtype, keys are unique, nothing is computed that could overflow.
//
// Everything is written as subtraction from what is known to exist ("is `end` more than the bytes that are there?"), never as a
// sum of claimed numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"
#include "tensor/dtype.h"

namespace pointsman {

// The format's limit: what claims more is no header.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
// What this reader takes unless told otherwise: some 180,000 tensors in one file. A hostile header makes the parser use up to five
// times its length before it can be refused; a refusal must stay far below 200 MB.
inline constexpr uint64_t kMaxReadHeaderBytes = 24ull << 20;
inline constexpr size_t kMaxTensorNameBytes = 1024;
inline constexpr size_t kMaxTensorDims = 4;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  uint8_t num_dims = 0;
  int64_t shape[kMaxTensorDims] = {1, 1, 1, 1};
  uint64_t offset = 0;  // from the start of the file
  uint64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;                      // sorted by name
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__
};

// `json`: the header text; `data_bytes`: what follows it in the file; `data_start`: where. Errors name the tensor, not the
// file. REQUIRES: data_start + data_bytes does not overflow.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes, uint64_t data_start);

// Reads and parses the header of `file`, whose size is `size_bytes`. Errors name the file; kUnsupported: a header that is longer
// than `max_header_bytes` but may be one. Nothing is allocated before the sizes
// have been checked, and then at most about five times the header's length, which a header of nothing but brackets reaches.
Result<SafetensorsHeader> read_safetensors_header(File& file, uint64_t size_bytes,
                                                  uint64_t max_header_bytes = kMaxReadHeaderBytes);

// Not empty, not too long, no control characters: a name that can be printed, and compared by eye.
bool is_plain_tensor_name(std::string_view name);

}  // namespace pointsman
