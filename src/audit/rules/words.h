// SPDX-License-Identifier: Apache-2.0
//
// Words in names, for rules that go by what a programmer called a thing.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

namespace pointsman::audit::rules {

std::string lower(std::string_view s);
bool contains(std::string_view s, std::string_view part);
// Does `name`, in lower case, contain one of the parts?
bool contains_any(std::string_view name, std::initializer_list<std::string_view> parts);
bool is_one_of(std::string_view s, std::initializer_list<std::string_view> list);
// Is one of the words that '_' separates in `name`, in lower case, in the list? "topk_ids" has the word "ids", "grids" has not.
bool has_word(std::string_view name, std::initializer_list<std::string_view> list);

// "MoEGate", "router_logits", "expert_ids": something of a mixture of experts.
bool is_moe_name(std::string_view name);
// "top_k", "num_experts_per_tok", "moe_topk": how many experts a token gets.
bool is_top_k_name(std::string_view name);
// "vocab", "next_token", "beam": choosing tokens, not experts.
bool is_sampling_name(std::string_view name);

// Offset of the first `name` in the text that is not part of a longer dotted name, npos without one.
size_t find_name(std::string_view text, std::string_view name);

// "cuda", "cuda:1".
bool is_cuda_device(std::string_view s);

}  // namespace pointsman::audit::rules
