// SPDX-License-Identifier: Apache-2.0
#include "model/binding.h"

#include <algorithm>

#include "base/checked_math.h"
#include "device/device.h"
#include "base/log.h"
#include "model/arch/arch.h"

namespace pointsman {
namespace {

constexpr size_t kMaxListed = 10;

bool is_weight_dtype(DType d) { return d == DType::kBF16 || d == DType::kF16 || d == DType::kF32; }

std::string list_names(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < kMaxListed; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMaxListed) text += format(" and {} more", names.size() - kMaxListed);
  return text;
}

std::string join_dims(std::initializer_list<int64_t> shape) {
  std::string text = "[";
  for (const int64_t d : shape) text += (text.size() == 1 ? "" : ", ") + std::to_string(d);
  return text + "]";
}

// `other` serves `use` too when nothing else was bound for it.
bool has_use(const Binding& binding, const DenseBinding& b, const Tensor* use, const Tensor* other) {
  if (b.matrix != use && b.matrix != other) return false;
  const auto is_use = [&](const DenseBinding& d) { return d.matrix == use; };
  return b.matrix == use || std::none_of(binding.dense.begin(), binding.dense.end(), is_use);
}

}  // namespace

uint64_t Binding::dense_device_bytes() const {
  uint64_t total = 0;
  for (const DenseBinding& b : dense) total += b.on_demand ? 0 : align_up(b.device_bytes, 64);
  return align_up(total, kPageBytes);
}

uint64_t Binding::table_bytes() const {
  uint64_t total = dense.capacity() * sizeof(DenseBinding) + weights->layers.capacity() * sizeof(LayerWeights);
  if (experts != nullptr) total += experts->table_bytes();
  return total;
}

bool Binding::is_embedding(const DenseBinding& b) const {
  return has_use(*this, b, &weights->embed_tokens, &weights->lm_head);
}

bool Binding::is_head(const DenseBinding& b) const {
  return has_use(*this, b, &weights->lm_head, &weights->embed_tokens);
}

Binder::Binder(const Checkpoint& checkpoint, const ModelConfig& config)
    : checkpoint_(checkpoint), config_(config), used_(checkpoint.tensors().size(), false) {
  binding_.weights = std::make_unique<ModelWeights>();
  binding_.weights->layers.resize(static_cast<size_t>(config.num_hidden_layers));
  std::vector<int> moe_layers;
  for (size_t i = 0; i < config.layer_is_moe.size(); ++i) {
    if (!config.layer_is_moe[i]) continue;
    binding_.weights->layers[i].is_moe = true;
    binding_.weights->layers[i].moe_layer_idx = static_cast<int>(moe_layers.size());
    moe_layers.push_back(static_cast<int>(i));
  }
  if (!moe_layers.empty()) {
    binding_.experts = std::make_unique<ExpertCatalogue>(std::move(moe_layers), static_cast<int>(config.num_experts));
  }
}

void Binder::problem(std::string text) {
  ++num_problems_;
  if (problems_.size() < kMaxListed) problems_.push_back(std::move(text));
}

const TensorEntry* Binder::use(const std::string& name) {
  const TensorEntry* entry = checkpoint_.find(name);
  if (entry == nullptr) {
    missing_.push_back(name);
    return nullptr;
  }
  const size_t index = static_cast<size_t>(entry - checkpoint_.tensors().data());
  if (used_[index]) problem(format("{} is needed twice", name));
  used_[index] = true;
  return entry;
}

const TensorEntry* Binder::use_shaped(const std::string& name, std::initializer_list<int64_t> shape) {
  const TensorEntry* entry = use(name);
  if (entry == nullptr) return nullptr;
  if (!is_weight_dtype(entry->dtype)) {
    problem(format("{}: stored as {}, which this build cannot compute with (BF16, F16 and F32 can be)", name,
                   dtype_name(entry->dtype)));
    return nullptr;
  }
  return check_shape(*entry, shape) ? entry : nullptr;
}

bool Binder::check_shape(const TensorEntry& entry, std::initializer_list<int64_t> shape) {
  if (entry.num_dims == shape.size() && std::equal(shape.begin(), shape.end(), entry.shape)) return true;
  problem(format("{}: shape {}, but config.json implies {}", entry.name, shape_string(entry), join_dims(shape)));
  return false;
}

void Binder::matrix(const std::string& name, int64_t rows, int64_t cols, Tensor& out, const std::string& unit) {
  const TensorEntry* entry = use_shaped(name, {rows, cols});
  if (entry == nullptr) return;
  out = Tensor::matrix(nullptr, entry->dtype, rows, cols);
  binding_.dense.push_back({.entry = entry, .matrix = &out, .unit = unit, .device_bytes = entry->size_bytes});
}

void Binder::vector(const std::string& name, int64_t n, const float*& out, const std::string& unit) {
  const TensorEntry* entry = use_shaped(name, {n});
  if (entry == nullptr) return;
  binding_.dense.push_back({.entry = entry, .vector = &out, .unit = unit, .device_bytes = static_cast<uint64_t>(n) * sizeof(float)});
}

void Binder::array(const std::string& name, std::initializer_list<int64_t> shape, const float*& out, const std::string& unit) {
  const TensorEntry* entry = use_shaped(name, shape);
  if (entry == nullptr) return;
  binding_.dense.push_back(
      {.entry = entry, .vector = &out, .unit = unit, .device_bytes = static_cast<uint64_t>(entry->num_elements()) * sizeof(float)});
}

void Binder::table(const std::string& name, int64_t rows, int64_t cols, int64_t limit, const int32_t*& out, const std::string& unit) {
  const TensorEntry* entry = use(name);
  if (entry == nullptr || !check_shape(*entry, {rows, cols})) return;
  if (entry->dtype != DType::kI64 && entry->dtype != DType::kI32) {
    return problem(format("{}: stored as {}, expected I64 or I32", name, dtype_name(entry->dtype)));
  }
  binding_.dense.push_back({.entry = entry, .table = &out, .table_limit = limit, .unit = unit,
                            .device_bytes = static_cast<uint64_t>(rows * cols) * sizeof(int32_t)});
}

int64_t Binder::ignore_prefix(std::string_view prefix) {
  int64_t count = 0;
  const auto tensors = checkpoint_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].name.starts_with(prefix)) continue;
    used_[i] = true;
    ++count;
  }
  return count;
}

void Binder::ignore(std::string_view name) {
  if (const TensorEntry* entry = checkpoint_.find(name)) used_[static_cast<size_t>(entry - checkpoint_.tensors().data())] = true;
}

void Binder::experts(int layer, const std::string& prefix, int64_t intermediate, int64_t hidden) {
  const int moe_layer = binding_.weights->layers[static_cast<size_t>(layer)].moe_layer_idx;
  const int num_experts = binding_.experts->num_experts();
  // A slot holds gate, up and down at multiples of 64 bytes.
  const auto set_part = [&](int expert, ExpertPart part, const TensorEntry& entry, uint64_t offset, uint64_t bytes, int64_t rows,
                            int64_t cols) {
    ExpertInfo& info = binding_.experts->at(moe_layer, expert);
    const int p = static_cast<int>(part);
    uint64_t slot_offset = 0;
    for (int i = 0; i < p; ++i) slot_offset += align_up(info.parts[static_cast<size_t>(i)].size_bytes, 64);
    if (slot_offset + bytes > UINT32_MAX) return problem(format("{}: an expert larger than 4 GiB", entry.name));
    info.parts[static_cast<size_t>(p)] = {.dtype = entry.dtype,
                                          .file_idx = entry.file_idx,
                                          .offset = entry.offset + offset,
                                          .size_bytes = bytes,
                                          .slot_offset = static_cast<uint32_t>(slot_offset),
                                          .rows = static_cast<int32_t>(rows),
                                          .cols = static_cast<int32_t>(cols)};
  };

  const std::string fused_gate_up = prefix + ".gate_up_proj";
  const std::string fused_down = prefix + ".down_proj";
  if (has(fused_gate_up) || has(fused_down)) {
    const TensorEntry* down = checkpoint_.find(fused_down);
    if (down != nullptr && down->num_dims == 3 && down->shape[1] == intermediate && down->shape[2] == hidden && intermediate != hidden) {
      // [experts, intermediate, hidden] is the transposed layout some exporters write ([experts, hidden, 2 * intermediate] for gate_up).
      problem(format("{}: shape {} is the transposed fused layout; expected {}. Save the model with save_pretrained's default format",
                     fused_down, shape_string(*down), join_dims({num_experts, hidden, intermediate})));
    }
    const TensorEntry* gate_up = use_shaped(fused_gate_up, {num_experts, 2 * intermediate, hidden});
    down = use_shaped(fused_down, {num_experts, hidden, intermediate});
    if (gate_up == nullptr || down == nullptr) return;
    const uint64_t half = gate_up->size_bytes / static_cast<uint64_t>(num_experts) / 2;
    const uint64_t down_bytes = down->size_bytes / static_cast<uint64_t>(num_experts);
    for (int e = 0; e < num_experts; ++e) {
      const uint64_t base = 2 * half * static_cast<uint64_t>(e);
      set_part(e, ExpertPart::kGate, *gate_up, base, half, intermediate, hidden);
      set_part(e, ExpertPart::kUp, *gate_up, base + half, half, intermediate, hidden);
      set_part(e, ExpertPart::kDown, *down, down_bytes * static_cast<uint64_t>(e), down_bytes, hidden, intermediate);
    }
    return;
  }

  const bool w_names = has(prefix + ".0.w1.weight");
  const char* gate_name = w_names ? ".w1.weight" : ".gate_proj.weight";
  const char* up_name = w_names ? ".w3.weight" : ".up_proj.weight";
  const char* down_name = w_names ? ".w2.weight" : ".down_proj.weight";
  for (int e = 0; e < num_experts; ++e) {
    const std::string base = prefix + "." + std::to_string(e);
    const TensorEntry* gate = use_shaped(base + gate_name, {intermediate, hidden});
    const TensorEntry* up = use_shaped(base + up_name, {intermediate, hidden});
    const TensorEntry* down = use_shaped(base + down_name, {hidden, intermediate});
    if (gate == nullptr || up == nullptr || down == nullptr) continue;
    if (gate->dtype != up->dtype || gate->dtype != down->dtype) {
      problem(format("{}: parts of one expert are stored as {}, {} and {}", base, dtype_name(gate->dtype), dtype_name(up->dtype),
                     dtype_name(down->dtype)));
      continue;
    }
    set_part(e, ExpertPart::kGate, *gate, 0, gate->size_bytes, intermediate, hidden);
    set_part(e, ExpertPart::kUp, *up, 0, up->size_bytes, intermediate, hidden);
    set_part(e, ExpertPart::kDown, *down, 0, down->size_bytes, hidden, intermediate);
  }
}

Result<Binding> Binder::finish() {
  std::vector<std::string> unused;
  size_t num_unused = 0;
  const auto tensors = checkpoint_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Old exporters saved RoPE frequencies as a buffer; they are derived from the config.
    if (used_[i] || tensors[i].name.ends_with(".rotary_emb.inv_freq")) continue;
    ++num_unused;
    if (unused.size() <= kMaxListed) unused.emplace_back(tensors[i].name);
  }
  if (missing_.empty() && num_unused == 0 && num_problems_ == 0) return std::move(binding_);

  std::string text = format("{}: the checkpoint does not match config.json ({}).", checkpoint_.directory(), config_.model_type);
  if (!missing_.empty()) text += format("\n  missing from the checkpoint ({}): {}", missing_.size(), list_names(missing_));
  if (num_unused > 0) {
    if (unused.size() > kMaxListed) unused.resize(kMaxListed);
    text += format("\n  in the checkpoint but not used ({}): {}", num_unused, list_names(unused));
    if (num_unused > unused.size()) text += format(" and {} more", num_unused - unused.size());
  }
  for (const std::string& p : problems_) text += "\n  " + p;
  if (num_problems_ > problems_.size()) text += format("\n  and {} more problems", num_problems_ - problems_.size());
  text += "\n  Every tensor must be used exactly once: check that config.json belongs to these weights.";
  return Status(StatusCode::kCorrupt, std::move(text));
}

Result<Binding> bind_model(const Checkpoint& checkpoint, const ModelConfig& config) {
  PM_ASSIGN_OR_RETURN(const Arch* const arch, find_arch(config.model_type));
  PM_RETURN_IF_ERROR(arch->check(config));
  Binder binder(checkpoint, config);
  arch->bind(config, binder);
  return binder.finish();
}

Status attach_digests(const LockFile& lock, ExpertCatalogue& catalogue) {
  for (int l = 0; l < catalogue.num_layers(); ++l) {
    for (int e = 0; e < catalogue.num_experts(); ++e) {
      const std::string key = catalogue.lock_key(l, e);
      const auto it = lock.experts.find(key);
      if (it == lock.experts.end()) {
        return error(StatusCode::kCorrupt, "{}: no entry for {}; run 'pointsman lock' again", kLockFileName, key);
      }
      ExpertInfo& info = catalogue.at(l, e);
      if (it->second.size_bytes != info.size_bytes()) {
        return error(StatusCode::kCorrupt, "{}: {} has {} bytes, the checkpoint {}; the weights were replaced", kLockFileName, key,
                     it->second.size_bytes, info.size_bytes());
      }
      info.sha256 = it->second.sha256;
    }
  }
  return ok_status();
}

}  // namespace pointsman
