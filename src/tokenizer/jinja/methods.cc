// SPDX-License-Identifier: Apache-2.0
//
// Methods of str, dict, list and loop, and the global functions.
#include <time.h>

#include <algorithm>
#include <initializer_list>
#include <locale.h>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/python_text.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {
namespace {

// One call of a method of str.
class TextMethod {
 public:
  TextMethod(Interpreter& in, const Value& self, std::string_view name, const Arguments& arguments)
      : in_(in), self_(self.text()), name_(name), arguments_(arguments) {}
  Value run();

 private:
  size_t count() const { return arguments_.positional.size(); }
  const Value& at(size_t i) const { return arguments_.positional[i]; }
  bool takes(size_t least, size_t most) {
    if (count() >= least && count() <= most) return true;
    in_.fail("str.{}() takes {} to {} arguments, not {}", name_, least, most, count());
    return false;
  }
  bool is_text(size_t i) {
    if (at(i).is_string()) return true;
    if (at(i).is_undefined()) return in_.undefined_error(at(i)), false;
    in_.fail("str.{}() requires str, not {}", name_, type_name(at(i)));
    return false;
  }
  // An optional integer, None counting as absent.
  int64_t integer(size_t i, int64_t otherwise) {
    if (i >= count() || at(i).is(Kind::kNone)) return otherwise;
    if (!at(i).is_integral()) return in_.fail("str.{}() requires an integer, not {}", name_, type_name(at(i))), otherwise;
    return at(i).as_int();
  }
  Value text(std::string_view t) { return in_.string(std::string(t)); }
  Value list(const std::vector<std::string_view>& parts, Kind kind = Kind::kList) {
    std::vector<Value> items;
    for (const std::string_view part : parts) {
      if (!in_.step()) return {};
      items.push_back(in_.heap().string(std::string(part)));
    }
    return in_.heap().list(std::move(items), kind);
  }
  // The part of the text between optional character positions in arguments `first` and `first` + 1, and where it begins.
  std::string_view range(size_t first, size_t& begin, bool& empty) {
    const auto n = static_cast<int64_t>(utf8_length(self_));
    const auto clip = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + n : v, 0, n); };
    const int64_t start = integer(first, 0);
    const int64_t low = clip(start);
    const int64_t high = clip(integer(first + 1, n));
    empty = low > high || start > n;
    begin = static_cast<size_t>(low);
    const size_t from = byte_offset(self_, begin);
    return self_.substr(from, byte_offset(self_.substr(from), static_cast<size_t>(std::max<int64_t>(high - low, 0))));
  }
  Value affix(bool at_start);
  Value find(bool from_right, bool must_exist);
  Value split_text(bool from_right);
  Value partition(bool from_right);
  Value pad(int where);
  Value format();

  Interpreter& in_;
  std::string_view self_;
  std::string_view name_;
  const Arguments& arguments_;
};

Value TextMethod::affix(bool at_start) {
  if (!takes(1, 3)) return {};
  size_t begin = 0;
  bool empty = false;
  const std::string_view part = range(1, begin, empty);
  std::vector<Value> options;
  if (at(0).is(Kind::kTuple)) {
    options = at(0).ref().items;
  } else {
    if (!is_text(0)) return {};
    options.push_back(at(0));
  }
  for (const Value& option : options) {
    if (!option.is_string()) return in_.fail("str.{}() requires str or a tuple of them", name_);
    if (!empty && (at_start ? part.starts_with(option.text()) : part.ends_with(option.text()))) return Value::boolean(true);
  }
  return Value::boolean(false);
}

Value TextMethod::find(bool from_right, bool must_exist) {
  if (!takes(1, 3) || !is_text(0)) return {};
  size_t begin = 0;
  bool empty = false;
  const std::string_view part = range(1, begin, empty);
  const size_t at_byte = empty ? std::string_view::npos : from_right ? part.rfind(at(0).text()) : part.find(at(0).text());
  if (at_byte == std::string_view::npos) return must_exist ? in_.fail("substring not found") : Value::integer(-1);
  return Value::integer(static_cast<int64_t>(begin + utf8_length(part.substr(0, at_byte))));
}

Value TextMethod::split_text(bool from_right) {
  if (!takes(0, 2)) return {};
  std::optional<std::string_view> separator;
  if (count() > 0 && !at(0).is(Kind::kNone)) {
    if (!is_text(0)) return {};
    separator = at(0).text();
    if (separator->empty()) return in_.fail("empty separator");
  }
  const int64_t limit = integer(1, -1);
  return list(from_right ? split_from_right(self_, separator, limit) : split(self_, separator, limit));
}

Value TextMethod::partition(bool from_right) {
  if (!takes(1, 1) || !is_text(0)) return {};
  const std::string_view s = at(0).text();
  if (s.empty()) return in_.fail("empty separator");
  const size_t i = from_right ? self_.rfind(s) : self_.find(s);
  if (i == std::string_view::npos) {
    return from_right ? list({"", "", self_}, Kind::kTuple) : list({self_, "", ""}, Kind::kTuple);
  }
  return list({self_.substr(0, i), s, self_.substr(i + s.size())}, Kind::kTuple);
}

// where: -1 text at the left, 0 in the middle, 1 at the right.
Value TextMethod::pad(int where) {
  if (!takes(1, 2)) return {};
  std::string_view fill = " ";
  if (count() > 1) {
    if (!is_text(1)) return {};
    fill = at(1).text();
    if (utf8_length(fill) != 1) return in_.fail("The fill character must be exactly one character long");
  }
  const auto length = static_cast<int64_t>(utf8_length(self_));
  const int64_t width = integer(0, 0);
  if (width <= length) return text(self_);
  if (width > static_cast<int64_t>(kMaxTextBytes / 4)) return in_.check_size(kMaxTextBytes + 1), Value();
  const int64_t total = width - length;
  // Python puts the odd one to the left when the width is odd.
  const int64_t left = where < 0 ? 0 : where > 0 ? total : total / 2 + (total & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self_;
  for (int64_t i = left; i < total; ++i) out += fill;
  return in_.string(std::move(out));
}

// "{} {0} {name}" without format specifications.
Value TextMethod::format() {
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < self_.size(); ++i) {
    const char c = self_[i];
    if ((c == '{' || c == '}') && i + 1 < self_.size() && self_[i + 1] == c) {
      out += c;
      ++i;
      continue;
    }
    if (c == '}') return in_.fail("Single '}}' encountered in format string");
    if (c != '{') {
      out += c;
      continue;
    }
    const size_t end = self_.find('}', i);
    if (end == std::string_view::npos) return in_.fail("expected '}}' before end of string");
    const std::string_view field = self_.substr(i + 1, end - i - 1);
    i = end;
    const Value* v = nullptr;
    if (field.empty() || all_characters(field, [](uint32_t d) { return d >= '0' && d <= '9'; })) {
      const size_t index = field.empty()      ? next++
                           : field.size() > 6 ? SIZE_MAX
                                              : static_cast<size_t>(std::atoi(std::string(field).c_str()));
      if (index < count()) v = &at(index);
    } else {
      if (field.find_first_of(".[!:{") != std::string_view::npos) {
        return in_.fail_with(StatusCode::kUnsupported, fmt::format("the format field '{}' is not supported", field));
      }
      for (const auto& [key, value] : arguments_.named) {
        if (key == field) v = &value;
      }
    }
    if (v == nullptr) return in_.fail("no argument for the format field '{}'", field);
    append_str(out, *v);
    if (!in_.check_size(out.size())) return {};
  }
  return in_.string(std::move(out));
}

Value TextMethod::run() {
  const std::string_view n = name_;
  if (!in_.step(1 + self_.size() / 256)) return {};
  if (n == "format") return format();
  if (!arguments_.named.empty() && n != "split" && n != "rsplit" && n != "splitlines") {
    return in_.fail("str.{}() takes no keyword arguments", n);
  }
  if (!arguments_.named.empty()) {
    // split(sep=, maxsplit=), splitlines(keepends=)
    Arguments plain;
    plain.positional = arguments_.positional;
    for (const auto& [key, value] : arguments_.named) {
      const size_t index = key == "maxsplit" ? 1 : key == "sep" || key == "keepends" ? 0 : SIZE_MAX;
      if (index == SIZE_MAX) return in_.fail("str.{}() got an unexpected keyword argument '{}'", n, key);
      while (plain.positional.size() <= index) plain.positional.push_back(Value::none());
      plain.positional[index] = value;
    }
    return in_.call_method(in_.string(std::string(self_)), n, plain);
  }
  if (n == "startswith" || n == "endswith") return affix(n == "startswith");
  if (n == "split" || n == "rsplit") return split_text(n == "rsplit");
  if (n == "strip" || n == "lstrip" || n == "rstrip") {
    if (!takes(0, 1)) return {};
    std::optional<std::string_view> characters;
    if (count() > 0 && !at(0).is(Kind::kNone)) {
      if (!is_text(0)) return {};
      characters = at(0).text();
      if (!in_.step(self_.size() * characters->size() / 256)) return {};
    }
    return text(strip(self_, n != "rstrip", n != "lstrip", characters));
  }
  if (n == "replace") {
    if (!takes(2, 3) || !is_text(0) || !is_text(1)) return {};
    return in_.string(replace(self_, at(0).text(), at(1).text(), integer(2, -1)));
  }
  if (n == "find" || n == "rfind") return find(n == "rfind", false);
  if (n == "index" || n == "rindex") return find(n == "rindex", true);
  if (n == "join") {
    if (!takes(1, 1)) return {};
    std::vector<Value> items;
    if (at(0).is_undefined()) return in_.undefined_error(at(0));
    if (!in_.iterate(at(0), items)) return {};
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_string()) return in_.fail("sequence item {}: expected str instance, {} found", i, type_name(items[i]));
      if (i > 0) out += self_;
      out += items[i].text();
      if (!in_.check_size(out.size())) return {};
    }
    return in_.string(std::move(out));
  }
  if (n == "count") {
    if (!takes(1, 1) || !is_text(0)) return {};
    const std::string_view s = at(0).text();
    if (s.empty()) return Value::integer(static_cast<int64_t>(utf8_length(self_)) + 1);
    int64_t found = 0;
    for (size_t i = self_.find(s); i != std::string_view::npos; i = self_.find(s, i + s.size())) ++found;
    return Value::integer(found);
  }
  if (n == "splitlines") return takes(0, 1) ? list(split_lines(self_, count() > 0 && truthy(at(0)))) : Value();
  if (n == "partition" || n == "rpartition") return partition(n == "rpartition");
  if (n == "removeprefix" || n == "removesuffix") {
    if (!takes(1, 1) || !is_text(0)) return {};
    const std::string_view s = at(0).text();
    if (n == "removeprefix") return text(self_.starts_with(s) ? self_.substr(s.size()) : self_);
    return text(self_.ends_with(s) ? self_.substr(0, self_.size() - s.size()) : self_);
  }
  if (n == "ljust") return pad(-1);
  if (n == "center") return pad(0);
  if (n == "rjust") return pad(1);
  if (n == "zfill") {
    if (!takes(1, 1)) return {};
    const auto length = static_cast<int64_t>(utf8_length(self_));
    const int64_t width = integer(0, 0);
    if (width > static_cast<int64_t>(kMaxTextBytes)) return in_.check_size(kMaxTextBytes + 1), Value();
    std::string out(self_);
    const bool has_sign = !out.empty() && (out[0] == '-' || out[0] == '+');
    if (width > length) out.insert(has_sign ? 1 : 0, static_cast<size_t>(width - length), '0');
    return in_.string(std::move(out));
  }
  if (!takes(0, 0)) return {};
  if (n == "upper") return in_.string(upper(self_));
  if (n == "lower") return in_.string(lower(self_));
  if (n == "casefold") return in_.string(casefold(self_));
  if (n == "title") return in_.string(title(self_));
  if (n == "capitalize") return in_.string(capitalize(self_));
  if (n == "swapcase") return in_.string(swap_case(self_));
  if (n == "isspace") return Value::boolean(all_characters(self_, is_python_space));
  if (n == "isalpha") return Value::boolean(all_characters(self_, is_letter));
  if (n == "isdigit" || n == "isdecimal") return Value::boolean(all_characters(self_, is_decimal_digit));
  if (n == "isnumeric") return Value::boolean(all_characters(self_, is_numeric));
  if (n == "isalnum") return Value::boolean(all_characters(self_, [](uint32_t c) { return is_letter(c) || is_numeric(c); }));
  if (n == "isupper") return Value::boolean(is_upper_text(self_));
  if (n == "islower") return Value::boolean(is_lower_text(self_));
  return in_.fail_with(StatusCode::kUnsupported, fmt::format("str.{}() is not supported", n));
}

}  // namespace

Value Interpreter::call_method(const Value& self, std::string_view name, const Arguments& arguments) {
  Nest nest(*this);
  if (!nest.ok) return {};
  const std::vector<Value>& given = arguments.positional;
  if (self.is_string()) {
    Value v = TextMethod(*this, self, name, arguments).run();
    return failed() ? Value() : v;
  }
  if (!arguments.named.empty()) return fail("{}.{}() takes no keyword arguments", type_name(self), name);
  Object& object = self.ref();
  if (self.is(Kind::kDict)) {
    if (name == "get") {
      if (given.empty() || given.size() > 2) return fail("dict.get() takes 1 or 2 arguments, not {}", given.size());
      if (!is_hashable(given[0])) return fail("unhashable type: '{}'", type_name(given[0]));
      if (!step(given[0].is_string() ? 1 : object.members.size())) return {};
      const Value* v = find_member(object, given[0]);
      return v != nullptr ? *v : given.size() > 1 ? given[1] : Value::none();
    }
    if (!given.empty()) return fail("dict.{}() takes no arguments", name);
    if (!step(object.members.size() / 4)) return {};
    if (name == "copy") {
      Value copy = heap_.object(Kind::kDict);
      for (const auto& [key, value] : object.members) set_member(copy.ref(), key, value);
      heap_.charge(object.members.size() * 2 * sizeof(Value));
      return copy;
    }
    std::vector<Value> items;
    for (const auto& [key, value] : object.members) {
      if (name == "items") {
        items.push_back(heap_.list({key, value}, Kind::kTuple));
      } else {
        items.push_back(name == "keys" ? key : value);
      }
    }
    Value view = heap_.list(std::move(items), Kind::kView);
    view.ref().name = "dict_" + std::string(name);
    return view;
  }
  if (self.is(Kind::kLoop)) {
    if (name == "cycle") {
      if (given.empty()) return fail("no items for cycling given");
      return given[object.cursor % given.size()];
    }
    const Value now = heap_.list(given, Kind::kTuple);
    if (!object.last_changed.is_undefined() && same(object.last_changed, now)) return Value::boolean(false);
    object.last_changed = now;
    return Value::boolean(true);
  }
  if (name == "copy") return heap_.list(object.items);
  if (given.size() != 1) return fail("{}.{}() takes 1 argument, not {}", type_name(self), name, given.size());
  int64_t found = 0;
  for (size_t i = 0; i < object.items.size() && !failed(); ++i) {
    if (!same(object.items[i], given[0])) continue;
    if (name == "index") return Value::integer(static_cast<int64_t>(i));
    ++found;
  }
  return name == "count" ? Value::integer(found) : fail("the value is not in the {}", type_name(self));
}

Value Interpreter::call_builtin(std::string_view name, const Arguments& arguments) {
  const std::vector<Value>& given = arguments.positional;
  if (name == "raise_exception") return fail("{}", given.empty() ? "raise_exception()" : to_str(given[0]));
  if (name == "strftime_now") {
    if (given.size() != 1 || !given[0].is_string()) return fail("strftime_now() takes a format");
    return string(strftime(given[0].text()));
  }
  if (name == "range") {
    int64_t v[3] = {0, 0, 1};
    if (given.empty() || given.size() > 3) return fail("range() takes 1 to 3 arguments");
    for (size_t i = 0; i < given.size(); ++i) {
      if (given[i].is_undefined()) return undefined_error(given[i]);
      if (!given[i].is_integral()) return fail("'{}' object cannot be interpreted as an integer", type_name(given[i]));
      v[given.size() == 1 ? 1 : i] = given[i].as_int();
    }
    if (v[2] == 0) return fail("range() arg 3 must not be zero");
    constexpr size_t kMaxRange = 100'000;  // the sandbox's own limit
    std::vector<Value> items;
    for (int64_t i = v[0]; v[2] > 0 ? i < v[1] : i > v[1];) {
      if (items.size() >= kMaxRange) return fail("Range too big. The sandbox blocks ranges larger than {}.", kMaxRange);
      items.push_back(Value::integer(i));
      if (__builtin_add_overflow(i, v[2], &i)) break;
    }
    if (!step(items.size() / 4)) return {};
    Value list = heap_.list(std::move(items));
    list.ref().name = v[2] == 1 ? fmt::format("range({}, {})", v[0], v[1]) : fmt::format("range({}, {}, {})", v[0], v[1], v[2]);
    return list;
  }
  // dict and namespace
  Value out = heap_.object(name == "dict" ? Kind::kDict : Kind::kNamespace);
  const auto add = [&](const Value& key, const Value& value) {
    if (out.is(Kind::kNamespace) && key.text().starts_with('_')) {
      fail("namespace attributes may not begin with '_'");
      return;
    }
    heap_.charge(2 * sizeof(Value));
    if (step(key.is_string() ? 1 : out.ref().members.size())) set_member(out.ref(), key, value);
  };
  for (const Value& v : given) {
    if (v.is(Kind::kDict)) {
      for (const auto& [key, value] : v.ref().members) add(key, value);
      continue;
    }
    std::vector<Value> pairs;
    if (!iterate(v, pairs)) return {};
    for (const Value& pair : pairs) {
      if (!pair.is_sequence() || pair.ref().items.size() != 2) return fail("{}() takes pairs", name);
      add(pair.ref().items[0], pair.ref().items[1]);
    }
  }
  for (const auto& [key, value] : arguments.named) add(heap_.string(key), value);
  return failed() ? Value() : out;
}

std::string Interpreter::strftime(std::string_view pattern) {
  if (!clock_.unix_seconds) return fail("strftime_now() needs a time, and none was given"), std::string();
  const time_t local = static_cast<time_t>(*clock_.unix_seconds + clock_.utc_offset_seconds);
  tm parts{};
  if (::gmtime_r(&local, &parts) == nullptr) return fail("the time is out of range"), std::string();
  // English names, whatever locale the program has set.
  const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::string out;
  for (size_t i = 0; i < pattern.size() && check_size(out.size()); ++i) {
    if (pattern[i] != '%' || i + 1 >= pattern.size()) {
      out += pattern[i];
      continue;
    }
    std::string directive = "%";
    ++i;
    while (i + 1 < pattern.size() && std::string_view("-_0^#").find(pattern[i]) != std::string_view::npos &&
           directive.size() < 4) {
      directive += pattern[i++];
    }
    directive += pattern[i];
    // Python's own, and those that are empty for a time without zone.
    if (pattern[i] == 'f') {
      out += "000000";
    } else if (pattern[i] != 'z' && pattern[i] != 'Z') {
      char buffer[128];
      out.append(buffer, c_locale == nullptr ? 0 : ::strftime_l(buffer, sizeof buffer, directive.c_str(), &parts, c_locale));
    }
  }
  if (c_locale != nullptr) ::freelocale(c_locale);
  if (utf8_valid_prefix(out) != out.size()) return fail("the time format is not UTF-8"), std::string();
  return out;
}

}  // namespace pointsman::jinja
