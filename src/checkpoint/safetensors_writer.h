// SPDX-License-Identifier: Apache-2.0
//
// Writes one safetensors file of known tensors whose payload comes in pieces and in any order: rows of a trace, tensors of a test
// checkpoint. The file appears under its name only when commit() succeeded.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"
#include "tensor/dtype.h"

namespace pointsman {

class SafetensorsWriter {
 public:
  struct Declaration {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };
  // Names must be unique. Tensors lie in the order of `tensors`.
  static Result<std::unique_ptr<SafetensorsWriter>> create(FileSystem& fs, const std::string& path, std::vector<Declaration> tensors,
                                                           const std::vector<std::pair<std::string, std::string>>& metadata);

  // `data` goes to `offset` bytes after the beginning of the tensor. kInvalidArgument: unknown name, or beyond its end.
  Status write(std::string_view name, uint64_t offset, std::span<const std::byte> data);
  // Bytes that were never written read as zero; commit() fails with kInternal when fewer bytes were written than declared.
  Status commit();

 private:
  struct Place {
    uint64_t begin, size;
  };
  std::unique_ptr<WritableFile> file_;
  std::map<std::string, Place, std::less<>> places_;
  uint64_t declared_ = 0, written_ = 0;
};

}  // namespace pointsman
