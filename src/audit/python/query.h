// SPDX-License-Identifier: Apache-2.0
//
// Questions that rules ask a Python module. All are pure, bounded and thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "audit/python/ast.h"
#include "base/function_ref.h"

namespace pointsman::audit::python {

using Predicate = FunctionRef<bool(const Expr&)>;

// "self.gate.weight" of a chain of attributes over a name; empty when a call or subscript is in it.
std::string dotted(const Expr& e);

// The full name is `name` or lies below it: is_under(e, "torch.cuda") holds for torch.cuda.Stream, not for torch.cudart.
bool is_under(std::string_view full_name, std::string_view module);
inline bool is_under(const Expr& e, std::string_view module) { return is_under(e.full_name, module); }

// --- Where something stands ---

const Stmt* enclosing_function(const Stmt* s);
inline const Stmt* enclosing_function(const Expr& e) { return enclosing_function(e.stmt); }
const Stmt* enclosing_class(const Stmt* s);
inline const Stmt* enclosing_class(const Expr& e) { return enclosing_class(e.stmt); }
// The innermost for or while of the same function, or null. The iterable of a for is outside of it.
const Stmt* enclosing_loop(const Expr& e);
bool in_loop(const Expr& e);  // of a statement or a comprehension
// Managers of the with statements around it in the same function, innermost first: torch.autocast(...), torch.no_grad().
std::vector<const Expr*> with_managers(const Expr& e);
// Is it a target of an assignment, for or with (rather than a use)?
bool is_target(const Expr& e);

// --- Under which conditions it runs ---

struct Guard {
  const Expr* condition;  // of if, elif, while, a conditional expression, or the left side of and/or
  bool negated;           // it runs when the condition does not hold
};
// Innermost first, up to the function. An `if c: return` before it, in the same block, counts as not c.
std::vector<Guard> guards(const Expr& e);
std::vector<Guard> guards(const Stmt& s);
// It runs only where a test found CUDA, or found no NPU: if device == "cuda", if torch.cuda.is_available(), else of is_npu, ...
bool runs_only_on_cuda(const Expr& e);
bool runs_only_on_cuda(const Stmt& s);
// It runs only where a test found an NPU.
bool runs_only_on_npu(const Expr& e);
// An import (or anything else) whose failure is caught: try with except ImportError, ModuleNotFoundError, Exception or nothing.
bool failure_is_caught(const Stmt& s);

// --- Values ---

// Bindings that may give `e` (a name or dotted chain) its value where it stands, nearest first. For self.x, those of the class.
std::vector<const Definition*> definitions_of(const Expr& e);
// A string, number or True/False that is known: literal, or a name with exactly one definition, which is one.
std::optional<std::string_view> constant_string(const Expr& e);
std::optional<double> constant_number(const Expr& e);
std::optional<bool> constant_bool(const Expr& e);

// The first expression in the tree of `e` (itself included, source order) for which `predicate` holds, or null.
const Expr* find_within(const Expr& e, Predicate predicate);
// The same over every expression of a statement, its body included when `with_body`.
const Expr* find_within(const Stmt& s, Predicate predicate, bool with_body = true);

// The nearest expression whose value reaches `e` and for which `predicate` holds: `e` itself, its operands, receivers and
// arguments, and through names whatever was assigned to them in the function (augmented and element assignments included).
// Null when there is none within a bounded number of steps.
const Expr* flows_from(const Expr& e, Predicate predicate);

}  // namespace pointsman::audit::python
