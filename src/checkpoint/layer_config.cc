// SPDX-License-Identifier: Apache-2.0
//
// What differs from layer to layer: sliding windows, and which MLPs are mixtures of experts.
#include <algorithm>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr int64_t kMaxWindow = int64_t{1} << 32;
constexpr int64_t kMaxLayer = 4096;
constexpr int64_t kMaxWidth = 1 << 20;

// Index of the first entry of layer_types that is "sliding_attention", or -1; fails on anything unknown. `slides` is filled.
int64_t read_layer_types(ConfigReader& r, const Json& types, const std::string& path, std::vector<bool>& slides) {
  if (!types.is_array()) {
    r.fail_type(path, types, "a list");
    return -1;
  }
  if (types.as_array().size() != slides.size()) {
    r.fail(error(StatusCode::kCorrupt, "{}: {} layer types, expected num_hidden_layers = {}", path, types.as_array().size(),
                 slides.size()));
    return -1;
  }
  int64_t first = -1;
  for (size_t i = 0; i < slides.size(); ++i) {
    const Json& type = types.as_array()[i];
    slides[i] = type.is_string() && type.as_string() == "sliding_attention";
    if (slides[i] && first < 0) first = static_cast<int64_t>(i);
    if (!slides[i] && !(type.is_string() && type.as_string() == "full_attention")) {
      r.fail(error(StatusCode::kUnsupported,
                   "{}[{}]: {} is not supported, expected \"full_attention\" or \"sliding_attention\"", path, i, brief(type)));
    }
  }
  return first;
}

}  // namespace

void read_layer_windows(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.layer_window.assign(static_cast<size_t>(c.num_hidden_layers), 0);
  if (family.window == WindowRule::kNone) return;
  if (family.window == WindowRule::kSetInEveryLayer) {
    const int64_t window = r.integer_or("sliding_window", {"sliding_window"}, 1, kMaxWindow, 0, "none unless said");
    std::fill(c.layer_window.begin(), c.layer_window.end(), window);
    return;
  }
  if (family.window == WindowRule::kAlternate) {
    const bool none = r.is_null("sliding_window");
    if (none) r.record("sliding_window", "none", r.where() + ": sliding_window");
    const int64_t size = none ? 0 : r.integer_or("sliding_window", {"sliding_window"}, 1, kMaxWindow, 128, fallback);
    std::string at;
    std::vector<bool> alternate(c.layer_window.size());
    for (size_t i = 0; i < alternate.size(); i += 2) alternate[i] = true;
    if (const Json* said = r.find({"layer_types"}, &at)) read_layer_types(r, *said, at, alternate);
    r.record("layer_types", format("{} of {} layers slide", std::count(alternate.begin(), alternate.end(), true), alternate.size()),
             at.empty() ? fallback : at);
    for (size_t i = 0; i < alternate.size(); ++i) c.layer_window[i] = alternate[i] ? size : 0;
    return;
  }
  bool use = r.boolean_or("use_sliding_window", {"use_sliding_window"}, false, fallback);
  // An absent window is the class default of 4096; an explicit null is none.
  const bool is_none = r.is_null("sliding_window");
  int64_t window = 0;
  if (is_none) {
    r.record("sliding_window", "none", r.where() + ": sliding_window");
    use = false;
  } else {
    // 0 is written by some when the window is off.
    window = r.integer_or("sliding_window", {"sliding_window"}, use ? 1 : 0, kMaxWindow, 4096, fallback);
  }
  std::string path;
  const Json* types = r.find({"layer_types"}, &path);
  std::vector<bool> slides(c.layer_window.size());
  const int64_t first_sliding = types == nullptr ? -1 : read_layer_types(r, *types, path, slides);
  if (!use) {
    if (first_sliding >= 0) {
      r.fail(error(StatusCode::kInvalidArgument, "{}[{}]: \"sliding_attention\", but {}", path, first_sliding,
                   is_none ? "sliding_window is null" : "use_sliding_window is not true"));
    }
    return;
  }
  if (family.window == WindowRule::kSwitchEveryLayer) {
    // transformers gives every layer of such a family (qwen3_moe) the window, whatever layer_types say; max_window_layers is
    // not a key of it.
    if (types != nullptr && std::find(slides.begin(), slides.end(), false) != slides.end()) {
      r.warn(
          format("{}: ignored, as transformers does for {}: with use_sliding_window every layer slides", path, c.model_type));
    }
    std::fill(slides.begin(), slides.end(), true);
  } else if (types != nullptr) {
    r.record("layer_types", format("{} of {} layers slide", std::count(slides.begin(), slides.end(), true), slides.size()),
             path);
  } else {
    const int64_t first = r.integer_or("max_window_layers", {"max_window_layers"}, 0, kMaxLayer, 28, fallback);
    for (size_t i = 0; i < slides.size(); ++i) {
      const bool is_below = static_cast<int64_t>(i) < first;
      slides[i] = family.window == WindowRule::kSwitchAlternate ? is_below && i % 2 == 0 : !is_below;
    }
  }
  for (size_t i = 0; i < slides.size(); ++i) c.layer_window[i] = slides[i] ? window : 0;
}

namespace {

// decoder_sparse_step and mlp_only_layers.
void read_sparse_layers(ConfigReader& r, ModelConfig& c) {
  const int64_t step =
      r.integer_or("decoder_sparse_step", {"decoder_sparse_step"}, 1, kMaxLayer, 1, "default of " + c.model_type);
  for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.layer_is_moe[static_cast<size_t>(i)] = (i + 1) % step == 0;
  std::string path;
  const Json* dense = r.find({"mlp_only_layers"}, &path);
  if (dense == nullptr) return;
  if (!dense->is_array()) return r.fail_type(path, *dense, "a list of layer numbers");
  for (const Json& item : dense->as_array()) {
    const int64_t layer = r.check_integer(path, item, 0, kMaxLayer);
    if (layer < c.num_hidden_layers)
      c.layer_is_moe[static_cast<size_t>(layer)] = false;  // others mean nothing, as in transformers
  }
  r.record("mlp_only_layers", brief(*dense), path);
}

void read_shared_expert(ConfigReader& r, const Family& family, ModelConfig& c) {
  if (family.shared_expert == SharedExpertRule::kGated) {
    c.shared_expert_is_gated = true;
    c.shared_expert_intermediate_size =
        r.integer("shared_expert_intermediate_size", {"shared_expert_intermediate_size"}, 1, kMaxWidth);
  } else if (family.shared_expert == SharedExpertRule::kCounted) {
    const int64_t count = r.integer_or("n_shared_experts", {"n_shared_experts"}, 0, 1024, 1, "default of " + c.model_type);
    c.shared_expert_intermediate_size = count * c.moe_intermediate_size;
    if (r.status().ok() && c.shared_expert_intermediate_size > kMaxWidth) {
      r.fail(error(StatusCode::kInvalidArgument, "{}: {} shared experts of width {} are wider than {}", r.where(), count,
                   c.moe_intermediate_size, kMaxWidth));
    }
  }
}

}  // namespace

void read_moe(ConfigReader& r, const Family& family, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  const bool may_be_dense = family.moe_layers == MoeLayerRule::kSparseStep;
  // transformers 5 saves num_experts as num_local_experts; DeepSeek writes n_routed_experts.
  c.num_experts = r.integer("num_experts", {"num_experts", "num_local_experts", "n_routed_experts"}, may_be_dense ? 0 : 1, 4096);
  if (c.num_experts == 0) return;  // every layer is dense
  c.num_experts_per_tok = r.integer("num_experts_per_tok", {"num_experts_per_tok"}, 1, 64);
  c.moe_intermediate_size = r.integer("moe_intermediate_size", {family.expert_width_key}, 1, kMaxWidth);
  if (family.norm_topk == NormTopkRule::kAlways) {
    c.norm_topk_prob = true;
    r.record("norm_topk_prob", "true", "rule of " + c.model_type);
  } else {
    c.norm_topk_prob =
        r.boolean_or("norm_topk_prob", {"norm_topk_prob"}, family.norm_topk == NormTopkRule::kByKeyTrue, fallback);
  }
  if (c.num_experts_per_tok > c.num_experts) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: num_experts_per_tok {} is more than num_experts {}", r.where(),
                 c.num_experts_per_tok, c.num_experts));
  }
  if (family.has_expert_groups) {
    c.n_group = r.integer_or("n_group", {"n_group"}, 1, 64, family.n_group, fallback);
    c.topk_group = r.integer_or("topk_group", {"topk_group"}, 1, 64, family.topk_group, fallback);
    c.routed_scaling_factor =
        r.number_or("routed_scaling_factor", {"routed_scaling_factor"}, 1e-6, 1e6, family.routed_scaling_factor, fallback);
  }
  switch (family.moe_layers) {
    case MoeLayerRule::kNone: break;
    case MoeLayerRule::kEvery: c.layer_is_moe.assign(c.layer_is_moe.size(), true); break;
    case MoeLayerRule::kSparseStep: read_sparse_layers(r, c); break;
    case MoeLayerRule::kAfterDense: {
      const int64_t dense = r.integer_or("first_k_dense_replace", {"first_k_dense_replace"}, 0, kMaxLayer, family.dense_layers, fallback);
      for (int64_t i = 0; i < c.num_hidden_layers; ++i) c.layer_is_moe[static_cast<size_t>(i)] = i >= dense;
      break;
    }
  }
  read_shared_expert(r, family, c);
}

}  // namespace pointsman
