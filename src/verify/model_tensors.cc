// SPDX-License-Identifier: Apache-2.0
#include "verify/model_tensors.h"

#include <array>
#include <cstring>

#include "base/log.h"

namespace pointsman {
namespace {

constexpr int64_t kMaxElements = int64_t{64} << 20;

template <class T>
void widen(const std::vector<std::byte>& raw, std::vector<float>& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T v;
    std::memcpy(&v, raw.data() + i * sizeof(T), sizeof(T));
    out[i] = to_float(v);
  }
}

}  // namespace

Result<std::unique_ptr<ModelTensors>> ModelTensors::open(FileSystem& fs, const std::string& directory) {
  auto model = std::make_unique<ModelTensors>();
  PM_ASSIGN_OR_RETURN(model->config_, read_model_config(fs, directory));
  PM_ASSIGN_OR_RETURN(model->checkpoint_, Checkpoint::open(fs, directory));
  return model;
}

Result<Matrix> ModelTensors::read(const TensorEntry& e, int64_t first_element, int64_t rows, int64_t cols) const {
  if (rows <= 0 || cols <= 0 || rows > kMaxElements / cols || first_element > e.num_elements() - rows * cols)
    return error(StatusCode::kUnsupported, "{} {}: {} x {} elements from {} cannot be read", e.name, shape_string(e), rows, cols, first_element);
  if (e.dtype != DType::kF32 && e.dtype != DType::kF16 && e.dtype != DType::kBF16)
    return error(StatusCode::kUnsupported, "{} is {}: expected F32, F16 or BF16", e.name, dtype_name(e.dtype));
  const size_t width = static_cast<size_t>(dtype_bits(e.dtype) / 8);
  std::vector<std::byte> raw(static_cast<size_t>(rows * cols) * width);
  PM_RETURN_IF_ERROR(checkpoint_->read(e.file_idx, e.offset + static_cast<uint64_t>(first_element) * width, raw));
  Matrix m{.rows = rows, .cols = cols, .values = std::vector<float>(static_cast<size_t>(rows * cols))};
  switch (e.dtype) {
    case DType::kF32: std::memcpy(m.values.data(), raw.data(), raw.size()); break;
    case DType::kF16: widen<f16>(raw, m.values); break;
    default: widen<bf16>(raw, m.values); break;
  }
  return m;
}

Result<Matrix> ModelTensors::matrix(const std::string& name) const {
  const TensorEntry* e = checkpoint_->find(name);
  if (e == nullptr) return error(StatusCode::kNotFound, "the model has no {}", name);
  if (e->num_dims < 1 || e->num_dims > 2) return error(StatusCode::kUnsupported, "{} has {} dimensions", name, int{e->num_dims});
  return e->num_dims == 1 ? read(*e, 0, 1, e->shape[0]) : read(*e, 0, e->shape[0], e->shape[1]);
}

Result<ExpertMatrices> ModelTensors::expert(int layer, int expert_id) const {
  ExpertMatrices out;
  for (const char* mlp : {"mlp", "block_sparse_moe", "ffn"}) {
    const std::string prefix = format("model.layers.{}.{}.experts.", layer, mlp);
    for (const auto& names : {std::array{"gate_proj", "up_proj", "down_proj"}, std::array{"w1", "w3", "w2"}}) {
      const std::string at = format("{}{}.", prefix, expert_id);
      if (checkpoint_->find(at + names[0] + ".weight") == nullptr) continue;
      PM_ASSIGN_OR_RETURN(out.gate, matrix(at + names[0] + ".weight"));
      PM_ASSIGN_OR_RETURN(out.up, matrix(at + names[1] + ".weight"));
      PM_ASSIGN_OR_RETURN(out.down, matrix(at + names[2] + ".weight"));
      return out;
    }
    const TensorEntry* gate_up = checkpoint_->find(prefix + "gate_up_proj");
    const TensorEntry* down = checkpoint_->find(prefix + "down_proj");
    // [experts, 2 * intermediate, hidden] and [experts, hidden, intermediate]
    if (gate_up == nullptr || down == nullptr || gate_up->num_dims != 3 || down->num_dims != 3) continue;
    const int64_t half = gate_up->shape[1] / 2, hidden = gate_up->shape[2];
    if (expert_id >= gate_up->shape[0] || gate_up->shape[1] != 2 * down->shape[2] || down->shape[1] != hidden || down->shape[0] != gate_up->shape[0])
      return error(StatusCode::kUnsupported, "{}gate_up_proj {} and down_proj {} do not fit one another", prefix, shape_string(*gate_up),
                   shape_string(*down));
    const int64_t first = expert_id * 2 * half * hidden;
    PM_ASSIGN_OR_RETURN(out.gate, read(*gate_up, first, half, hidden));
    PM_ASSIGN_OR_RETURN(out.up, read(*gate_up, first + half * hidden, half, hidden));
    PM_ASSIGN_OR_RETURN(out.down, read(*down, expert_id * hidden * half, hidden, half));
    return out;
  }
  return error(StatusCode::kNotFound, "the model has no expert {} in layer {} under a known name", expert_id, layer);
}

}  // namespace pointsman
