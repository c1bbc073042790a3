// SPDX-License-Identifier: Apache-2.0
//
// Filters, as jinja2/filters.py defines them; tojson as transformers does.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "tokenizer/jinja/interpreter.h"
#include "tokenizer/jinja/python_text.h"
#include "tokenizer/unicode.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {
namespace {

constexpr size_t kMaxParameters = 5;

// Arguments matched with parameter names; an absent one is empty.
class Bound {
 public:
  Bound(Interpreter& in, std::string_view filter, const Arguments& arguments, std::initializer_list<std::string_view> names) {
    if (arguments.positional.size() > names.size()) {
      in.fail("filter '{}' takes at most {} argument(s), not {}", filter, names.size(), arguments.positional.size());
      return;
    }
    for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = arguments.positional[i];
    for (const auto& [name, value] : arguments.named) {
      const auto* at = std::find(names.begin(), names.end(), name);
      const auto i = static_cast<size_t>(at - names.begin());
      if (at == names.end() || values_[i]) {
        in.fail("filter '{}' got {} argument '{}'", filter, at == names.end() ? "an unexpected" : "a repeated", name);
        return;
      }
      values_[i] = value;
    }
  }
  bool has(size_t i) const { return values_[i].has_value() && !values_[i]->is(Kind::kNone); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  bool given(size_t i) const { return values_[i].has_value(); }
  bool flag(size_t i, bool otherwise = false) const { return given(i) ? truthy(*values_[i]) : otherwise; }
  int64_t integer(Interpreter& in, size_t i, int64_t otherwise) const {
    if (!has(i)) return otherwise;
    if (!values_[i]->is_integral()) return in.fail("an integer argument expected, not {}", type_name(*values_[i])), otherwise;
    return values_[i]->as_int();
  }
  std::string text(Interpreter& in, size_t i, std::string_view otherwise) const {
    return given(i) ? in.to_str(*values_[i]) : std::string(otherwise);
  }

 private:
  std::optional<Value> values_[kMaxParameters];
};

// One filter call and its helpers.
class Filter {
 public:
  Filter(Interpreter& in, std::string_view name, const Value& input, const Arguments& arguments)
      : in_(in), name_(name), input_(input), arguments_(arguments) {}

  Value run();

 private:
  Bound bind(std::initializer_list<std::string_view> names) { return Bound(in_, name_, arguments_, names); }
  Value text(std::string t) { return in_.string(std::move(t)); }
  std::string input_text() { return in_.to_str(input_); }

  // Follows "a.b.0" through items and attributes.
  Value follow(const Value& from, const Value& path, const Value* otherwise = nullptr) {
    if (path.is_integral()) return in_.get_item(from, path);
    Value v = from;
    for (const std::string_view part : split(path.text(), std::string_view("."), -1)) {
      const bool is_index = all_characters(part, [](uint32_t c) { return c >= '0' && c <= '9'; }) && part.size() < 10;
      v = in_.get_item(v,
                       is_index ? Value::integer(std::atoll(std::string(part).c_str())) : in_.heap().string(std::string(part)));
      if (v.is_undefined() && otherwise != nullptr) v = *otherwise;
      if (in_.failed()) return {};
    }
    return v;
  }
  Value fold_case(const Value& v, bool case_sensitive) {
    return v.is_string() && !case_sensitive ? in_.heap().string(lower(v.text())) : v;
  }
  std::vector<Value> items() {
    std::vector<Value> out;
    in_.iterate(input_, out);
    return out;
  }
  // Stable order of `items` by `keys`.
  std::vector<Value> sorted(const std::vector<Value>& items, const std::vector<Value>& keys, bool reverse) {
    std::vector<size_t> order(items.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    bool ok = true;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      if (!ok || in_.failed()) return false;
      return reverse ? in_.before(keys[b], keys[a], ok) : in_.before(keys[a], keys[b], ok);
    });
    if (!ok) in_.fail("values of different types cannot be sorted");
    std::vector<Value> out;
    for (const size_t i : order) out.push_back(items[i]);
    return out;
  }
  Arguments arguments_from(size_t first) const {
    Arguments out;
    out.positional.assign(
        arguments_.positional.begin() + static_cast<std::ptrdiff_t>(std::min(first, arguments_.positional.size())),
        arguments_.positional.end());
    out.named = arguments_.named;
    return out;
  }

  Value map();
  Value select(bool keep, bool by_attribute);
  Value sort();
  Value unique();
  Value dictsort();
  Value batch();
  Value slices();
  Value groupby();
  Value urlencode();
  Value extreme(bool largest);
  Value sum();
  Value join();
  Value length();
  Value reverse();
  Value round();
  Value to_int();
  Value to_float();
  Value indent();
  Value truncate();
  Value tojson();

  Interpreter& in_;
  std::string_view name_;
  const Value& input_;
  const Arguments& arguments_;
};

Value Filter::map() {
  std::vector<Value> out;
  // What is false is not even looked at.
  if (!truthy(input_)) return in_.heap().list({}, Kind::kGenerator);
  if (arguments_.positional.empty()) {
    Value attribute;
    std::optional<Value> otherwise;
    for (const auto& [name, value] : arguments_.named) {
      if (name == "attribute") attribute = value;
      if (name == "default" && !value.is(Kind::kNone)) otherwise = value;
    }
    if (!attribute.is_string() && !attribute.is_integral()) return in_.fail("map requires a filter argument");
    for (const Value& item : items()) {
      if (in_.failed() || !in_.step()) return {};
      out.push_back(follow(item, attribute, otherwise ? &*otherwise : nullptr));
    }
  } else {
    if (!arguments_.positional[0].is_string()) return in_.fail("map requires the name of a filter");
    const Arguments rest = arguments_from(1);
    for (const Value& item : items()) {
      if (in_.failed() || !in_.step()) return {};
      out.push_back(in_.apply_filter(arguments_.positional[0].text(), item, rest));
    }
  }
  return in_.heap().list(std::move(out), Kind::kGenerator);
}

Value Filter::select(bool keep, bool by_attribute) {
  if (!truthy(input_)) return in_.heap().list({}, Kind::kGenerator);
  const size_t first = by_attribute ? 1 : 0;
  if (arguments_.positional.size() < first) return in_.fail("{} requires an attribute", name_);
  const bool has_test = arguments_.positional.size() > first;
  if (has_test && !arguments_.positional[first].is_string()) return in_.fail("{} requires the name of a test", name_);
  const Arguments rest = arguments_from(first + 1);
  std::vector<Value> out;
  for (const Value& item : items()) {
    if (in_.failed() || !in_.step()) return {};
    const Value v = by_attribute ? follow(item, arguments_.positional[0]) : item;
    if (in_.failed()) return {};
    const bool yes = has_test ? in_.apply_test(arguments_.positional[first].text(), v, rest) : truthy(v);
    if (yes == keep) out.push_back(item);
  }
  return in_.heap().list(std::move(out), Kind::kGenerator);
}

Value Filter::sort() {
  const Bound b = bind({"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> all = items();
  std::vector<Value> keys;
  for (const Value& item : all) {
    if (in_.failed() || !in_.step()) return {};
    if (!b.has(2)) {
      keys.push_back(fold_case(item, b.flag(1)));
      continue;
    }
    std::vector<Value> parts;
    if (b[2].is_string()) {
      for (const std::string_view path : split(b[2].text(), std::string_view(","), -1)) {
        parts.push_back(fold_case(follow(item, in_.heap().string(std::string(path))), b.flag(1)));
      }
    } else {
      parts.push_back(fold_case(follow(item, b[2]), b.flag(1)));
    }
    keys.push_back(in_.heap().list(std::move(parts)));
  }
  return in_.heap().list(sorted(all, keys, b.flag(0)));
}

Value Filter::unique() {
  const Bound b = bind({"case_sensitive", "attribute"});
  std::vector<Value> out;
  Value seen = in_.heap().object(Kind::kDict);
  for (const Value& item : items()) {
    if (in_.failed()) return {};
    const Value key = fold_case(b.has(1) ? follow(item, b[1]) : item, b.flag(0));
    if (!in_.step(key.is_string() ? 1 : 1 + seen.ref().members.size())) return {};
    if (find_member(seen.ref(), key) != nullptr) continue;
    set_member(seen.ref(), key, Value::none());
    out.push_back(item);
  }
  return in_.heap().list(std::move(out), Kind::kGenerator);
}

Value Filter::dictsort() {
  const Bound b = bind({"case_sensitive", "by", "reverse"});
  if (!input_.is(Kind::kDict)) return in_.fail("dictsort requires a dict, not {}", type_name(input_));
  const std::string by = b.text(in_, 1, "key");
  if (by != "key" && by != "value") return in_.fail("You can only sort by either \"key\" or \"value\"");
  std::vector<Value> pairs;
  std::vector<Value> keys;
  for (const auto& [key, value] : input_.ref().members) {
    if (!in_.step()) return {};
    pairs.push_back(in_.heap().list({key, value}, Kind::kTuple));
    keys.push_back(fold_case(by == "key" ? key : value, b.flag(0)));
  }
  return in_.heap().list(sorted(pairs, keys, b.flag(2)));
}

Value Filter::batch() {
  const Bound b = bind({"linecount", "fill_with"});
  const int64_t size = b.integer(in_, 0, 0);
  if (size <= 0 || size > 1'000'000) return in_.fail("batch requires a number of items");
  std::vector<Value> out;
  std::vector<Value> row;
  const auto close = [&] {
    out.push_back(in_.heap().list(std::move(row)));
    row.clear();
  };
  for (const Value& item : items()) {
    if (!in_.step()) return {};
    if (static_cast<int64_t>(row.size()) == size) close();
    row.push_back(item);
  }
  if (!row.empty()) {
    while (b.has(1) && static_cast<int64_t>(row.size()) < size) {
      if (!in_.step()) return {};
      row.push_back(b[1]);
    }
    close();
  }
  return in_.heap().list(std::move(out), Kind::kGenerator);
}

// So many lists of nearly equal length; the longer ones come first.
Value Filter::slices() {
  const Bound b = bind({"slices", "fill_with"});
  const int64_t count = b.integer(in_, 0, 0);
  if (count <= 0 || !in_.step(static_cast<uint64_t>(count))) return in_.fail("slice requires a number of slices");
  const std::vector<Value> all = items();
  const size_t n = static_cast<size_t>(count);
  std::vector<Value> out;
  size_t at = 0;
  for (size_t i = 0; i < n; ++i) {
    const size_t size = all.size() / n + (i < all.size() % n ? 1 : 0);
    std::vector<Value> part(all.begin() + static_cast<std::ptrdiff_t>(at),
                            all.begin() + static_cast<std::ptrdiff_t>(at + size));
    if (b.has(1) && i >= all.size() % n) part.push_back(b[1]);
    at += size;
    out.push_back(in_.heap().list(std::move(part)));
  }
  return in_.heap().list(std::move(out), Kind::kGenerator);
}

Value Filter::groupby() {
  const Bound b = bind({"attribute", "default", "case_sensitive"});
  if (!b.has(0)) return in_.fail("groupby requires an attribute");
  const std::vector<Value> all = items();
  std::vector<Value> keys;
  for (const Value& item : all) {
    if (in_.failed() || !in_.step()) return {};
    keys.push_back(fold_case(follow(item, b[0], b.has(1) ? &b[1] : nullptr), b.flag(2)));
  }
  // Items and keys are sorted alike.
  const std::vector<Value> order = sorted(all, keys, false);
  const std::vector<Value> key_order = sorted(keys, keys, false);
  std::vector<Value> out;
  for (size_t i = 0; i < order.size();) {
    std::vector<Value> group;
    const size_t first = i;
    for (; i < order.size() && (i == first || in_.same(key_order[i], key_order[first])); ++i) group.push_back(order[i]);
    if (in_.failed()) return {};
    const Value grouper = follow(group[0], b[0], b.has(1) ? &b[1] : nullptr);
    Value pair = in_.heap().list({grouper, in_.heap().list(std::move(group))}, Kind::kTuple);
    pair.ref().name = "group";
    out.push_back(std::move(pair));
  }
  return in_.heap().list(std::move(out));
}

Value Filter::urlencode() {
  if (!input_.is_string())
    return in_.fail_with(StatusCode::kUnsupported, "urlencode of a value that is no text is not supported");
  std::string out;
  for (const char c : input_.text()) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       (c != '\0' && std::strchr("_.-~/", c) != nullptr);
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned>(static_cast<unsigned char>(c)));
  }
  return text(std::move(out));
}

Value Filter::extreme(bool largest) {
  const Bound b = bind({"case_sensitive", "attribute"});
  const std::vector<Value> all = items();
  if (in_.failed()) return {};
  if (all.empty()) return in_.heap().undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  Value best_key;
  bool ok = true;
  for (size_t i = 0; i < all.size(); ++i) {
    if (in_.failed() || !in_.step()) return {};
    const Value key = fold_case(b.has(1) ? follow(all[i], b[1]) : all[i], b.flag(0));
    if (i == 0 || (largest ? in_.before(best_key, key, ok) : in_.before(key, best_key, ok))) {
      best = i;
      best_key = key;
    }
  }
  if (!ok) return in_.fail("values of different types cannot be compared");
  return all[best];
}

Value Filter::sum() {
  const Bound b = bind({"attribute", "start"});
  Value total = b.given(1) ? b[1] : Value::integer(0);
  for (const Value& item : items()) {
    if (in_.failed() || !in_.step()) return {};
    total = in_.binary(Op::kAdd, total, b.has(0) ? follow(item, b[0]) : item);
  }
  return total;
}

Value Filter::join() {
  const Bound b = bind({"d", "attribute"});
  const std::string between = b.text(in_, 0, "");
  std::string out;
  bool first = true;
  for (const Value& item : items()) {
    if (in_.failed() || !in_.step()) return {};
    if (!first) out += between;
    first = false;
    append_str(out, b.has(1) ? follow(item, b[1]) : item);
    if (!in_.check_size(out.size())) return {};
  }
  return text(std::move(out));
}

Value Filter::length() {
  switch (input_.kind()) {
    case Kind::kUndefined: return Value::integer(0);
    case Kind::kString: return Value::integer(static_cast<int64_t>(utf8_length(input_.text())));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return Value::integer(static_cast<int64_t>(input_.ref().items.size()));
    case Kind::kDict: return Value::integer(static_cast<int64_t>(input_.ref().members.size()));
    case Kind::kLoop: return Value::integer(static_cast<int64_t>(input_.ref().items.size()));
    default: return in_.fail("object of type '{}' has no len()", type_name(input_));
  }
}

Value Filter::reverse() {
  std::vector<Value> all = items();
  std::reverse(all.begin(), all.end());
  if (!input_.is_string()) return in_.heap().list(std::move(all), Kind::kGenerator);
  std::string out;
  for (const Value& c : all) out += c.text();
  return text(std::move(out));
}

Value Filter::round() {
  const Bound b = bind({"precision", "method"});
  const int64_t precision = b.integer(in_, 0, 0);
  const std::string method = b.text(in_, 1, "common");
  if (input_.is_undefined()) return in_.undefined_error(input_);
  if (!input_.is_number()) return in_.fail("type {} doesn't define __round__ method", type_name(input_));
  if (precision < -300 || precision > 300) return in_.fail("precision is out of range");
  const double v = input_.as_float();
  if (method == "ceil" || method == "floor") {
    const double scale = std::pow(10.0, static_cast<double>(precision));
    return Value::real((method == "ceil" ? std::ceil(v * scale) : std::floor(v * scale)) / scale);
  }
  if (method != "common") return in_.fail("method must be common, ceil or floor");
  if (input_.is_integral() && precision >= 0) return Value::integer(input_.as_int());
  double result = v;
  if (precision >= 0) {
    // printf rounds the exact binary value, halves to even, as Python does.
    result = std::strtod(fmt::format("{:.{}f}", v, precision).c_str(), nullptr);
  } else {
    const double scale = std::pow(10.0, static_cast<double>(-precision));
    result = std::nearbyint(v / scale) * scale;
  }
  return input_.is_integral() ? Value::integer(static_cast<int64_t>(result)) : Value::real(result);
}

// Python's float() of a text; false when it is none.
bool parse_float(std::string_view text, double& out) {
  std::string t(strip(text, true, true));
  std::erase(t, '_');
  if (t.starts_with('+')) t.erase(0, 1);
  if (t.empty() || t.size() > 400 || t.find_first_of("xXpP(") != std::string::npos) return false;
  const auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), out);
  return (ec == std::errc() || ec == std::errc::result_out_of_range) && end == t.data() + t.size();
}

Value Filter::to_int() {
  const Bound b = bind({"default", "base"});
  const Value otherwise = b.given(0) ? b[0] : Value::integer(0);
  const int64_t base = b.integer(in_, 1, 10);
  if (input_.is_undefined()) return in_.undefined_error(input_);
  if (input_.is_integral()) return Value::integer(input_.as_int());
  double real = input_.is(Kind::kFloat) ? input_.as_float() : 0;
  if (input_.is_string()) {
    std::string t(strip(input_.text(), true, true));
    std::erase(t, '_');
    const bool negative = t.starts_with('-');
    if (negative || t.starts_with('+')) t.erase(0, 1);
    if (base == 16 && (t.starts_with("0x") || t.starts_with("0X"))) t.erase(0, 2);
    if (base == 8 && (t.starts_with("0o") || t.starts_with("0O"))) t.erase(0, 2);
    if (base == 2 && (t.starts_with("0b") || t.starts_with("0B"))) t.erase(0, 2);
    uint64_t magnitude = 0;
    if (base >= 2 && base <= 36 && !t.empty()) {
      const auto [end, ec] = std::from_chars(t.data(), t.data() + t.size(), magnitude, static_cast<int>(base));
      if (end == t.data() + t.size()) {
        if (ec != std::errc() || magnitude > static_cast<uint64_t>(INT64_MAX)) return in_.fail("integer overflow");
        return Value::integer(negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude));
      }
    }
    if (!parse_float(input_.text(), real)) return otherwise;
  } else if (!input_.is(Kind::kFloat)) {
    return otherwise;
  }
  if (!std::isfinite(real)) return otherwise;
  if (!(std::abs(real) < 9.2e18)) return in_.fail("integer overflow");
  return Value::integer(static_cast<int64_t>(real));
}

Value Filter::to_float() {
  const Bound b = bind({"default"});
  if (input_.is_undefined()) return in_.undefined_error(input_);
  if (input_.is_number()) return Value::real(input_.as_float());
  double real = 0;
  if (input_.is_string() && parse_float(input_.text(), real)) return Value::real(real);
  return b.given(0) ? b[0] : Value::real(0);
}

Value Filter::indent() {
  const Bound b = bind({"width", "first", "blank"});
  std::string indention;
  if (b.given(0) && b[0].is_string()) {
    indention = std::string(b[0].text());
  } else {
    const int64_t width = b.integer(in_, 0, 4);
    if (width > 10000) return in_.fail("an indentation of {}", width);
    indention.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (!input_.is_string()) return in_.fail("indent requires a text, not {}", type_name(input_));
  const std::string source = input_text() + "\n";
  std::string out;
  bool first = true;
  for (const std::string_view line : split_lines(source, false)) {
    if (first ? b.flag(1) : (b.flag(2) || !line.empty())) {
      // The first line is indented even when it is empty; with `blank`, all are.
      if (!first) out += "\n";
      out += indention;
    } else if (!first) {
      out += "\n";
    }
    out += line;
    first = false;
    if (!in_.check_size(out.size())) return {};
  }
  return text(std::move(out));
}

Value Filter::truncate() {
  const Bound b = bind({"length", "killwords", "end", "leeway"});
  const int64_t length = b.integer(in_, 0, 255);
  const std::string end = b.text(in_, 2, "...");
  const int64_t leeway = b.integer(in_, 3, 5);
  if (!input_.is_string()) {
    const Value n = this->length();
    if (in_.failed() || n.as_int() <= length + leeway) return input_;
    return in_.fail("truncate requires a text, not {}", type_name(input_));
  }
  const std::string s = input_text();
  const auto end_length = static_cast<int64_t>(utf8_length(end));
  if (length < end_length || leeway < 0) return in_.fail("truncate: length and leeway are too small");
  if (static_cast<int64_t>(utf8_length(s)) <= length + leeway) return text(s);
  std::string_view kept = std::string_view(s).substr(0, byte_offset(s, static_cast<size_t>(length - end_length)));
  if (!b.flag(1)) kept = kept.substr(0, std::min(kept.rfind(' '), kept.size()));
  return text(std::string(kept) + end);
}

Value Filter::tojson() {
  const Bound b = bind({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = b.flag(0);
  style.sort_keys = b.flag(3);
  if (b.has(1)) {
    style.has_indent = true;
    style.item_separator = ",";
    if (b[1].is_string()) {
      style.indent = std::string(b[1].text());
    } else {
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(b.integer(in_, 1, 0), 0, 100)), ' ');
    }
  }
  if (b.has(2)) {
    std::vector<Value> pair;
    if (!in_.iterate(b[2], pair)) return {};
    if (pair.size() != 2) return in_.fail("separators must be two texts");
    style.item_separator = in_.to_str(pair[0]);
    style.key_separator = in_.to_str(pair[1]);
  }
  std::string out;
  std::string why;
  if (!append_json(out, input_, style, why)) return in_.fail("{}", why);
  return text(std::move(out));
}

Value Filter::run() {
  const std::string_view n = name_;
  if (n == "trim") {
    const Bound b = bind({"chars"});
    const std::string t = input_text();
    const std::string characters = b.text(in_, 0, "");
    return text(std::string(b.has(0) ? strip(t, true, true, characters) : strip(t, true, true)));
  }
  if (n == "tojson") return tojson();
  if (n == "join") return join();
  if (n == "length" || n == "count") return length();
  if (n == "default" || n == "d") {
    const Bound b = bind({"default_value", "boolean"});
    const bool use = input_.is_undefined() || (b.flag(1) && !truthy(input_));
    if (!use) return input_;
    return b.given(0) ? b[0] : text("");
  }
  if (n == "map") return map();
  if (n == "select") return select(true, false);
  if (n == "reject") return select(false, false);
  if (n == "selectattr") return select(true, true);
  if (n == "rejectattr") return select(false, true);
  if (n == "upper") return text(upper(input_text()));
  if (n == "lower") return text(lower(input_text()));
  if (n == "capitalize") return text(capitalize(input_text()));
  if (n == "title") return text(jinja_title(input_text()));
  if (n == "string") return input_.is_string() ? input_ : text(input_text());
  if (n == "safe") return in_.string(input_text(), true);
  if (n == "escape" || n == "e") return input_.is_markup() ? input_ : in_.string(escape_html(input_text()), true);
  if (n == "forceescape") return in_.string(escape_html(input_text()), true);
  if (n == "replace") {
    const Bound b = bind({"old", "new", "count"});
    if (!b.given(0) || !b.given(1)) return in_.fail("replace requires two texts");
    const std::string from = b.text(in_, 0, "");
    const std::string to = b.text(in_, 1, "");
    return text(replace(input_text(), from, to, b.integer(in_, 2, -1)));
  }
  if (n == "first" || n == "last") {
    if (n == "last" && input_.is(Kind::kGenerator)) return in_.fail("'generator' object is not reversible");
    const std::vector<Value> all = items();
    if (in_.failed()) return {};
    if (all.empty()) return in_.heap().undefined(format("No {} item, sequence was empty.", n));
    return n == "first" ? all.front() : all.back();
  }
  if (n == "list") return in_.heap().list(items());
  if (n == "items") {
    if (input_.is_undefined()) return in_.heap().list({}, Kind::kGenerator);
    if (!input_.is(Kind::kDict)) return in_.fail("Can only get item pairs from a mapping.");
    std::vector<Value> pairs;
    for (const auto& [key, value] : input_.ref().members) pairs.push_back(in_.heap().list({key, value}, Kind::kTuple));
    return in_.heap().list(std::move(pairs), Kind::kGenerator);
  }
  if (n == "dictsort") return dictsort();
  if (n == "sort") return sort();
  if (n == "unique") return unique();
  if (n == "groupby") return groupby();
  if (n == "batch") return batch();
  if (n == "slice") return slices();
  if (n == "urlencode") return urlencode();
  if (n == "min") return extreme(false);
  if (n == "max") return extreme(true);
  if (n == "sum") return sum();
  if (n == "reverse") return reverse();
  if (n == "abs") {
    if (input_.is_undefined()) return in_.undefined_error(input_);
    if (!input_.is_number()) return in_.fail("bad operand type for abs(): '{}'", type_name(input_));
    if (input_.is(Kind::kFloat)) return Value::real(std::abs(input_.as_float()));
    if (input_.as_int() == INT64_MIN) return in_.fail("integer overflow");
    return Value::integer(std::abs(input_.as_int()));
  }
  if (n == "round") return round();
  if (n == "int") return to_int();
  if (n == "float") return to_float();
  if (n == "indent") return indent();
  if (n == "truncate") return truncate();
  if (n == "format") {
    if (!arguments_.named.empty())
      return in_.fail_with(StatusCode::kUnsupported, "format with named arguments is not supported");
    return in_.binary(Op::kMod, text(input_text()), in_.heap().list(arguments_.positional, Kind::kTuple));
  }
  if (n == "attr") {
    const Bound b = bind({"name"});
    if (!b.given(0)) return in_.fail("attr requires a name");
    // Attributes only, never items.
    if (input_.is(Kind::kDict)) return in_.heap().undefined(format("'dict object' has no attribute '{}'", b.text(in_, 0, "")));
    return in_.get_attribute(input_, b.text(in_, 0, ""));
  }
  if (n == "wordcount") {
    int64_t words = 0;
    bool in_word = false;
    const std::string t = input_text();
    for (size_t i = 0; i < t.size();) {
      const bool is_word = is_word_character(utf8_decode_valid(t, i));
      words += is_word && !in_word;
      in_word = is_word;
    }
    return Value::integer(words);
  }
  if (n == "center") {
    const Bound b = bind({"width"});
    Arguments width;
    width.positional.push_back(Value::integer(b.integer(in_, 0, 80)));
    return in_.call_method(text(input_text()), "center", width);
  }
  return in_.fail_with(StatusCode::kUnsupported, format("filter '{}' is not supported", n));
}

}  // namespace

Value Interpreter::apply_filter(std::string_view name, const Value& input, const Arguments& arguments) {
  Nest nest(*this);
  if (!nest.ok || !step()) return {};
  Value v = Filter(*this, name, input, arguments).run();
  return failed() ? Value() : v;
}

}  // namespace pointsman::jinja
