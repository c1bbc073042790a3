// SPDX-License-Identifier: Apache-2.0
//
// Writes one safetensors file of known tensors whose payload comes in pieces and in any order: rows of a trace, tensors of a
// test checkpoint. The file appears under its name only when commit() succeeded; until then, and after any failure, the name is
// untouched.
//
// The header is padded with spaces to a multiple of 8, so that data is aligned for readers that map the file. What this writes,
// checkpoint/safetensors.h reads.
//
// An object is used by one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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
    std::vector<int64_t> shape;  // outermost first, at most 4 dimensions; [] is a scalar
  };
  // Tensors lie in the order of `tensors`. kInvalidArgument: a name that is not unique or not plain, a negative dimension,
  // sizes that overflow or are no whole number of bytes, a header beyond kMaxReadHeaderBytes. Nothing is created then.
  static Result<std::unique_ptr<SafetensorsWriter>> create(FileSystem& fs, const std::string& path,
                                                           std::vector<Declaration> tensors,
                                                           const std::vector<std::pair<std::string, std::string>>& metadata);

  // `data` goes to `offset` bytes after the beginning of the tensor. kInvalidArgument: unknown name, or beyond its end. Bytes
  // may be written again.
  Status write(std::string_view name, uint64_t offset, std::span<const std::byte> data);
  // Counts the whole tensor as written without writing it: it reads as zeros, and takes no room where files may have holes.
  Status leave_hole(std::string_view name);
  // kInternal, and no file, when a byte was never written; names the first such tensor.
  Status commit();

 private:
  struct Place {
    uint64_t begin, size;
  };
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  std::map<std::string, Place, std::less<>> places_;
  // What was written, as disjoint ranges [first, second) of the file that do not touch: rows that come in order stay one range.
  std::map<uint64_t, uint64_t> written_;
};

}  // namespace pointsman
