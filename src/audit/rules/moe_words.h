// SPDX-License-Identifier: Apache-2.0
//
// Is this code about experts? What the rules of the MoE rows share: the words by which routed experts are known in public code,
// and where they are looked for.
#pragma once

#include <string>
#include <string_view>

#include "audit/cpp/file.h"
#include "audit/python/query.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {

// Stricter than is_moe_name(): no gates and routers, of which there are others.
// "experts", "FusedMoE", "moe_gate", "topk_ids", "routing_map", "tokens_per_expert"; not "expertise", "dispatch".
bool is_expert_name(std::string_view name);
// Names that hold the ids of the chosen experts: topk_ids, topk_idx, selected_experts, expert_indices, routing_map, ...
bool is_expert_ids(std::string_view name);
// How many tokens go where: counts, tokens_per_expert, split_sizes, ...
bool is_count_word(std::string_view name);

// A name, attribute or keyword of the tree of `e` (not of what flows into it) for which `word` holds.
bool mentions(const python::Expr& e, bool (*word)(std::string_view));
// The function around it, its parameters, its class, or `e` itself speak of experts. The path does not count: files of a model
// hold everything.
bool in_moe_code(const python::Expr& e);
bool is_moe_function(const python::Stmt& function);
// The tensor is the ids of chosen experts, in another shape or type: named so, or the result of a top-k in code about experts.
// Attention that chooses keys (topk_indices of an indexer) is not meant. Null when it is not; else where they come from.
const python::Expr* expert_ids_of(const python::Expr& tensor);
// Follows shape and type changes, names and attributes from `tensor` back to an expression for which `predicate` holds.
const python::Expr* same_values(const python::Expr& tensor, python::Predicate predicate);

// Searches of a file against itself stop after this many starting points, so that no file takes quadratic time.
inline constexpr int kMaxSearches = 100;
// The same for searches of one step, through what flows into an expression.
inline constexpr int kMaxFlows = 1000;

// A use of `source`'s value as an index in the same function: x[source], index_select(x, 0, source). Null when there is none.
const python::Expr* index_use(const python::Module& m, const python::Expr& source);
// Is it part of what the function around it returns?
bool is_returned(const python::Module& m, const python::Expr& source);

// C++: the function's name or a parameter speaks of experts.
bool is_moe_function(const cpp::File& file, const cpp::Function& f);
bool mentions(const cpp::File& file, cpp::TokenRange range, bool (*word)(std::string_view));

// Where a kernel or function is named, in the text of its head: the line to point to below templates and decorators.
Span name_span(const Unit& unit, Span head, std::string_view name);

// "tests/...", "test_x.py", "x_test.py", "conftest.py".
bool is_test_path(std::string_view path);

}  // namespace pointsman::audit::rules
