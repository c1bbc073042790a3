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
  if (!is_plain(entry->dtype)) {
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

const TensorEntry* Binder::find_scales(const std::string& weight_name) {
  std::string stem = weight_name;
  if (stem.ends_with(".weight")) stem.resize(stem.size() - 7);
  const TensorEntry* found = nullptr;
  for (const std::string& name : {stem + ".weight_scale_inv", stem + ".scale", stem + ".weight_scale"}) {
    const TensorEntry* entry = checkpoint_.find(name);
    if (entry == nullptr) continue;
    if (found != nullptr) problem(format("{}: has both {} and {}; one of them is its scale", weight_name, found->name, name));
    found = entry;
  }
  if (found == nullptr) missing_.push_back(stem + ".weight_scale_inv (or .scale, .weight_scale)");
  return found;
}

void Binder::note_orientation(GridOrientation orientation, std::string_view name) {
  Orientations& o = orientations_[static_cast<size_t>(orientation)];
  if (o.count++ == 0) o.first = std::string(name);
}

// One checkpoint has one orientation. When its tensors show that grids are transposed, a square one cannot be told and is not guessed.
void Binder::check_orientations() {
  const Orientations& straight = orientations_[static_cast<size_t>(GridOrientation::kStraight)];
  const Orientations& transposed = orientations_[static_cast<size_t>(GridOrientation::kTransposed)];
  const Orientations& undecided = orientations_[static_cast<size_t>(GridOrientation::kUndecided)];
  if (transposed.count == 0) return;
  if (straight.count > 0) {
    problem(format("{}: its scale grid is transposed, that of {} is not ({} against {} tensors)", transposed.first, straight.first, transposed.count,
                   straight.count));
  } else if (undecided.count > 0) {
    problem(format("{}: its scale grid is square, and others ({}) are transposed: whether this one is cannot be seen", undecided.first, transposed.first));
  } else {
    note(format("scale grids are stored transposed ({} tensors)", transposed.count));
  }
}

Binder::Stored Binder::use_weight(const std::string& name, int64_t rows, int64_t cols) {
  const TensorEntry* found = checkpoint_.find(name);
  if (found == nullptr || is_plain(found->dtype)) {
    const TensorEntry* plain = use_shaped(name, {rows, cols});
    return plain == nullptr ? Stored{} : Stored{.weight = plain, .code = plain->dtype};
  }
  const TensorEntry* weight = use(name);
  const TensorEntry* scales = find_scales(name);
  if (scales == nullptr) return {};
  use(std::string(scales->name));
  const auto shape = [](const TensorEntry& t) { return std::span(t.shape, t.num_dims); };
  const Result<DType> code = describe_codes(name, weight->dtype, shape(*weight), rows, cols, config_.quantization);
  if (!code.ok()) {
    problem(code.status().message());
    return {};
  }
  const Result<ScaleDescription> d = describe_scales(scales->name, *code, rows, cols, scales->dtype, shape(*scales), config_.quantization);
  if (!d.ok()) {
    problem(d.status().message());
    return {};
  }
  note_orientation(d->orientation, scales->name);
  return {.weight = weight, .scales = scales, .code = *code, .format = d->format};
}

Binder::Stored Binder::use_fused(const std::string& name, int64_t num_experts, int64_t rows, int64_t cols) {
  const TensorEntry* found = checkpoint_.find(name);
  if (found == nullptr || found->dtype != DType::kF8E4M3) {
    const TensorEntry* plain = use_shaped(name, {num_experts, rows, cols});
    return plain == nullptr ? Stored{} : Stored{.weight = plain, .code = plain->dtype};
  }
  const TensorEntry* weight = use(name);
  const std::string scale_name = name + (has(name + "_scale") ? "_scale" : "_scale_inv");
  const TensorEntry* scales = use(scale_name);
  if (scales == nullptr || !check_shape(*weight, {num_experts, rows, cols})) return {};
  if (scales->num_dims != 3 || scales->shape[0] != num_experts) {
    problem(format("{}: shape {}, expected a grid for each of {} experts", scale_name, shape_string(*scales), num_experts));
    return {};
  }
  const Result<ScaleDescription> d =
      describe_scales(scale_name, DType::kF8E4M3, rows, cols, scales->dtype, std::span(scales->shape + 1, 2), config_.quantization);
  if (!d.ok()) {
    problem(d.status().message());
    return {};
  }
  if (d->format.transposed) {
    problem(format("{}: grids of a fused tensor that are transposed are not supported", scale_name));
    return {};
  }
  note_orientation(d->orientation, scales->name);
  return {.weight = weight, .scales = scales, .code = DType::kF8E4M3, .format = d->format};
}

void Binder::bind_matrix(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit, Panels panels) {
  const Stored stored = use_weight(name, rows, cols);
  if (stored.weight == nullptr) return;
  out = Tensor::matrix(nullptr, stored.code, rows, cols);
  out.format = stored.format;
  DenseBinding b{.entry = stored.weight, .matrix = &out, .weight = panels == Panels::kNone ? nullptr : &out, .plain_in_rows = panels == Panels::kCoded,
                 .unit = unit, .device_bytes = stored.weight->size_bytes};
  if (b.weight != nullptr) out.layout = b.layout_in(config_.quantization, out);
  binding_.dense.push_back(std::move(b));
  if (stored.scales == nullptr) return;
  binding_.dense.push_back(
      {.entry = stored.scales, .scales = &out.scales, .coded = &out, .unit = unit, .device_bytes = stored.scales->size_bytes});
}

void Binder::matrix(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit) {
  bind_matrix(name, rows, cols, out, unit, Panels::kAny);
}

void Binder::matrix_in_rows(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit) {
  bind_matrix(name, rows, cols, out, unit, Panels::kNone);
}

void Binder::head(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit) {
  bind_matrix(name, rows, cols, out, unit, Panels::kCoded);
}

void Binder::vector(const std::string& name, int64_t n, const float*& out, const std::string& unit) {
  const TensorEntry* entry = use_shaped(name, {n});
  if (entry == nullptr) return;
  binding_.dense.push_back({.entry = entry, .vector = &out, .unit = unit, .device_bytes = static_cast<uint64_t>(n) * sizeof(float)});
}

void Binder::finite_vector(const std::string& name, int64_t n, const float*& out, const std::string& unit) {
  const size_t before = binding_.dense.size();
  vector(name, n, out, unit);
  if (binding_.dense.size() > before) binding_.dense.back().must_be_finite = true;
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

// Piece `index` of `count` equal ones of a stored weight, and of its scales.
void Binder::set_part(ExpertInfo& info, ExpertPart part, const Stored& stored, uint64_t index, uint64_t count, int64_t rows, int64_t cols,
                      WeightLayout layout) {
  const auto piece = [&](const TensorEntry& entry) {
    const uint64_t bytes = entry.size_bytes / count;
    return ExpertPartInfo{.file_idx = entry.file_idx, .offset = entry.offset + bytes * index, .size_bytes = bytes};
  };
  ExpertPartInfo& weight = info.parts[static_cast<size_t>(part)];
  weight = piece(*stored.weight);
  weight.dtype = stored.code;
  weight.rows = static_cast<int32_t>(rows);
  weight.cols = static_cast<int32_t>(cols);
  weight.layout = layout;
  if (stored.scales == nullptr) return;
  weight.format = stored.format;
  ExpertPartInfo& scales = info.parts[static_cast<size_t>(part) + kNumWeightParts];
  scales = piece(*stored.scales);
  scales.dtype = stored.format.scale_dtype;
}

void Binder::finish_expert(ExpertInfo& info, std::string_view name) {
  if (info.size_bytes() + kMaxExpertParts * kExpertPartAlignment > UINT32_MAX) {
    problem(format("{}: an expert larger than 4 GiB", name));
    info = {};
    return;
  }
  // Kernels take an expert whole: all of it lies in panels, or nothing.
  Weight parts[kNumWeightParts];
  size_t n = 0;
  for (int p = 0; p < kNumWeightParts; ++p) {
    if (info.parts[static_cast<size_t>(p)].size_bytes > 0) parts[n++] = info.weight(static_cast<ExpertPart>(p), nullptr);
  }
  if (packed_layout(config_.quantization, {parts, n}) == WeightLayout::kPanel32) {
    for (int p = 0; p < kNumWeightParts; ++p) info.parts[static_cast<size_t>(p)].layout = WeightLayout::kPanel32;
  }
  info.place_parts();
}

void Binder::experts(int layer, const std::string& prefix, int64_t intermediate, int64_t hidden) {
  const int moe_layer = binding_.weights->layers[static_cast<size_t>(layer)].moe_layer_idx;
  const int num_experts = binding_.experts->num_experts();
  const std::string fused_gate_up = prefix + ".gate_up_proj";
  const std::string fused_down = prefix + ".down_proj";
  if (has(fused_gate_up) || has(fused_down)) {
    const TensorEntry* down = checkpoint_.find(fused_down);
    if (down != nullptr && down->num_dims == 3 && down->shape[1] == intermediate && down->shape[2] == hidden && intermediate != hidden) {
      // [experts, intermediate, hidden] is the transposed layout some exporters write ([experts, hidden, 2 * intermediate] for gate_up).
      problem(format("{}: shape {} is the transposed fused layout; expected {}. Save the model with save_pretrained's default format",
                     fused_down, shape_string(*down), join_dims({num_experts, hidden, intermediate})));
    }
    const Stored both = use_fused(fused_gate_up, num_experts, 2 * intermediate, hidden), out = use_fused(fused_down, num_experts, hidden, intermediate);
    if (both.weight == nullptr || out.weight == nullptr) return;
    if (both.code != out.code) return problem(format("{} and {} are stored as {} and {}", fused_gate_up, fused_down, dtype_name(both.code), dtype_name(out.code)));
    if (both.scales != nullptr && intermediate % both.format.block_rows != 0) {
      return problem(format("{}: blocks of {} rows go across gate and up of {} rows each, which is not supported", fused_gate_up, both.format.block_rows, intermediate));
    }
    const auto n = static_cast<uint64_t>(num_experts);
    for (uint64_t e = 0; e < n; ++e) {
      ExpertInfo& info = binding_.experts->at(moe_layer, static_cast<int>(e));
      set_part(info, ExpertPart::kGate, both, 2 * e, 2 * n, intermediate, hidden);
      set_part(info, ExpertPart::kUp, both, 2 * e + 1, 2 * n, intermediate, hidden);
      set_part(info, ExpertPart::kDown, out, e, n, hidden, intermediate);
      finish_expert(info, fused_gate_up);
    }
    return;
  }

  const bool w_names = has(prefix + ".0.w1.weight");
  const char* gate_name = w_names ? ".w1.weight" : ".gate_proj.weight";
  const char* up_name = w_names ? ".w3.weight" : ".up_proj.weight";
  const char* down_name = w_names ? ".w2.weight" : ".down_proj.weight";
  for (int e = 0; e < num_experts; ++e) {
    const std::string base = prefix + "." + std::to_string(e);
    const Stored gate = use_weight(base + gate_name, intermediate, hidden);
    const Stored up = use_weight(base + up_name, intermediate, hidden);
    const Stored down = use_weight(base + down_name, hidden, intermediate);
    if (gate.weight == nullptr || up.weight == nullptr || down.weight == nullptr) continue;
    if (gate.code != up.code || gate.code != down.code) {
      problem(format("{}: parts of one expert are stored as {}, {} and {}", base, dtype_name(gate.code), dtype_name(up.code),
                     dtype_name(down.code)));
      continue;
    }
    ExpertInfo& info = binding_.experts->at(moe_layer, e);
    set_part(info, ExpertPart::kGate, gate, 0, 1, intermediate, hidden);
    set_part(info, ExpertPart::kUp, up, 0, 1, intermediate, hidden);
    set_part(info, ExpertPart::kDown, down, 0, 1, hidden, intermediate);
    finish_expert(info, base);
  }
}

void Binder::interleaved_experts(int layer, const std::string& prefix, int64_t intermediate, int64_t hidden) {
  const int moe_layer = binding_.weights->layers[static_cast<size_t>(layer)].moe_layer_idx;
  const int64_t num_experts = binding_.experts->num_experts();
  Stored both, down;
  WeightLayout layout = WeightLayout::kInOut;
  if (has(prefix + ".0.gate_up_proj.weight")) {
    for (int e = 0; e < num_experts; ++e) {
      const std::string base = prefix + "." + std::to_string(e);
      const std::string up_name = base + ".gate_up_proj.weight", down_name = base + ".down_proj.weight";
      const TensorEntry *first = checkpoint_.find(up_name), *second = checkpoint_.find(down_name);
      WeightLayout own_layout = WeightLayout::kOutIn;
      if (first != nullptr && second != nullptr && is_plain(first->dtype) && is_plain(second->dtype)) {
        const Weight together[] = {Tensor::matrix(nullptr, first->dtype, 2 * intermediate, hidden), Tensor::matrix(nullptr, second->dtype, hidden, intermediate)};
        own_layout = packed_layout(config_.quantization, together, true);
      }
      const bool turned = own_layout == WeightLayout::kInOut;
      const auto use_part = [&](const std::string& name, int64_t out, int64_t in) -> Stored {
        if (!turned) return use_weight(name, out, in);
        const TensorEntry* weight = use_shaped(name, {in, out});
        return weight == nullptr ? Stored{} : Stored{.weight = weight, .code = weight->dtype};
      };
      const Stored gate_up = use_part(up_name, 2 * intermediate, hidden);
      const Stored own_down = use_part(down_name, hidden, intermediate);
      if (gate_up.weight == nullptr || own_down.weight == nullptr) continue;
      if (gate_up.code != own_down.code) {
        problem(format("{}: parts of one expert are stored as {} and {}", base, dtype_name(gate_up.code), dtype_name(own_down.code)));
        continue;
      }
      ExpertInfo& info = binding_.experts->at(moe_layer, e);
      set_part(info, ExpertPart::kGate, gate_up, 0, 1, 2 * intermediate, hidden, turned ? own_layout : WeightLayout::kOutIn);
      set_part(info, ExpertPart::kDown, own_down, 0, 1, hidden, intermediate, turned ? own_layout : WeightLayout::kOutIn);
      finish_expert(info, base);
    }
    return;
  }
  if (has(prefix + ".gate_up_proj_blocks") || has(prefix + ".down_proj_blocks")) {
    layout = WeightLayout::kOutIn;
    const auto blocks = [&](const std::string& name, int64_t out, int64_t in) -> Stored {
      const TensorEntry* weight = use(name + "_blocks");
      const TensorEntry* scales = use(name + "_scales");
      if (weight == nullptr || scales == nullptr) return {};
      if (in % 32 != 0) {
        problem(format("{}: rows of {} elements, no multiple of 32", weight->name, in));
        return {};
      }
      const auto check = [&](const TensorEntry& t, std::initializer_list<int64_t> shape) {
        const bool byte = t.dtype == DType::kU8 || (&t == scales && t.dtype == DType::kF8E8M0);
        if (byte && t.num_dims == shape.size() && std::equal(shape.begin(), shape.end(), t.shape)) return true;
        problem(format("{}: {} {}, expected U8 {}", t.name, dtype_name(t.dtype), shape_string(t), join_dims(shape)));
        return false;
      };
      if (!check(*weight, {num_experts, out, in / 32, 16}) || !check(*scales, {num_experts, out, in / 32})) return {};
      return {.weight = weight, .scales = scales, .code = DType::kF4,
              .format = {.scale_dtype = DType::kF8E8M0, .block_rows = 1, .block_cols = 32}};
    };
    both = blocks(prefix + ".gate_up_proj", 2 * intermediate, hidden);
    down = blocks(prefix + ".down_proj", hidden, intermediate);
  } else {
    const auto transposed = [&](const std::string& name, int64_t out, int64_t in) -> Stored {
      const TensorEntry* weight = use_shaped(name, {num_experts, in, out});
      return weight == nullptr ? Stored{} : Stored{.weight = weight, .code = weight->dtype};
    };
    both = transposed(prefix + ".gate_up_proj", 2 * intermediate, hidden);
    down = transposed(prefix + ".down_proj", hidden, intermediate);
  }
  if (both.weight == nullptr || down.weight == nullptr) return;
  const auto n = static_cast<uint64_t>(num_experts);
  for (uint64_t e = 0; e < n; ++e) {
    ExpertInfo& info = binding_.experts->at(moe_layer, static_cast<int>(e));
    set_part(info, ExpertPart::kGate, both, e, n, 2 * intermediate, hidden, layout);
    set_part(info, ExpertPart::kDown, down, e, n, hidden, intermediate, layout);
    finish_expert(info, prefix);
  }
}

Result<Binding> Binder::finish() {
  check_orientations();
  std::vector<std::string> unused;
  size_t num_unused = 0;
  const auto tensors = checkpoint_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    // Old exporters saved RoPE frequencies as a buffer; they are derived from the config.
    if (used_[i] || tensors[i].name.ends_with(".rotary_emb.inv_freq")) continue;
    if (config_.quantization.is_packed() && tensors[i].name.starts_with(kPaddingPrefix)) continue;
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
  if (arch->check != nullptr) PM_RETURN_IF_ERROR(arch->check(config));
  if (arch->router != nullptr && config.num_experts > 0) PM_RETURN_IF_ERROR(ops::check_contract(arch->router(config)));
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
      info.xxh3 = it->second.xxh3;
    }
  }
  return ok_status();
}

}  // namespace pointsman
