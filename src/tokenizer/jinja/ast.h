// SPDX-License-Identifier: Apache-2.0
//
// A compiled template: statements and expressions. Chains (a + b + c, a.b[0].c(), x|f|g) are one node each, so that the depth
// of the tree is the depth of the writing and never its length.
//
// Immutable after parsing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pointsman::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Argument {
  std::string name;  // empty: positional
  ExprPtr value;
};

// What follows a primary: .name  [key]  [a:b:c]  (args)  |filter(args)  is test(args)
struct Suffix {
  enum class Kind { kAttribute, kItem, kSlice, kCall, kFilter, kTest };
  Kind kind;
  int line = 0;
  std::string name;      // attribute, filter, test
  bool negated = false;  // is not
  ExprPtr key;           // item
  ExprPtr slice[3];      // may be null
  std::vector<Argument> arguments;
};

enum class Op { kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kPow, kConcat, kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn, kAnd, kOr };

struct Expr {
  enum class Kind {
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kName,
    kList,
    kTuple,
    kDict,  // operands: key, value, key, value, ...
    kNot,
    kNegate,
    kPlus,
    kChain,    // operands[0] ops[0] operands[1] ops[1] ..., left to right
    kCompare,  // a < b < c
    kAnd,
    kOr,
    kConditional,  // operands: value, condition, other value (may be null)
    kPostfix,      // operands[0], then suffixes
  };
  Kind kind;
  int line = 0;
  int64_t integer = 0;  // also bool; kName: symbol
  double real = 0;
  std::string text;  // string, name
  std::vector<ExprPtr> operands;
  std::vector<Op> ops;
  std::vector<Suffix> suffixes;
};

// Where a value goes: a name, ns.attribute, or a tuple of targets.
struct Target {
  int line = 0;
  int symbol = -1;
  std::string name;
  std::string attribute;  // of the namespace `symbol`
  std::vector<Target> parts;
};

struct Stmt;
using Body = std::vector<std::unique_ptr<Stmt>>;

struct Macro {
  struct Parameter {
    int symbol;
    std::string name;
    ExprPtr otherwise;  // may be null
  };
  std::string name;
  std::vector<Parameter> parameters;
  Body body;
  // Symbols of names that the body uses and that gather surplus arguments; -1: not used.
  int varargs_symbol = -1;
  int kwargs_symbol = -1;
};

struct Stmt {
  enum class Kind {
    kText,
    kPrint,
    kIf,  // conditions and bodies; one body more: else
    kFor,
    kSet,       // target = expr
    kSetBlock,  // target = body, through filters
    kMacro,
    kWith,
    kFilter,      // body through filters
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  Kind kind;
  int line = 0;
  std::string text;
  Target target;                // for, set
  std::vector<Target> targets;  // with
  std::vector<ExprPtr> exprs;   // print, set: value; if: conditions; for: iterable, filter (may be null); with: values
  std::vector<Body> bodies;     // for: body, else
  std::vector<Suffix> filters;
  std::unique_ptr<Macro> macro;
  int symbol = -1;  // macro
};

struct Template {
  Body body;
  std::vector<std::string> symbols;  // every name that occurs
  int loop_symbol = -1;
};

}  // namespace pointsman::jinja
