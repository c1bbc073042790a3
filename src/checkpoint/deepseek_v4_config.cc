// SPDX-License-Identifier: Apache-2.0
//
// What config.json of deepseek_v4 says beyond the common keys, in both spellings: as published (compress_ratios, num_hash_layers,
// qk_rope_head_dim, flat rope keys) and as transformers 5 saves it (layer_types, compress_rates, mlp_layer_types,
// rope_parameters nested as main and compress). Two spellings that disagree are refused: dropping one silently lost YaRN elsewhere.
#include <algorithm>
#include <cmath>

#include "checkpoint/config_reader.h"

namespace pointsman {
namespace {

constexpr int64_t kMaxRatio = 4096;
constexpr int64_t kMaxStreams = 16;

// `value`, or a refusal when another spelling said something else.
template <class T>
void agree(ConfigReader& r, std::string_view what, const std::string& path, const std::vector<T>& found, std::vector<T>& value) {
  if (!value.empty() && value != found) {
    r.fail(error(StatusCode::kUnsupported, "{}: says other {} than an earlier key of the same meaning; keep one of them", path, what));
  }
  value = found;
}

void read_ratios(ConfigReader& r, ModelConfig& c) {
  CompressedAttentionConfig& a = c.compressed;
  std::string path;
  if (const Json* rates = r.find({"compress_rates"}, &path)) {
    if (!rates->is_object()) return r.fail_type(path, *rates, "an object");
    for (const auto& [key, value] : rates->as_object()) {
      const std::string at = format("{}.{}", path, key.substr(0, 64));
      if (key == "compressed_sparse_attention") {
        a.sparse_ratio = r.check_integer(at, value, 2, kMaxRatio);
      } else if (key == "heavily_compressed_attention") {
        a.heavy_ratio = r.check_integer(at, value, 2, kMaxRatio);
      } else {
        return r.fail(error(StatusCode::kUnsupported, "{}: not a kind of layer that deepseek_v4 has", at));
      }
    }
    r.record("compress_rates", format("{} and {}", a.sparse_ratio, a.heavy_ratio), path);
  }
  a.sparse_ratio = r.integer_or("compress_rate_csa", {"compress_rate_csa"}, 2, kMaxRatio, a.sparse_ratio, "see compress_rates");
  a.heavy_ratio = r.integer_or("compress_rate_hca", {"compress_rate_hca"}, 2, kMaxRatio, a.heavy_ratio, "see compress_rates");
}

void read_kinds(ConfigReader& r, ModelConfig& c) {
  CompressedAttentionConfig& a = c.compressed;
  const size_t layers = static_cast<size_t>(c.num_hidden_layers);
  std::string path;
  if (const Json* ratios = r.find({"compress_ratios"}, &path)) {
    if (!ratios->is_array()) return r.fail_type(path, *ratios, "a list of 0, 4 and 128");
    // Entries beyond the layers belong to the MTP stages, which are not loaded.
    if (ratios->as_array().size() < layers) {
      return r.fail(error(StatusCode::kCorrupt, "{}: {} entries, expected at least num_hidden_layers = {}", path, ratios->as_array().size(), layers));
    }
    std::vector<CompressKind> kinds;
    for (size_t i = 0; i < layers; ++i) {
      const int64_t ratio = r.check_integer(format("{}[{}]", path, i), ratios->as_array()[i], 0, kMaxRatio);
      // 1 is written by some for "no compression".
      if (ratio <= 1) {
        kinds.push_back(CompressKind::kNone);
      } else if (ratio == a.sparse_ratio || ratio == a.heavy_ratio) {
        kinds.push_back(ratio == a.sparse_ratio ? CompressKind::kSparse : CompressKind::kHeavy);
      } else {
        return r.fail(error(StatusCode::kUnsupported, "{}[{}]: ratio {}, expected 0, 1, {} or {}", path, i, ratio, a.sparse_ratio, a.heavy_ratio));
      }
    }
    agree(r, "layers", path, kinds, a.layers);
  }
  if (const Json* types = r.find({"layer_types"}, &path)) {
    if (!types->is_array()) return r.fail_type(path, *types, "a list");
    if (types->as_array().size() != layers) {
      return r.fail(error(StatusCode::kCorrupt, "{}: {} layer types, expected num_hidden_layers = {}", path, types->as_array().size(), layers));
    }
    std::vector<CompressKind> kinds;
    for (size_t i = 0; i < layers; ++i) {
      const Json& type = types->as_array()[i];
      const std::string name = type.is_string() ? type.as_string() : "";
      if (name == "sliding_attention") {
        kinds.push_back(CompressKind::kNone);
      } else if (name == "compressed_sparse_attention") {
        kinds.push_back(CompressKind::kSparse);
      } else if (name == "heavily_compressed_attention") {
        kinds.push_back(CompressKind::kHeavy);
      } else {
        return r.fail(error(StatusCode::kUnsupported, "{}[{}]: {} is not supported, expected \"sliding_attention\", "
                            "\"compressed_sparse_attention\" or \"heavily_compressed_attention\"", path, i, brief(type)));
      }
    }
    agree(r, "layers", path, kinds, a.layers);
  }
  if (a.layers.empty()) {
    // The class default of transformers: two heavy layers, then heavy and sparse in turn.
    for (size_t i = 0; i < layers; ++i) a.layers.push_back(i < 2 || i % 2 == 0 ? CompressKind::kHeavy : CompressKind::kSparse);
    path = "default of deepseek_v4";
  }
  const auto count = [&](CompressKind k) { return std::count(a.layers.begin(), a.layers.end(), k); };
  r.record("compress_ratios", format("{} layers window only, {} of ratio {}, {} of ratio {}", count(CompressKind::kNone), count(CompressKind::kSparse),
                                     a.sparse_ratio, count(CompressKind::kHeavy), a.heavy_ratio), path);
}

void read_hash_layers(ConfigReader& r, ModelConfig& c) {
  std::string path;
  const Json* types = r.find({"mlp_layer_types"}, &path);
  const int64_t fallback = std::min<int64_t>(3, c.num_hidden_layers);
  if (types == nullptr) {
    c.num_hash_layers = r.integer_or("num_hash_layers", {"num_hash_layers"}, 0, kMaxRatio, fallback, "default of deepseek_v4");
    c.num_hash_layers = std::min(c.num_hash_layers, c.num_hidden_layers);
    return;
  }
  if (!types->is_array()) return r.fail_type(path, *types, "a list");
  if (types->as_array().size() != static_cast<size_t>(c.num_hidden_layers)) {
    return r.fail(error(StatusCode::kCorrupt, "{}: {} entries, expected num_hidden_layers = {}", path, types->as_array().size(), c.num_hidden_layers));
  }
  bool after = false;
  for (size_t i = 0; i < types->as_array().size(); ++i) {
    const Json& type = types->as_array()[i];
    const bool is_hash = type.is_string() && type.as_string() == "hash_moe";
    if (!is_hash && !(type.is_string() && type.as_string() == "moe")) {
      return r.fail(error(StatusCode::kUnsupported, "{}[{}]: {} is not supported, expected \"hash_moe\" or \"moe\"", path, i, brief(type)));
    }
    if (is_hash && after) {
      return r.fail(error(StatusCode::kUnsupported, "{}[{}]: a hash layer after one that is none is not supported", path, i));
    }
    after = after || !is_hash;
    c.num_hash_layers += is_hash ? 1 : 0;
  }
  const int64_t said = r.integer_or("num_hash_layers", {"num_hash_layers"}, 0, kMaxRatio, c.num_hash_layers, path);
  if (said != c.num_hash_layers) {
    r.fail(error(StatusCode::kUnsupported, "{}: {} hash layers, but num_hash_layers is {}; keep one of them", path, c.num_hash_layers, said));
  }
}

// Both ropes, and how many channels turn.
void read_ropes(ConfigReader& r, ModelConfig& c) {
  constexpr double kMaxTheta = 1e12;
  RopeConfig main, compress;
  main.theta = r.number_or("rope.theta", {"rope_theta"}, 1, kMaxTheta, 10000, "default of deepseek_v4");
  compress.theta = r.number_or("compress_rope_theta", {"compress_rope_theta"}, 1, kMaxTheta, 160000, "default of deepseek_v4");

  double partial = r.number_or("partial_rotary_factor", {"partial_rotary_factor"}, 0, 1, 0, "see qk_rope_head_dim");
  const auto read = [&](const Json& dict, const std::string& path, RopeConfig start) {
    double own = partial;
    c.rope = start;
    read_rope_dictionary(r, dict, path, c, own);
    if (partial != 0 && own != partial) {
      r.fail(error(StatusCode::kUnsupported, "{}: partial_rotary_factor {} differs from {} said elsewhere", path, own, partial));
    }
    partial = own;
    return std::exchange(c.rope, RopeConfig{});
  };
  std::string scaling_path, path;
  const Json* scaling = r.find({"rope_scaling"}, &scaling_path);
  const Json* parameters = r.find({"rope_parameters"}, &path);
  const auto is_nested = [](const Json* j) { return j != nullptr && j->is_object() && (j->find("main") != nullptr || j->find("compress") != nullptr); };
  if (parameters != nullptr && !parameters->is_object()) return r.fail_type(path, *parameters, "an object");
  if (scaling != nullptr && !scaling->is_object()) return r.fail_type(scaling_path, *scaling, "an object or null");
  if (is_nested(scaling) || (is_nested(parameters) && scaling != nullptr) || (scaling != nullptr && parameters != nullptr && !(*scaling == *parameters))) {
    return r.fail(error(StatusCode::kUnsupported, "{} and {} both describe ropes; keep one of them", scaling_path, path));
  }
  if (is_nested(parameters)) {
    for (const auto& [key, value] : parameters->as_object()) {
      const std::string at = format("{}.{}", path, key.substr(0, 64));
      if (key != "main" && key != "compress") {
        // transformers drops whatever else lies beside them.
        r.warn(at + ": ignored, as transformers does: main and compress are there");
        continue;
      }
      if (!value.is_object()) return r.fail_type(at, value, "an object");
      RopeConfig& target = key == "main" ? main : compress;
      target = read(value, at, target);
    }
    if (parameters->find("main") == nullptr || parameters->find("compress") == nullptr) {
      return r.fail(error(StatusCode::kCorrupt, "{}: expected both \"main\" and \"compress\"", path));
    }
  } else if (const Json* flat = scaling != nullptr ? scaling : parameters; flat != nullptr && !flat->as_object().empty()) {
    // Flat keys scale the compressed layers only; their theta is compress_rope_theta.
    const double theta = compress.theta;
    compress = read(*flat, scaling != nullptr ? scaling_path : path, compress);
    compress.theta = theta;
  }
  // No implementation scales cos and sin here, whatever YaRN's formula would give.
  for (RopeConfig* rope : {&main, &compress}) {
    if (rope->type == RopeType::kYarn && rope->attention_factor == 0) rope->attention_factor = 1;
  }
  c.rope = main;
  c.compressed.rope = compress;
  r.record("compress_rope", format("theta {}, {}", compress.theta, compress.type == RopeType::kYarn ? "yarn" : "no scaling"), "rope keys");

  const double fallback = partial != 0 ? partial * static_cast<double>(c.head_dim) : 0.125 * static_cast<double>(c.head_dim);
  c.rotary_dim = r.integer_or("qk_rope_head_dim", {"qk_rope_head_dim"}, 2, c.head_dim, static_cast<int64_t>(fallback),
                              "derived: partial_rotary_factor * head_dim");
  if (partial != 0 && std::llabs(static_cast<int64_t>(fallback) - c.rotary_dim) > 0) {
    r.fail(error(StatusCode::kUnsupported, "{}: qk_rope_head_dim {} and partial_rotary_factor {} of head_dim {} disagree; keep one of them", r.where(),
                 c.rotary_dim, partial, c.head_dim));
  }
  if (c.rotary_dim < 2 || c.rotary_dim % 2 != 0) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: {} channels of a head turn; expected an even number from 2 on", r.where(), c.rotary_dim));
  }
}

void read_router(ConfigReader& r, ModelConfig& c) {
  const std::string fallback = "default of deepseek_v4";
  const std::string score = r.text_or("scoring_func", {"scoring_func"}, "sqrtsoftplus", fallback);
  if (score == "sqrtsoftplus") {
    c.router_score = RouterScore::kSqrtSoftplus;
  } else if (score == "sigmoid") {
    c.router_score = RouterScore::kSigmoid;
  } else if (score == "softmax") {
    c.router_score = RouterScore::kSoftmax;
  } else {
    r.fail(error(StatusCode::kUnsupported, "{}: scoring_func {} is not supported; known are sqrtsoftplus, sigmoid, softmax", r.where(),
                 json_quote(score.substr(0, 64))));
  }
  const std::string method = r.text_or("topk_method", {"topk_method"}, "noaux_tc", fallback);
  if (method != "noaux_tc") {
    r.fail(error(StatusCode::kUnsupported, "{}: topk_method {} is not supported; expected \"noaux_tc\"", r.where(), json_quote(method.substr(0, 64))));
  }
  if (!r.boolean_or("norm_topk_prob", {"norm_topk_prob"}, true, fallback)) {
    r.warn("norm_topk_prob is false: ignored, as transformers does for deepseek_v4");
  }
  c.norm_topk_prob = true;
  c.routed_scaling_factor = r.number_or("routed_scaling_factor", {"routed_scaling_factor"}, 1e-6, 1e6, 1.5, fallback);
  c.swiglu_limit = r.number_or("swiglu_limit", {"swiglu_limit"}, 0, 1e30, 10, fallback);
  const int64_t shared = r.integer_or("n_shared_experts", {"n_shared_experts"}, 0, 64, 1, fallback);
  if (shared != 1) r.fail(error(StatusCode::kUnsupported, "{}: n_shared_experts {}, expected 1", r.where(), shared));
  r.integer_or("num_nextn_predict_layers", {"num_nextn_predict_layers"}, 0, 64, 0, "not loaded");
}

}  // namespace

void read_deepseek_v4(ConfigReader& r, const Family&, ModelConfig& c) {
  const std::string fallback = "default of deepseek_v4";
  CompressedAttentionConfig& a = c.compressed;
  if (c.num_key_value_heads != 1) {
    r.fail(error(StatusCode::kUnsupported, "{}: num_key_value_heads {}, expected 1: one vector is key and value of all heads", r.where(),
                 c.num_key_value_heads));
  }
  if (c.attention_bias) r.fail(error(StatusCode::kUnsupported, "{}: attention_bias true is not supported for deepseek_v4", r.where()));
  if (c.num_experts == 0) r.fail(error(StatusCode::kUnsupported, "{}: n_routed_experts 0: every layer of deepseek_v4 has experts", r.where()));
  c.layer_window.assign(static_cast<size_t>(c.num_hidden_layers), r.integer_or("sliding_window", {"sliding_window"}, 1, 1 << 20, 128, fallback));
  a.q_lora_rank = r.integer_or("q_lora_rank", {"q_lora_rank"}, 1, 1 << 20, 1024, fallback);
  a.o_groups = r.integer_or("o_groups", {"o_groups"}, 1, 4096, 8, fallback);
  a.o_lora_rank = r.integer_or("o_lora_rank", {"o_lora_rank"}, 1, 1 << 20, 1024, fallback);
  a.index_n_heads = r.integer_or("index_n_heads", {"index_n_heads"}, 1, 1024, 64, fallback);
  a.index_head_dim = r.integer_or("index_head_dim", {"index_head_dim"}, 2, 512, 128, fallback);
  a.index_topk = r.integer_or("index_topk", {"index_topk"}, 1, 4096, 512, fallback);
  c.hyper.streams = r.integer_or("hc_mult", {"hc_mult"}, 1, kMaxStreams, 4, fallback);
  c.hyper.sinkhorn_iters = r.integer_or("hc_sinkhorn_iters", {"hc_sinkhorn_iters"}, 1, 1000, 20, fallback);
  c.hyper.eps = r.number_or("hc_eps", {"hc_eps"}, 0, 1, 1e-6, fallback);
  read_ratios(r, c);
  read_kinds(r, c);
  read_hash_layers(r, c);
  read_ropes(r, c);
  read_router(r, c);
  if (!r.status().ok()) return;
  if (c.num_attention_heads % a.o_groups != 0) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: num_attention_heads {} is no multiple of o_groups {}", r.where(), c.num_attention_heads, a.o_groups));
  }
  if (c.rotary_dim > a.index_head_dim) {
    r.fail(error(StatusCode::kInvalidArgument, "{}: {} channels turn, but index_head_dim is {}", r.where(), c.rotary_dim, a.index_head_dim));
  }
}

}  // namespace pointsman
