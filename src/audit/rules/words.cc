// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/words.h"

#include <algorithm>

namespace pointsman::audit::rules {

std::string lower(std::string_view s) {
  std::string out(s);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  return out;
}

bool contains(std::string_view s, std::string_view part) { return s.find(part) != s.npos; }

bool contains_any(std::string_view name, std::initializer_list<std::string_view> parts) {
  const std::string s = lower(name);
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view p) { return contains(s, p); });
}

bool is_one_of(std::string_view s, std::initializer_list<std::string_view> list) { return std::find(list.begin(), list.end(), s) != list.end(); }

bool is_moe_name(std::string_view name) {
  const std::string s = lower(name);
  if (contains_any(s, {"expert", "router", "routing", "moe"})) return true;
  // "gate", but not "aggregate", "propagate", "navigate", "delegate", "investigate"; and not the gate of an MLP or an LSTM.
  const size_t at = s.find("gat");
  if (at == std::string::npos || contains_any(s, {"gate_proj", "gate_up", "forget", "lstm", "gru"})) return false;
  const bool word = at == 0 || s[at - 1] == '_' || s[at - 1] == '.';
  return word && (s.compare(at, 4, "gate") == 0 || s.compare(at, 6, "gating") == 0);
}

bool has_word(std::string_view name, std::initializer_list<std::string_view> list) {
  const std::string s = lower(name);
  for (size_t begin = 0; begin <= s.size();) {
    const size_t end = std::min(s.find('_', begin), s.size());
    if (is_one_of(std::string_view(s).substr(begin, end - begin), list)) return true;
    begin = end + 1;
  }
  return false;
}

bool is_top_k_name(std::string_view name) {
  const std::string s = lower(name.substr(name.rfind('.') == name.npos ? 0 : name.rfind('.') + 1));
  return is_one_of(s, {"top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "moe_k", "n_activated_experts", "experts_per_token",
                       "num_selected_experts", "experts_top_k", "moe_router_topk", "num_activated_experts", "n_expert_used"});
}

bool is_sampling_name(std::string_view name) {
  return contains_any(name, {"vocab", "next_token", "beam", "sampl", "temperature", "top_p", "topp", "lm_head", "generat", "decode", "accuracy", "hypothes"});
}

size_t find_name(std::string_view text, std::string_view name) {
  const auto is_part = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if (at > 0 && (is_part(text[at - 1]) || text[at - 1] == '.')) continue;
    if (end < text.size() && is_part(text[end])) continue;
    return at;
  }
  return text.npos;
}

bool is_cuda_device(std::string_view s) {
  if (s == "cuda") return true;
  return s.starts_with("cuda:") && s.size() > 5 && std::all_of(s.begin() + 5, s.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace pointsman::audit::rules
