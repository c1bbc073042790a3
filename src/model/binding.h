// SPDX-License-Identifier: Apache-2.0
//
// Binding: which tensor of the checkpoint becomes which weight. An architecture lists what it expects; the binder matches it against
// what is there, in every naming the wild uses for experts, and refuses when anything is left over on either side.
//
// Reads nothing but the header tables. The same pass serves `inspect`, `plan`, `lock` and load.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quantization.h"
#include "experts/catalogue.h"
#include "model/weights.h"
#include "pointsman/status.h"

namespace pointsman {

// One dense tensor: where it lies, and the view that load() fills in.
struct DenseBinding {
  const TensorEntry* entry = nullptr;
  Tensor* matrix = nullptr;          // exactly one of matrix, vector, table and scales is set
  const float** vector = nullptr;
  const int32_t** table = nullptr;   // integers of any width, held in 32 bits
  int64_t table_limit = 0;           // exclusive upper bound of its values
  const void** scales = nullptr;     // the grid of a coded matrix, as stored
  const Weight* coded = nullptr;     // with `scales`: whose they are
  const Weight* weight = nullptr;    // with `matrix`: the same one, when kernels take it in any format; else it stays plain rows
  bool plain_in_rows = false;        // of such a one: it lies in panels only when it is coded (the head)
  std::string unit;                  // placement unit: "embed_tokens", "layers.3.attention", ...
  uint64_t device_bytes = 0;         // what it takes in the weight buffer (vectors are widened to fp32)
  bool must_be_finite = false;       // load refuses NaN and infinity
  bool on_demand = false;            // stays on disk, takes nothing there (engine/placement.h decides)

  // How a packed folder holds this matrix when its dtype and format are those of `stored`. REQUIRES: weight.
  WeightLayout layout_in(const QuantizationConfig& config, const Weight& stored) const {
    return plain_in_rows && is_plain(stored.dtype) ? WeightLayout::kOutIn : packed_layout(config, {&stored, 1});
  }
};

struct Binding {
  std::unique_ptr<ModelWeights> weights;   // shapes filled in, data null until loaded
  std::vector<DenseBinding> dense;
  std::unique_ptr<ExpertCatalogue> experts;  // null for a dense model
  std::vector<std::string> notes;            // "lm_head.weight is stored although the embeddings are tied: the stored head is used"
  uint64_t dense_device_bytes() const;       // size of the weight buffer
  uint64_t table_bytes() const;
  // What a matrix of the vocabulary is used for; both when it is stored once and tied.
  bool is_embedding(const DenseBinding& b) const;
  bool is_head(const DenseBinding& b) const;
};

class Binder {
 public:
  Binder(const Checkpoint& checkpoint, const ModelConfig& config);

  bool has(std::string_view name) const { return checkpoint_.find(name) != nullptr; }
  // A matrix [rows, cols] in BF16, F16 or F32.
  void matrix(const std::string& name, int64_t rows, int64_t cols, Tensor& out, const std::string& unit);
  // The same, or FP8 or packed FP4 with scales under "X.weight_scale_inv", "X.scale" or "X.weight_scale" for a name "X.weight". What the
  // codes mean is decided by checkpoint/quantization.h; scales are found by exact name, never by suffix.
  // In a packed folder it may lie in panels: packed_layout() of the matrix alone, which for the projections of one MLP is the same for all.
  void matrix(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit);
  // For matrices whose rows are used one by one or in other groups than panels: a packed folder holds them in rows, and as they were.
  void matrix_in_rows(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit);
  // The matrix that gives logits, in the same formats: in rows and met by fp32 inputs unless a packed folder holds it coded.
  void head(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit);
  // A vector of n elements, held in fp32.
  void vector(const std::string& name, int64_t n, const float*& out, const std::string& unit);
  // A vector that decides, like a router's selection bias: load refuses one that is not finite, since NaN would choose silently.
  void finite_vector(const std::string& name, int64_t n, const float*& out, const std::string& unit);
  // The same for more dimensions, held contiguous.
  void array(const std::string& name, std::initializer_list<int64_t> shape, const float*& out, const std::string& unit);
  // A matrix of ids in [0, limit), stored I64 or I32; load() refuses others.
  void table(const std::string& name, int64_t rows, int64_t cols, int64_t limit, const int32_t*& out, const std::string& unit);
  // Tensors that are known and not needed: how many there were.
  int64_t ignore_prefix(std::string_view prefix);
  // All routed experts of a layer under `prefix` (".../mlp.experts"): per expert (gate_proj/up_proj/down_proj or w1/w3/w2, each with scales
  // as in matrix()) or fused (gate_up_proj [experts, 2 * intermediate, hidden], down_proj [experts, hidden, intermediate]).
  void experts(int layer, const std::string& prefix, int64_t intermediate, int64_t hidden);
  // The same as gpt-oss stores them: gate and up outputs in turn, either MXFP4 (gate_up_proj_blocks [experts, 2 * intermediate, hidden / 32,
  // 16] and gate_up_proj_scales, down_proj_blocks and _scales) or transposed (gate_up_proj [experts, hidden, 2 * intermediate], down_proj
  // [experts, intermediate, hidden]); or, as pack writes them, per expert: N.gate_up_proj.weight and N.down_proj.weight,
  // [out, in] or, where packed_layout() says so, [in, out].
  void interleaved_experts(int layer, const std::string& prefix, int64_t intermediate, int64_t hidden);
  // A tensor that old exporters wrote and nobody needs.
  void ignore(std::string_view name);
  void note(std::string text) { binding_.notes.push_back(std::move(text)); }

  ModelWeights& weights() { return *binding_.weights; }
  // kCorrupt with both lists (at most 10 names each, and counts) when something is missing, misshapen or unused.
  Result<Binding> finish();

 private:
  // A weight as it lies in the checkpoint; `scales` is null for plain dtypes. Nothing when something was wrong (and noted).
  struct Stored {
    const TensorEntry* weight = nullptr;
    const TensorEntry* scales = nullptr;
    DType code = DType::kBF16;
    BlockFormat format;
  };
  Stored use_weight(const std::string& name, int64_t rows, int64_t cols);
  // [num_experts, rows, cols]; FP8 with a grid for each expert under `name`_scale_inv or `name`_scale.
  Stored use_fused(const std::string& name, int64_t num_experts, int64_t rows, int64_t cols);
  const TensorEntry* find_scales(const std::string& weight_name);
  void note_orientation(GridOrientation orientation, std::string_view name);
  void check_orientations();
  void set_part(ExpertInfo& info, ExpertPart part, const Stored& stored, uint64_t index, uint64_t count, int64_t rows, int64_t cols,
                WeightLayout layout = WeightLayout::kOutIn);
  void finish_expert(ExpertInfo& info, std::string_view name);
  enum class Panels { kAny, kCoded, kNone };  // what may lie in them
  void bind_matrix(const std::string& name, int64_t rows, int64_t cols, Weight& out, const std::string& unit, Panels panels);

  const TensorEntry* use(const std::string& name);
  const TensorEntry* use_shaped(const std::string& name, std::initializer_list<int64_t> shape);
  void problem(std::string text);
  bool check_shape(const TensorEntry& entry, std::initializer_list<int64_t> shape);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  Binding binding_;
  std::vector<bool> used_;
  std::vector<std::string> missing_;
  std::vector<std::string> problems_;
  size_t num_problems_ = 0;
  // The first tensor with each kind of scale grid, and how many there are, by GridOrientation.
  struct Orientations {
    std::string first;
    size_t count = 0;
  } orientations_[3];
};

// Binds `config`'s architecture to the checkpoint. kUnsupported when the architecture is unknown or cannot express the config.
Result<Binding> bind_model(const Checkpoint& checkpoint, const ModelConfig& config);

// Copies digests of the lock file into the catalogue. kCorrupt when the lock names a size that differs, or lacks an expert.
Status attach_digests(const LockFile& lock, ExpertCatalogue& catalogue);

}  // namespace pointsman
