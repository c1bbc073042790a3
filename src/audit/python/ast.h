// SPDX-License-Identifier: Apache-2.0
//
// A light syntax tree of Python, with the names resolved through imports and the definitions of every name: what rules query.
//
// parse() never fails: a broken statement is kBad, with whatever expressions could be read from it; nothing is executed or
// imported. Depth, tokens and nodes are bounded. A Module is immutable: any number of threads may read it.
//
// Names. `import torch.nn.functional as F` makes F.softmax the full name "torch.nn.functional.softmax"; so do `from x import y`,
// `F = torch.nn.functional`, and imports inside try. `from . import ops` gives ".ops". A customary name that nothing in the file
// binds (torch, torch_npu, dist, F, nn, np, os - fragments of documents have no imports) resolves as kAssumed: report at most
// "likely". A name that is rebound to something else, or a parameter, resolves to nothing.
#pragma once

#include <memory>
#include <memory_resource>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "audit/source.h"

namespace pointsman::audit::python {

struct Stmt;
struct Scope;

enum class ExprKind : uint8_t {
  kName,           // text
  kAttribute,      // children[0].text
  kCall,           // children[0](children[1], ...); keyword arguments are kKeyword children at their places
  kKeyword,        // text=children[0]; text is "**" for **children[0]
  kSubscript,      // children[0][children[1]]
  kSlice,          // the given ones of lower:upper:step
  kString,         // text: decoded value; implicit concatenation is joined; fields of f-strings read "{}" and are children
  kNumber,         // text: as written
  kConstant,       // text: True, False, None, ...
  kUnary,          // text: operator (- + ~ not await * yield); children[0]
  kBinary,         // text: operator
  kCompare,        // text: first operator ("==", "is not", "not in", ...); children: operands
  kBool,           // text: "and" or "or"; children: both sides
  kConditional,    // children: value, condition, otherwise
  kLambda,         // children[0]: body
  kTuple, kList, kSet,
  kDict,           // children: key, value, key, value; of **m both are kUnary "**"
  kComprehension,  // children[0] (, [1] for dicts): element; the rest: targets, iterables, conditions; text: ( [ {
  kNamed,          // children[0] := children[1]
  kBad,
};

enum class Resolution : uint8_t { kNone, kAssumed, kImported };

struct Expr {
  ExprKind kind = ExprKind::kBad;
  Resolution resolution = Resolution::kNone;
  bool is_bytes = false;
  bool is_formatted = false;  // f-string
  uint16_t depth = 0;         // height of the tree below
  Span span;
  std::string_view text;
  std::span<const Expr* const> children;
  std::string_view full_name;     // of a name or attribute that leads to an import, or of a call's callee; empty otherwise
  const Expr* parent = nullptr;   // null at the top of a statement
  const Stmt* stmt = nullptr;

  bool is(ExprKind k) const { return kind == k; }
  // Calls.
  const Expr* callee() const { return children.empty() ? nullptr : children[0]; }
  // The index-th positional argument (from 0), or null. None after *args, whose length is unknown.
  const Expr* positional(size_t index) const;
  // The value of a keyword argument, or null.
  const Expr* keyword(std::string_view name) const;
  // Keyword `name`, else positional `index`.
  const Expr* argument(size_t index, std::string_view name) const;
  bool has_unpacking() const;  // *args or **kwargs among the arguments
  // The last name of the callee: "cuda" of model.cuda(), "softmax" of F.softmax(x), also of a name that an import bound to it; of a
  // name or attribute, its own.
  std::string_view last_name() const;
};

enum class StmtKind : uint8_t {
  kExpr,       // exprs[0]; also Python 2's print and exec
  kAssign,     // targets; value. Chained ones are several targets
  kAugAssign,  // targets[0] text= value; text: the operator with '='
  kAnnAssign,  // targets[0]; exprs[0]: annotation; value or null
  kReturn, kRaise, kAssert, kDelete,  // exprs
  kImport,     // imports
  kImportFrom, // name: module, with leading dots; imports
  kFor, kWhile, kIf, kElif, kElse,    // exprs: condition or iterable; targets of for; body
  kTry, kExcept, kFinally,            // except: exprs: types; name
  kWith,       // exprs: managers; targets
  kFunction, kClass,                  // name; exprs: defaults and annotations, or bases (with kKeyword); decorators; body
  kMatch, kCase,
  kSimple,     // pass, break, continue, global, nonlocal
  kBad,        // exprs: what could be read
};

struct ImportedName {
  std::string_view name;   // "torch.nn", "softmax", or "*"
  std::string_view alias;  // the name that is bound
  Span span;
};

struct Parameter {
  std::string_view name;   // "*args" and "**kwargs" keep their stars
  Span span;
  const Expr* annotation = nullptr;
  const Expr* default_value = nullptr;
};

struct Stmt {
  StmtKind kind = StmtKind::kBad;
  bool is_async = false;
  Span span;    // with its body
  Span header;  // the line that starts it
  std::string_view name, text;
  const Stmt* parent = nullptr;           // the compound statement around it; null at the top
  const Stmt* previous_clause = nullptr;  // of elif, else, except, finally: the clause before
  const Stmt* next_clause = nullptr;      // of what they follow: the clause after
  const Stmt* last_exit = nullptr;        // the nearest `if` before it in its block whose body returns, raises, breaks or continues
  Scope* scope = nullptr;                 // where its names live; of a def or class: the scope around it
  Scope* inner = nullptr;                 // of a def or class: its own
  std::span<const Stmt* const> body;
  std::span<const Expr* const> exprs, targets, decorators;
  const Expr* value = nullptr;
  std::span<const ImportedName> imports;
  std::span<const Parameter> parameters;
};

enum class DefinitionKind : uint8_t { kAssign, kAugment, kFor, kWith, kParameter, kImport, kExcept, kNamed, kFunction, kClass };

// One binding of a name ("x") or of an attribute ("self.top_k").
struct Definition {
  DefinitionKind kind = DefinitionKind::kAssign;
  int tuple_index = -1;          // a, b = value: which one; -1: the whole value
  std::string_view name;
  const Expr* target = nullptr;  // null for parameters, imports, defs
  const Expr* value = nullptr;   // what is bound; for: the iterable; with: the manager; parameter: the default; may be null
  const Stmt* stmt = nullptr;
  uint32_t position = 0;         // offset from which it holds
};

struct Scope {
  Scope* parent = nullptr;
  const Stmt* owner = nullptr;  // def or class; null: the module
  std::vector<Definition> definitions;  // in source order
  std::unordered_map<std::string_view, std::vector<uint32_t>> by_name;
  struct Alias {
    std::string_view full_name;
    bool is_import = false;
    bool is_spoiled = false;  // also bound to something else
  };
  std::unordered_map<std::string_view, Alias> aliases;
  std::vector<std::string_view> star_imports;
};

class Module {
 public:
  const Unit& unit() const { return *unit_; }
  std::span<const Stmt* const> body() const { return body_; }
  bool truncated() const { return truncated_; }
  // Everything, in source order (calls by the start of the callee).
  const std::vector<const Stmt*>& statements() const { return statements_; }
  const std::vector<const Expr*>& calls() const { return calls_; }
  // Names and attributes that are not themselves the inside of a longer attribute: in F.softmax(x), F.softmax and x.
  const std::vector<const Expr*>& references() const { return references_; }
  const std::vector<const Expr*>& strings() const { return strings_; }  // without docstrings
  const std::vector<const Expr*>& compares() const { return compares_; }
  const std::vector<const Expr*>& subscripts() const { return subscripts_; }
  const std::vector<const Stmt*>& functions() const { return functions_; }
  const std::vector<const Stmt*>& classes() const { return classes_; }
  const std::vector<const Stmt*>& imports() const { return imports_; }
  const std::vector<Span>& comments() const { return comments_; }
  const Scope& scope() const { return *scopes_.front(); }
  // Does any import of the file bring in `module` or something below it ("torch.distributed")?
  bool imports_module(std::string_view module) const;

  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

 private:
  friend std::unique_ptr<Module> parse(const Unit& unit);
  friend class Parser;
  friend class Resolver;
  Module() = default;

  const Unit* unit_ = nullptr;
  std::pmr::monotonic_buffer_resource arena_;
  std::span<const Stmt* const> body_;
  std::vector<const Stmt*> statements_, functions_, classes_, imports_;
  std::vector<const Expr*> calls_, references_, strings_, compares_, subscripts_;
  std::vector<Expr*> all_;  // children before parents
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Span> comments_;
  bool truncated_ = false;
};

// `unit` must outlive the module.
std::unique_ptr<Module> parse(const Unit& unit);

}  // namespace pointsman::audit::python
