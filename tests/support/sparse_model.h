// SPDX-License-Identifier: Apache-2.0
//
// A model folder of any claimed size: config.json, real headers, and files whose data are holes. For what works from headers alone.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "support/temp_dir.h"

namespace pointsman::testing {

class SparseModel {
 public:
  // `dtype` as safetensors spells it, of every tensor that names no other.
  explicit SparseModel(std::string dtype = "BF16") : dtype_(std::move(dtype)) {}

  void add(const std::string& name, std::initializer_list<int64_t> shape) { add(name, shape, dtype_); }
  void add(const std::string& name, std::initializer_list<int64_t> shape, const std::string& dtype);

  uint64_t num_tensors() const { return tensors_.size(); }
  uint64_t num_elements() const { return num_elements_; }
  uint64_t num_bytes() const { return num_bytes_; }

  // Writes the folder, tensors in the order they were added, over `num_shards` files. False when the file system cannot hold sparse
  // files of this size.
  bool write(const TempDir& dir, const std::string& config_json, int num_shards = 4) const;

 private:
  struct Entry {
    std::string name, dtype, shape;
    uint64_t size_bytes;
  };
  std::string dtype_;
  std::vector<Entry> tensors_;
  uint64_t num_elements_ = 0, num_bytes_ = 0;
};

}  // namespace pointsman::testing
