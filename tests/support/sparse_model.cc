// SPDX-License-Identifier: Apache-2.0
#include "support/sparse_model.h"

#include <filesystem>

#include "support/safetensors_builder.h"
#include "tensor/dtype.h"

namespace pointsman::testing {

void SparseModel::add(const std::string& name, std::initializer_list<int64_t> shape, const std::string& dtype) {
  uint64_t elements = 1;
  std::string text = "[";
  for (const int64_t d : shape) {
    elements *= static_cast<uint64_t>(d);
    text += (text.size() == 1 ? "" : ",") + std::to_string(d);
  }
  const uint64_t bits = static_cast<uint64_t>(dtype_bits(*parse_dtype(dtype)));
  tensors_.push_back({name, dtype, text + "]", elements * bits / 8});
  num_elements_ += elements;
  num_bytes_ += elements * bits / 8;
}

bool SparseModel::write(const TempDir& dir, const std::string& config_json, int num_shards) const {
  std::vector<std::pair<std::string, std::string>> weight_map;
  for (int shard = 0; shard < num_shards; ++shard) {
    const std::string file = "model-" + std::to_string(shard) + ".safetensors";
    const size_t n = tensors_.size(), count = static_cast<size_t>(num_shards), at = static_cast<size_t>(shard);
    std::string header = "{";
    uint64_t end = 0;
    for (size_t i = n * at / count; i < n * (at + 1) / count; ++i) {
      const Entry& t = tensors_[i];
      header += (header.size() == 1 ? "\"" : ",\"") + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":" + t.shape +
                ",\"data_offsets\":[" + std::to_string(end) + "," + std::to_string(end + t.size_bytes) + "]}";
      end += t.size_bytes;
      weight_map.emplace_back(t.name, file);
    }
    header += "}";
    dir.write(file, raw_safetensors(header, ""));
    std::error_code error;
    std::filesystem::resize_file(dir.file(file), 8 + header.size() + end, error);
    if (error) return false;
  }
  dir.write("model.safetensors.index.json", shard_index_json(weight_map, static_cast<int64_t>(num_bytes_)));
  dir.write("config.json", config_json);
  return true;
}

}  // namespace pointsman::testing
