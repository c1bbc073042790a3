// SPDX-License-Identifier: Apache-2.0
//
// What differs from layer to layer: sliding windows, and which MLPs are mixtures of experts.
#include <algorithm>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr int64_t kMaxWindow = int64_t{1} << 32;
constexpr int64_t kMaxLayer = 4096;

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

void read_layer_windows(ConfigReader& r, bool window_in_every_layer, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  c.layer_window.assign(static_cast<size_t>(c.num_hidden_layers), 0);
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
  if (window_in_every_layer) {
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
    for (size_t i = 0; i < slides.size(); ++i) slides[i] = static_cast<int64_t>(i) >= first;
  }
  for (size_t i = 0; i < slides.size(); ++i) c.layer_window[i] = slides[i] ? window : 0;
}

void read_moe(ConfigReader& r, ModelConfig& c) {
  const std::string fallback = "default of " + c.model_type;
  // transformers 5 saves num_experts as num_local_experts; DeepSeek writes n_routed_experts.
  c.num_experts = r.integer("num_experts", {"num_experts", "num_local_experts", "n_routed_experts"}, 0, 4096);
  if (c.num_experts == 0) return;  // every layer is dense
  c.num_experts_per_tok = r.integer("num_experts_per_tok", {"num_experts_per_tok"}, 1, 64);
  c.moe_intermediate_size = r.integer("moe_intermediate_size", {"moe_intermediate_size"}, 1, 1 << 20);
  c.norm_topk_prob = r.boolean_or("norm_topk_prob", {"norm_topk_prob"}, false, fallback);
  const int64_t step = r.integer_or("decoder_sparse_step", {"decoder_sparse_step"}, 1, kMaxLayer, 1, fallback);
  if (c.num_experts_per_tok > c.num_experts) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: num_experts_per_tok {} is more than num_experts {}", r.where(),
                 c.num_experts_per_tok, c.num_experts));
  }
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

}  // namespace pointsman
