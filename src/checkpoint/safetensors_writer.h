// SPDX-License-Identifier: Apache-2.0
//
// Writes one safetensors file of known tensors whose payload comes in pieces and in any order: rows of a trace, tensors of a
// test checkpoint. The file appears under its name only when commit() succeeded; until then, and after any failure, the name is
// untouched.
//
// The header is padded with spaces so that data begins at a multiple of 8, or of more when asked, for readers that map the file or read it
// past the page cache. What this writes,
// checkpoint/safetensors.h reads.
//
// write() may be called from several threads at once, for different bytes; everything else from one.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
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
  // Tensors lie in the order of `tensors`, the first at a multiple of `alignment` (8 or a power of two above) of the file. kInvalidArgument: a name that is not unique or not plain, a negative dimension,
  // sizes that overflow or are no whole number of bytes, a header beyond kMaxReadHeaderBytes. Nothing is created then.
  static Result<std::unique_ptr<SafetensorsWriter>> create(FileSystem& fs, const std::string& path,
                                                           std::vector<Declaration> tensors,
                                                           const std::vector<std::pair<std::string, std::string>>& metadata,
                                                           uint64_t alignment = 8);

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
  std::mutex mutex_;  // of written_
  std::map<uint64_t, uint64_t> written_;
};

}  // namespace pointsman
