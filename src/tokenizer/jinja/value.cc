// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "tokenizer/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {
namespace {

// Dicts with more members than this keep an index of their string keys.
constexpr size_t kIndexFrom = 16;
// Values looked at to compare two keys.
constexpr uint64_t kKeyBudget = 1000;

void append_json_string(std::string& out, std::string_view text, bool ensure_ascii) {
  if (!ensure_ascii) {
    out += json_quote(text);
    return;
  }
  const std::string quoted = json_quote(text);
  for (size_t i = 0; i < quoted.size();) {
    const uint32_t cp = utf8_decode_valid(quoted, i);
    if (cp < 0x7F) {
      out += static_cast<char>(cp);
    } else if (cp == 0x7F) {
      out += '\x7F';
    } else if (cp < 0x10000) {
      out += format("\\u{:04x}", cp);
    } else {
      out += format("\\u{:04x}\\u{:04x}", 0xD800 + ((cp - 0x10000) >> 10), 0xDC00 + ((cp - 0x10000) & 0x3FF));
    }
  }
}

std::string json_float(double v) {
  if (std::isnan(v)) return "NaN";
  if (std::isinf(v)) return v < 0 ? "-Infinity" : "Infinity";
  return python_repr(v);
}

void new_line(std::string& out, const JsonStyle& style, int depth) {
  out += '\n';
  for (int i = 0; i < depth; ++i) out += style.indent;
}

}  // namespace

const char* type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kGenerator: return "generator";
    case Kind::kView: return "dict_view";
    case Kind::kDict: return "dict";
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kMacro: return "Macro";
    case Kind::kMethod: return "method";
    case Kind::kBuiltin: return "function";
  }
  return "?";
}

std::string object_name(const Value& v) {
  if (v.is(Kind::kNone)) return "'None'";
  return format("'{} object'", type_name(v));
}

bool truthy(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return v.as_int() != 0;
    case Kind::kFloat: return v.as_float() != 0;
    case Kind::kString: return !v.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return !v.ref().items.empty();
    case Kind::kDict: return !v.ref().members.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b, uint64_t& budget, int depth) {
  if (depth > kMaxValueDepth || budget == 0) return false;
  --budget;
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_float() == b.as_float();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple: {
      const auto& x = a.ref().items;
      const auto& y = b.ref().items;
      if (x.size() != y.size()) return false;
      for (size_t i = 0; i < x.size(); ++i) {
        if (!equal(x[i], y[i], budget, depth + 1)) return false;
      }
      return true;
    }
    case Kind::kDict: {
      if (a.ref().members.size() != b.ref().members.size()) return false;
      for (const auto& [key, value] : a.ref().members) {
        const Value* other = find_member(b.ref(), key);
        if (other == nullptr || !equal(value, *other, budget, depth + 1)) return false;
      }
      return true;
    }
    default: return a.address() == b.address();
  }
}

bool less(const Value& a, const Value& b, bool& ok, uint64_t& budget, int depth) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() < b.as_int();
    return a.as_float() < b.as_float();
  }
  // UTF-8 keeps the order of code points.
  if (a.is_string() && b.is_string()) return a.text() < b.text();
  if (a.is_sequence() && a.kind() == b.kind() && depth <= kMaxValueDepth) {
    const auto& x = a.ref().items;
    const auto& y = b.ref().items;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(x[i], y[i], budget, depth + 1)) return less(x[i], y[i], ok, budget, depth + 1);
    }
    return x.size() < y.size();
  }
  ok = false;
  return false;
}

void append_str(std::string& out, const Value& v) {
  if (v.is_string()) {
    out += v.text();
  } else if (!v.is_undefined()) {
    append_repr(out, v);
  }
}

void append_repr(std::string& out, const Value& v, int depth) {
  if (out.size() > kMaxTextBytes) return;
  if (depth > kMaxValueDepth) {
    out += "...";
    return;
  }
  const auto items = [&](std::string_view open, std::string_view close) {
    out += open;
    bool first = true;
    for (const Value& item : v.ref().items) {
      if (!first) out += ", ";
      first = false;
      append_repr(out, item, depth + 1);
    }
    out += close;
  };
  const auto members = [&] {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : v.ref().members) {
      if (!first) out += ", ";
      first = false;
      append_repr(out, key, depth + 1);
      out += ": ";
      append_repr(out, value, depth + 1);
    }
    out += '}';
  };
  switch (v.kind()) {
    case Kind::kUndefined: out += "Undefined"; return;
    case Kind::kNone: out += "None"; return;
    case Kind::kBool: out += v.as_int() != 0 ? "True" : "False"; return;
    case Kind::kInt: out += std::to_string(v.as_int()); return;
    case Kind::kFloat: out += python_repr(v.as_float()); return;
    case Kind::kString: out += v.is_markup() ? format("Markup({})", python_repr(v.text())) : python_repr(v.text()); return;
    case Kind::kList:
      // A range shows how it was made.
      if (!v.ref().name.empty()) {
        out += v.ref().name;
      } else {
        items("[", "]");
      }
      return;
    case Kind::kTuple: items("(", v.ref().items.size() == 1 ? ",)" : ")"); return;
    case Kind::kView: items(v.ref().name + "([", "])"); return;
    case Kind::kDict: members(); return;
    case Kind::kNamespace:
      out += "<Namespace ";
      members();
      out += '>';
      return;
    case Kind::kLoop: out += format("<LoopContext {}/{}>", v.ref().cursor + 1, v.ref().items.size()); return;
    default: out += format("<{}>", type_name(v));
  }
}

bool append_json(std::string& out, const Value& v, const JsonStyle& style, std::string& why, int depth) {
  if (out.size() > kMaxTextBytes) return true;
  if (depth > kMaxValueDepth) {
    why = "nested too deep";
    return false;
  }
  const auto separator = [&](bool& first) {
    if (!first) out += style.item_separator;
    first = false;
    if (style.has_indent) new_line(out, style, depth + 1);
  };
  switch (v.kind()) {
    case Kind::kNone: out += "null"; return true;
    case Kind::kBool: out += v.as_int() != 0 ? "true" : "false"; return true;
    case Kind::kInt: out += std::to_string(v.as_int()); return true;
    case Kind::kFloat: out += json_float(v.as_float()); return true;
    case Kind::kString: append_json_string(out, v.text(), style.ensure_ascii); return true;
    case Kind::kList:
    case Kind::kTuple: {
      out += '[';
      bool first = true;
      for (const Value& item : v.ref().items) {
        separator(first);
        if (!append_json(out, item, style, why, depth + 1)) return false;
      }
      if (!first && style.has_indent) new_line(out, style, depth);
      out += ']';
      return true;
    }
    case Kind::kDict: {
      std::vector<const std::pair<Value, Value>*> order;
      for (const auto& member : v.ref().members) order.push_back(&member);
      if (style.sort_keys) {
        bool ok = true;
        uint64_t budget = kKeyBudget * order.size();
        std::stable_sort(order.begin(), order.end(),
                         [&](const auto* a, const auto* b) { return less(a->first, b->first, ok, budget); });
        if (!ok) {
          why = "keys that cannot be sorted";
          return false;
        }
      }
      out += '{';
      bool first = true;
      for (const auto* member : order) {
        separator(first);
        const Value& key = member->first;
        if (key.is_string()) {
          append_json_string(out, key.text(), style.ensure_ascii);
        } else if (key.is_number() || key.is(Kind::kNone)) {
          out += '"';
          append_json(out, key, style, why, depth + 1);
          out += '"';
        } else {
          why = format("keys must be str, int, float, bool or None, not {}", type_name(key));
          return false;
        }
        out += style.key_separator;
        if (!append_json(out, member->second, style, why, depth + 1)) return false;
      }
      if (!first && style.has_indent) new_line(out, style, depth);
      out += '}';
      return true;
    }
    default: why = format("Object of type {} is not JSON serializable", type_name(v)); return false;
  }
}

bool is_hashable(const Value& v, int depth) {
  if (v.is(Kind::kDict) || (v.is(Kind::kList) && v.ref().name.empty())) return false;  // a range has a name
  if (!v.is(Kind::kTuple)) return true;
  // A tuple too wide or too deep to be looked through is no sensible key.
  const auto& items = v.ref().items;
  return depth < 8 && items.size() <= 64 &&
         std::all_of(items.begin(), items.end(), [&](const Value& x) { return is_hashable(x, depth + 1); });
}

void set_member(Object& dict, Value key, Value value) {
  if (const Value* known = find_member(dict, key); known != nullptr) {
    *const_cast<Value*>(known) = std::move(value);
    return;
  }
  const size_t at = dict.members.size();
  if (at == kIndexFrom && dict.index == nullptr) {
    dict.index = std::make_unique<std::unordered_map<std::string, size_t>>();
    for (size_t i = 0; i < at; ++i) {
      if (dict.members[i].first.is_string()) dict.index->emplace(dict.members[i].first.text(), i);
    }
  }
  if (dict.index != nullptr && key.is_string()) dict.index->emplace(key.text(), at);
  dict.members.emplace_back(std::move(key), std::move(value));
}

const Value* find_member(const Object& dict, std::string_view key) {
  if (dict.index != nullptr) {
    const auto it = dict.index->find(std::string(key));
    return it != dict.index->end() ? &dict.members[it->second].second : nullptr;
  }
  for (const auto& [k, v] : dict.members) {
    if (k.is_string() && k.text() == key) return &v;
  }
  return nullptr;
}

const Value* find_member(const Object& dict, const Value& key) {
  if (key.is_string()) return find_member(dict, key.text());
  for (const auto& [k, v] : dict.members) {
    uint64_t budget = kKeyBudget;
    if (!k.is_string() && equal(k, key, budget)) return &v;
  }
  return nullptr;
}

Status from_json(Heap& heap, const Json& json, Value& out, int depth) {
  if (depth > kMaxValueDepth) {
    return error(StatusCode::kInvalidArgument, "the context is nested deeper than {} levels", kMaxValueDepth);
  }
  if (heap.is_full()) return error(StatusCode::kInvalidArgument, "the context exceeds {} bytes", Heap::kMaxBytes);
  if (json.is_null()) {
    out = Value::none();
  } else if (json.is_bool()) {
    out = Value::boolean(json.as_bool());
  } else if (json.is_int()) {
    out = Value::integer(json.as_int());
  } else if (json.is_double()) {
    out = Value::real(json.as_double());
  } else if (json.is_string()) {
    std::string text = json.as_string();
    if (const size_t good = utf8_valid_prefix(text); good != text.size()) {
      return error(StatusCode::kInvalidArgument, "the context holds a string that is not UTF-8 at its byte {}", good);
    }
    out = heap.string(std::move(text));
  } else if (json.is_array()) {
    out = heap.list(std::vector<Value>(json.as_array().size()));
    for (size_t i = 0; i < json.as_array().size(); ++i) {
      PM_RETURN_IF_ERROR(from_json(heap, json.as_array()[i], out.ref().items[i], depth + 1));
    }
  } else {
    out = heap.object(Kind::kDict);
    for (const auto& [key, value] : json.as_object()) {
      Value member;
      PM_RETURN_IF_ERROR(from_json(heap, value, member, depth + 1));
      if (utf8_valid_prefix(key) != key.size())
        return error(StatusCode::kInvalidArgument, "the context holds a key that is not UTF-8");
      heap.charge(2 * sizeof(Value) + 2 * key.size());
      set_member(out.ref(), heap.string(key), std::move(member));
    }
  }
  return ok_status();
}

}  // namespace pointsman::jinja
