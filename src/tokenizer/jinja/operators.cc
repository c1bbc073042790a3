// SPDX-License-Identifier: Apache-2.0
//
// Operators, attributes and items.
#include <algorithm>
#include <cmath>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {
namespace {

const char* op_text(Op op) {
  switch (op) {
    case Op::kAdd: return "+";
    case Op::kSub: return "-";
    case Op::kMul: return "*";
    case Op::kDiv: return "/";
    case Op::kFloorDiv: return "//";
    case Op::kMod: return "%";
    case Op::kPow: return "**";
    case Op::kLt: return "<";
    case Op::kLe: return "<=";
    case Op::kGt: return ">";
    case Op::kGe: return ">=";
    default: return "?";
  }
}

int64_t floor_div(int64_t a, int64_t b) {
  return a / b - ((a % b != 0 && (a % b < 0) != (b < 0)) ? 1 : 0);
}

double float_mod(double a, double b) {
  const double r = std::fmod(a, b);
  if (r == 0) return std::copysign(0.0, b);
  return (r < 0) != (b < 0) ? r + b : r;
}

}  // namespace

Value Interpreter::add(const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    if (a.is_markup() == b.is_markup()) return string(std::string(a.text()) + std::string(b.text()), a.is_markup());
    // Markup takes plain text in only escaped.
    return a.is_markup() ? string(std::string(a.text()) + escape_html(b.text()), true)
                         : string(escape_html(a.text()) + std::string(b.text()), true);
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    std::vector<Value> items = a.ref().items;
    items.insert(items.end(), b.ref().items.begin(), b.ref().items.end());
    if (!step(items.size() / 16)) return {};
    return heap_.list(std::move(items), a.kind());
  }
  if (a.is_string()) return fail("can only concatenate str (not \"{}\") to str", type_name(b));
  return fail("unsupported operand type(s) for +: '{}' and '{}'", type_name(a), type_name(b));
}

Value Interpreter::repeat(const Value& sequence, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (sequence.is_string()) {
    const auto size = static_cast<uint64_t>(sequence.text().size());
    if (size == 0) return string("");
    if (static_cast<uint64_t>(times) > kMaxTextBytes / size) return check_size(kMaxTextBytes + 1), Value();
    std::string out;
    for (int64_t i = 0; i < times; ++i) out += sequence.text();
    return string(std::move(out), sequence.is_markup());
  }
  const std::vector<Value>& items = sequence.ref().items;
  std::vector<Value> out;
  if (items.empty()) times = 0;
  if (times > 0 && static_cast<uint64_t>(times) > limits_.max_steps) return step(limits_.max_steps + 1), Value();
  for (int64_t i = 0; i < times; ++i) {
    if (!step(items.size())) return {};
    heap_.charge(items.size() * sizeof(Value));
    out.insert(out.end(), items.begin(), items.end());
  }
  return heap_.list(std::move(out), sequence.kind());
}

Value Interpreter::power(const Value& a, const Value& b) {
  if (a.is(Kind::kFloat) || b.is(Kind::kFloat) || b.as_int() < 0) {
    if (a.as_float() == 0 && b.as_float() < 0) return fail("zero to a negative power");
    const double r = std::pow(a.as_float(), b.as_float());
    if (std::isnan(r) && !std::isnan(a.as_float()) && !std::isnan(b.as_float()))
      return fail("complex numbers are not supported");
    return Value::real(r);
  }
  int64_t result = 1;
  int64_t base = a.as_int();
  bool overflow = false;
  for (int64_t exponent = b.as_int(); exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) overflow = overflow || __builtin_mul_overflow(result, base, &result);
    if (exponent > 1) overflow = __builtin_mul_overflow(base, base, &base) || overflow;
    if (overflow) return fail("integer overflow");
  }
  return Value::integer(result);
}

Value Interpreter::binary(Op op, const Value& a, const Value& b) {
  if (failed()) return {};
  if (a.is_undefined()) return undefined_error(a);
  if (b.is_undefined()) return undefined_error(b);
  if (op == Op::kMod && a.is_string()) return format_text(a.text(), b);
  if (op == Op::kMul && (a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(a, b.as_int());
  if (op == Op::kMul && (b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(b, a.as_int());
  if (!a.is_number() || !b.is_number()) {
    if (op == Op::kAdd) return add(a, b);
    return fail("unsupported operand type(s) for {}: '{}' and '{}'", op_text(op), type_name(a), type_name(b));
  }
  if (op == Op::kPow) return power(a, b);
  const bool floats = a.is(Kind::kFloat) || b.is(Kind::kFloat);
  if (op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod) {
    if (b.as_float() == 0) return fail("division by zero");
    if (op == Op::kDiv) return Value::real(a.as_float() / b.as_float());
    if (floats) {
      if (op == Op::kMod) return Value::real(float_mod(a.as_float(), b.as_float()));
      return Value::real(std::floor(a.as_float() / b.as_float()));
    }
    if (b.as_int() == -1) {
      if (op == Op::kMod) return Value::integer(0);
      if (a.as_int() == INT64_MIN) return fail("integer overflow");
      return Value::integer(-a.as_int());
    }
    const int64_t q = floor_div(a.as_int(), b.as_int());
    return Value::integer(op == Op::kFloorDiv ? q : a.as_int() - q * b.as_int());
  }
  if (floats) {
    const double x = a.as_float();
    const double y = b.as_float();
    return Value::real(op == Op::kAdd ? x + y : op == Op::kSub ? x - y : x * y);
  }
  int64_t r = 0;
  const bool overflow = op == Op::kAdd   ? __builtin_add_overflow(a.as_int(), b.as_int(), &r)
                        : op == Op::kSub ? __builtin_sub_overflow(a.as_int(), b.as_int(), &r)
                                         : __builtin_mul_overflow(a.as_int(), b.as_int(), &r);
  if (overflow) return fail("integer overflow");
  return Value::integer(r);
}

bool Interpreter::same(const Value& a, const Value& b) {
  const uint64_t left = failed() ? 0 : limits_.max_steps - steps_;
  uint64_t budget = left;
  const bool yes = equal(a, b, budget);
  // An exhausted budget fails here.
  step(left - budget + (budget == 0 ? 1 : 0));
  return yes;
}

bool Interpreter::before(const Value& a, const Value& b, bool& ok) {
  const uint64_t left = failed() ? 0 : limits_.max_steps - steps_;
  uint64_t budget = left;
  const bool yes = less(a, b, ok, budget);
  step(left - budget + (budget == 0 ? 1 : 0));
  return yes;
}

bool Interpreter::compare(Op op, const Value& a, const Value& b) {
  switch (op) {
    case Op::kEq: return same(a, b);
    case Op::kNe: return !same(a, b);
    case Op::kIn: return contains(b, a);
    case Op::kNotIn: return !contains(b, a);
    default: break;
  }
  if (a.is_undefined()) return undefined_error(a), false;
  if (b.is_undefined()) return undefined_error(b), false;
  bool ok = true;
  const bool a_less = before(a, b, ok);
  const bool b_less = ok && before(b, a, ok);
  if (!ok) {
    fail("'{}' not supported between instances of '{}' and '{}'", op_text(op), type_name(a), type_name(b));
    return false;
  }
  const bool equals = !a_less && !b_less && (!a.is_number() || same(a, b));
  return op == Op::kLt ? a_less : op == Op::kGt ? b_less : op == Op::kLe ? a_less || equals : b_less || equals;
}

bool Interpreter::contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) {
        fail("'in <string>' requires string as left operand, not {}", type_name(item));
        return false;
      }
      step(container.text().size() / 256);
      return container.text().find(item.text()) != std::string_view::npos;
    case Kind::kDict:
      if (!is_hashable(item)) return fail("unhashable type: '{}'", type_name(item)), false;
      step(item.is_string() ? 1 : container.ref().members.size());
      return find_member(container.ref(), item) != nullptr;
    default: {
      std::vector<Value> items;
      if (!iterate(container, items) || !step(items.size())) return false;
      return std::any_of(items.begin(), items.end(), [&](const Value& v) { return same(v, item); });
    }
  }
}

// printf-style: what templates use of it.
Value Interpreter::format_text(std::string_view pattern, const Value& arguments) {
  const bool many = arguments.is(Kind::kTuple);
  size_t used = 0;
  std::string out;
  for (size_t i = 0; i < pattern.size() && check_size(out.size()); ++i) {
    if (pattern[i] != '%') {
      out += pattern[i];
      continue;
    }
    if (++i >= pattern.size()) return fail("incomplete format");
    if (pattern[i] == '%') {
      out += '%';
      continue;
    }
    std::string flags;
    while (i < pattern.size() && std::string_view("-+ 0#").find(pattern[i]) != std::string_view::npos) flags += pattern[i++];
    const auto number = [&] {
      int n = -1;
      while (i < pattern.size() && pattern[i] >= '0' && pattern[i] <= '9' && n < 10000)
        n = std::max(n, 0) * 10 + (pattern[i++] - '0');
      return n;
    };
    const int width = number();
    int precision = -1;
    if (i < pattern.size() && pattern[i] == '.') {
      ++i;
      precision = std::max(number(), 0);
    }
    if (i >= pattern.size()) return fail("incomplete format");
    if (width > 1000 || precision > 100) return fail("format width or precision is too large");
    const char type = pattern[i];
    if (many ? used >= arguments.ref().items.size() : used > 0) return fail("not enough arguments for format string");
    const Value& v = many ? arguments.ref().items[used] : arguments;
    ++used;
    std::string text;
    if (type == 's' || type == 'r') {
      if (type == 's') {
        append_str(text, v);
      } else {
        append_repr(text, v);
      }
      if (precision >= 0) text.resize(byte_offset(text, static_cast<size_t>(precision)));
    } else if (std::string_view("dixXfFeEgG").find(type) != std::string_view::npos) {
      if (!v.is_number()) return fail("%{} format: a number is required, not {}", type, type_name(v));
      char buffer[512];
      std::string c_format = "%" + (flags.find('+') != std::string::npos ? std::string("+") : std::string());
      if (std::string_view("dixX").find(type) != std::string_view::npos) {
        if (v.is(Kind::kFloat) && !(std::abs(v.as_float()) < 9e18)) return fail("the number is too large for %{}", type);
        const long long n = v.is(Kind::kFloat) ? static_cast<long long>(v.as_float()) : static_cast<long long>(v.as_int());
        c_format += std::string("ll") + (type == 'i' ? 'd' : type);
        std::snprintf(buffer, sizeof buffer, c_format.c_str(), n);
      } else {
        c_format += std::string(".*") + type;
        std::snprintf(buffer, sizeof buffer, c_format.c_str(), precision < 0 ? 6 : precision, v.as_float());
      }
      text = buffer;
    } else {
      return fail_with(StatusCode::kUnsupported, format("format character '{}' is not supported", type));
    }
    const size_t length = utf8_length(text);
    if (width > 0 && length < static_cast<size_t>(width)) {
      const size_t pad = static_cast<size_t>(width) - length;
      if (flags.find('-') != std::string::npos) {
        text.append(pad, ' ');
      } else if (flags.find('0') != std::string::npos && type != 's' && type != 'r') {
        text.insert(text[0] == '-' || text[0] == '+' ? 1 : 0, pad, '0');
      } else {
        text.insert(0, pad, ' ');
      }
    }
    out += text;
  }
  if (many && used < arguments.ref().items.size()) return fail("not all arguments converted during string formatting");
  if (!many && used == 0 && !arguments.is(Kind::kDict) && !arguments.is(Kind::kList))
    return fail("not all arguments converted during string formatting");
  return string(std::move(out));
}

Value Interpreter::get_attribute(const Value& object, std::string_view name) {
  if (failed()) return {};
  static constexpr std::string_view kDictMethods[] = {"get", "keys", "values", "items", "copy"};
  static constexpr std::string_view kDictChanges[] = {"clear", "pop", "popitem", "setdefault", "update"};
  static constexpr std::string_view kListChanges[] = {"append", "clear",  "extend",  "insert",
                                                      "pop",    "remove", "reverse", "sort"};
  static constexpr std::string_view kTextMethods[] = {
      "capitalize", "casefold",   "center",  "count",     "encode",     "endswith",  "find",         "format",
      "index",      "isalnum",    "isalpha", "isdecimal", "isdigit",    "islower",   "isnumeric",    "isspace",
      "isupper",    "join",       "ljust",   "lower",     "lstrip",     "partition", "removeprefix", "removesuffix",
      "replace",    "rfind",      "rindex",  "rjust",     "rpartition", "rsplit",    "rstrip",       "split",
      "splitlines", "startswith", "strip",   "swapcase",  "title",      "upper",     "zfill"};
  const auto is_one_of = [&](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  const auto method = [&] {
    Value v = heap_.object(Kind::kMethod);
    v.ref().self = object;
    v.ref().name = std::string(name);
    return v;
  };
  const auto unsafe = [&] {
    return heap_.undefined(format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  };
  switch (object.kind()) {
    case Kind::kUndefined: return undefined_error(object);
    case Kind::kDict:
      if (is_one_of(kDictMethods)) return method();
      if (is_one_of(kDictChanges)) return unsafe();
      if (const Value* v = find_member(object.ref(), name); v != nullptr) return *v;
      break;
    case Kind::kNamespace:
      if (const Value* v = find_member(object.ref(), name); v != nullptr) return *v;
      break;
    case Kind::kString:
      if (is_one_of(kTextMethods)) return method();
      break;
    case Kind::kList:
      if (is_one_of(kListChanges)) return unsafe();
      [[fallthrough]];
    case Kind::kTuple:
      if (object.is(Kind::kTuple) && object.ref().name == "group") {
        if (name == "grouper") return object.ref().items[0];
        if (name == "list") return object.ref().items[1];
      }
      if (name == "index" || name == "count" || (name == "copy" && object.is(Kind::kList))) return method();
      break;
    case Kind::kLoop: {
      Value v = loop_attribute(object.ref(), name);
      if (!v.is_undefined() || failed() || !v.text().empty()) return v;
      if (name == "cycle" || name == "changed") return method();
      break;
    }
    case Kind::kMacro:
      if (name == "name") return string(object.ref().macro->name);
      break;
    default: break;
  }
  return heap_.undefined(format("{} has no attribute '{}'", object_name(object), name));
}

Value Interpreter::loop_attribute(const Object& loop, std::string_view name) {
  const auto n = static_cast<int64_t>(loop.items.size());
  const auto i = static_cast<int64_t>(loop.cursor);
  if (name == "index") return Value::integer(i + 1);
  if (name == "index0") return Value::integer(i);
  if (name == "revindex") return Value::integer(n - i);
  if (name == "revindex0") return Value::integer(n - i - 1);
  if (name == "first") return Value::boolean(i == 0);
  if (name == "last") return Value::boolean(i + 1 == n);
  if (name == "length") return Value::integer(n);
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem") return i > 0 && i <= n ? loop.items[loop.cursor - 1] : heap_.undefined("there is no previous item");
  if (name == "nextitem") return i + 1 < n ? loop.items[loop.cursor + 1] : heap_.undefined("there is no next item");
  return {};
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  if (failed()) return {};
  switch (object.kind()) {
    case Kind::kUndefined: return undefined_error(object);
    case Kind::kDict:
      if (!step(key.is_string() ? 1 : object.ref().members.size() / 8)) return {};
      if (!is_hashable(key)) break;
      if (const Value* v = find_member(object.ref(), key); v != nullptr) return *v;
      break;
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
      if (key.is_integral()) {
        const int64_t n = object.is_string() ? static_cast<int64_t>(utf8_length(object.text()))
                                             : static_cast<int64_t>(object.ref().items.size());
        const int64_t i = key.as_int() < 0 ? key.as_int() + n : key.as_int();
        if (i < 0 || i >= n) return heap_.undefined(format("{} has no element {}", object_name(object), key.as_int()));
        if (!object.is_string()) return object.ref().items[static_cast<size_t>(i)];
        if (!step(static_cast<uint64_t>(n) / 64)) return {};
        const size_t begin = byte_offset(object.text(), static_cast<size_t>(i));
        const std::string_view tail = object.text().substr(begin);
        return string(std::string(tail.substr(0, byte_offset(tail, 1))));
      }
      break;
    default: break;
  }
  if (key.is_string()) return get_attribute(object, key.text());
  std::string shown;
  append_repr(shown, key);
  return heap_.undefined(format("{} has no element {}", object_name(object), shown.substr(0, 200)));
}

}  // namespace pointsman::jinja
