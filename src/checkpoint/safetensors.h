// SPDX-License-Identifier: Apache-2.0
//
// The header of one safetensors file, read strictly (docs/formats/safetensors.md): every span lies inside the file, spans are
// contiguous from 0 to the end, sizes equal shape times dtype, keys are unique, nothing is computed that could overflow.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"
#include "tensor/dtype.h"

namespace pointsman {

inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensorNameBytes = 4096;

struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::kF32;
  uint8_t num_dims = 0;
  int64_t shape[4] = {1, 1, 1, 1};
  uint64_t offset = 0;       // from the start of the file
  uint64_t size_bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;                         // in file order of their keys
  std::vector<std::pair<std::string, std::string>> metadata;     // __metadata__
};

// `json`: the header text; `data_bytes`: what follows it in the file; `data_start`: where. Errors do not name the file.
Result<SafetensorsHeader> parse_safetensors_header(std::string_view json, uint64_t data_bytes, uint64_t data_start);

// Reads and parses the header of `file`, whose size is `size_bytes`. Errors name the file. Nothing is allocated before the sizes
// have been checked.
Result<SafetensorsHeader> read_safetensors_header(File& file, uint64_t size_bytes, uint64_t max_header_bytes = kMaxSafetensorsHeaderBytes);

}  // namespace pointsman
