// SPDX-License-Identifier: Apache-2.0
//
// Tests ("x is odd"), as jinja2/tests.py defines them.
#include <algorithm>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/python_text.h"

namespace pointsman::jinja {
namespace {

struct Comparison {
  std::string_view name;
  Op op;
};
constexpr Comparison kComparisons[] = {
    {"==", Op::kEq},          {"eq", Op::kEq},       {"equalto", Op::kEq}, {"!=", Op::kNe}, {"ne", Op::kNe}, {"<", Op::kLt},
    {"lt", Op::kLt},          {"lessthan", Op::kLt}, {"<=", Op::kLe},      {"le", Op::kLe}, {">", Op::kGt},  {"gt", Op::kGt},
    {"greaterthan", Op::kGt}, {">=", Op::kGe},       {"ge", Op::kGe},      {"in", Op::kIn},
};

bool is_identical(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is_integral()) return a.as_int() == b.as_int();
  if (a.is(Kind::kNone)) return true;
  return a.address() == b.address() && !a.is(Kind::kFloat);
}

}  // namespace

bool Interpreter::apply_test(std::string_view name, const Value& v, const Arguments& arguments) {
  if (!step()) return false;
  const auto takes = [&](size_t n) {
    if (arguments.named.empty() && arguments.positional.size() == n) return true;
    fail("test '{}' takes {} argument(s)", name, n);
    return false;
  };
  // a % b == remainder
  const auto leaves = [&](const Value& a, const Value& b, int64_t remainder) {
    if (a.is_string()) return fail("test '{}' requires numbers, not str", name), false;
    const Value rest = binary(Op::kMod, a, b);
    return !failed() && same(rest, Value::integer(remainder));
  };
  for (const Comparison& c : kComparisons) {
    if (c.name == name) return takes(1) && compare(c.op, v, arguments.positional[0]);
  }
  if (name == "sameas") return takes(1) && is_identical(v, arguments.positional[0]);
  if (name == "divisibleby") return takes(1) && leaves(v, arguments.positional[0], 0);
  if (!takes(0)) return false;
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is(Kind::kNone);
  if (name == "string") return v.is_string();
  if (name == "number") return v.is_number();
  if (name == "integer") return v.is(Kind::kInt);
  if (name == "float") return v.is(Kind::kFloat);
  if (name == "boolean") return v.is(Kind::kBool);
  if (name == "true") return v.is(Kind::kBool) && v.as_int() != 0;
  if (name == "false") return v.is(Kind::kBool) && v.as_int() == 0;
  if (name == "mapping") return v.is(Kind::kDict);
  // What has a length and items; Jinja's undefined values have both.
  if (name == "sequence") return v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is_undefined();
  if (name == "iterable") {
    return v.is_string() || v.is_sequence() || v.is(Kind::kDict) || v.is(Kind::kGenerator) || v.is(Kind::kView) ||
           v.is(Kind::kLoop) || v.is_undefined();
  }
  if (name == "callable") {
    return v.is(Kind::kMacro) || v.is(Kind::kMethod) || v.is(Kind::kBuiltin) || v.is(Kind::kLoop) || v.is_undefined();
  }
  if (name == "odd") return leaves(v, Value::integer(2), 1);
  if (name == "even") return leaves(v, Value::integer(2), 0);
  if (name == "lower") return is_lower_text(to_str(v));
  if (name == "upper") return is_upper_text(to_str(v));
  if (name == "escaped") return v.is_markup();
  fail_with(StatusCode::kUnsupported, fmt::format("test '{}' is not supported", name));
  return false;
}

}  // namespace pointsman::jinja
