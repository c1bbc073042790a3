// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/gpt_oss_names.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "base/log.h"

namespace pointsman {
namespace {

constexpr std::string_view kQkvWeight = ".attn.qkv.weight", kQkvBias = ".attn.qkv.bias", kOutWeight = ".attn.out.weight";

// Of one block, and of transformers' layer. q stands for qkv.
constexpr std::pair<std::string_view, std::string_view> kInBlock[] = {
    {".attn.norm.scale", ".input_layernorm.weight"},
    {kQkvWeight, ".self_attn.q_proj.weight"},
    {kQkvBias, ".self_attn.q_proj.bias"},
    {".attn.sinks", ".self_attn.sinks"},
    {kOutWeight, ".self_attn.o_proj.weight"},
    {".attn.out.bias", ".self_attn.o_proj.bias"},
    {".mlp.norm.scale", ".post_attention_layernorm.weight"},
    {".mlp.gate.weight", ".mlp.router.weight"},
    {".mlp.gate.bias", ".mlp.router.bias"},
    {".mlp.mlp1_weight.blocks", ".mlp.experts.gate_up_proj_blocks"},
    {".mlp.mlp1_weight.scales", ".mlp.experts.gate_up_proj_scales"},
    {".mlp.mlp1_bias", ".mlp.experts.gate_up_proj_bias"},
    {".mlp.mlp2_weight.blocks", ".mlp.experts.down_proj_blocks"},
    {".mlp.mlp2_weight.scales", ".mlp.experts.down_proj_scales"},
    {".mlp.mlp2_bias", ".mlp.experts.down_proj_bias"},
};
constexpr std::pair<std::string_view, std::string_view> kOutside[] = {
    {"embedding.weight", "model.embed_tokens.weight"},
    {"unembedding.weight", "lm_head.weight"},
    {"norm.scale", "model.norm.weight"},
};

template <size_t n>
std::string_view translated(const std::pair<std::string_view, std::string_view> (&table)[n], std::string_view name) {
  for (const auto& [from, to] : table) {
    if (name == from) return to;
  }
  return {};
}

// "12" and ".attn.sinks" of "block.12.attn.sinks"; empty when it is no such name.
std::pair<std::string_view, std::string_view> split(std::string_view name) {
  constexpr std::string_view kPrefix = "block.";
  if (!name.starts_with(kPrefix)) return {};
  const size_t dot = name.find('.', kPrefix.size());
  if (dot == std::string_view::npos) return {};
  const std::string_view number = name.substr(kPrefix.size(), dot - kPrefix.size());
  const bool digits = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  return digits ? std::pair{number, name.substr(dot)} : std::pair<std::string_view, std::string_view>{};
}

// Rows [first, first + rows) of a tensor whose bytes divide evenly among its rows.
SafetensorsEntry rows_of(const SafetensorsEntry& whole, int64_t first, int64_t rows, std::string name) {
  SafetensorsEntry part = whole;
  const uint64_t row_bytes = whole.size_bytes / static_cast<uint64_t>(whole.shape[0]);
  part.name = std::move(name);
  part.shape[0] = rows;
  part.offset += static_cast<uint64_t>(first) * row_bytes;
  part.size_bytes = static_cast<uint64_t>(rows) * row_bytes;
  return part;
}

}  // namespace

bool has_gpt_oss_names(const std::vector<SafetensorsEntry*>& entries) {
  return std::any_of(entries.begin(), entries.end(), [](const SafetensorsEntry* e) { return e->name == "block.0.attn.qkv.weight"; });
}

Status rename_gpt_oss(const std::vector<SafetensorsEntry*>& entries, std::vector<CutEntry>& more) {
  // How many rows are q's: the width that `out` reads.
  std::map<std::string, int64_t, std::less<>> q_rows;
  for (const SafetensorsEntry* e : entries) {
    const auto [number, suffix] = split(e->name);
    if (suffix == kOutWeight && e->num_dims == 2) q_rows[std::string(number)] = e->shape[1];
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    SafetensorsEntry& e = *entries[i];
    const auto [number, suffix] = split(e.name);
    if (suffix.empty()) {
      if (const std::string_view to = translated(kOutside, e.name); !to.empty()) e.name = to;
      continue;
    }
    const std::string_view to = translated(kInBlock, suffix);
    if (to.empty()) continue;
    const std::string layer = format("model.layers.{}", number);
    if (suffix != kQkvWeight && suffix != kQkvBias) {
      e.name = layer + std::string(to);
      continue;
    }
    const auto width = q_rows.find(number);
    if (width == q_rows.end()) {
      return error(StatusCode::kCorrupt, "{}: there is no block.{}{} [hidden, heads * head_dim] beside it, which says where q ends", e.name, number, kOutWeight);
    }
    const int64_t q = width->second, rest = e.shape[0] - q;
    if (e.num_dims != (suffix == kQkvWeight ? 2 : 1) || q <= 0 || rest <= 0 || rest % 2 != 0 || e.size_bytes % static_cast<uint64_t>(e.shape[0]) != 0) {
      return error(StatusCode::kCorrupt, "{}: {} rows, expected {} of q (as block.{}{} has columns) and as many of k as of v", e.name, e.shape[0], q, number,
                   kOutWeight);
    }
    const std::string end = suffix == kQkvWeight ? ".weight" : ".bias";
    const SafetensorsEntry whole = e;
    more.push_back({i, rows_of(whole, q, rest / 2, layer + ".self_attn.k_proj" + end)});
    more.push_back({i, rows_of(whole, q + rest / 2, rest / 2, layer + ".self_attn.v_proj" + end)});
    e = rows_of(whole, 0, q, layer + std::string(to));
  }
  return ok_status();
}

}  // namespace pointsman
