// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_set>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace pointsman {
namespace {

// Builds a Json bottom-up from nlohmann's SAX events, so that depth and duplicate keys are checked as they are met.
class Builder {
 public:
  using number_integer_t = nlohmann::json::number_integer_t;
  using number_unsigned_t = nlohmann::json::number_unsigned_t;
  using number_float_t = nlohmann::json::number_float_t;
  using string_t = nlohmann::json::string_t;
  using binary_t = nlohmann::json::binary_t;

  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  bool null() { return add(Json()); }
  bool boolean(bool v) { return add(Json(v)); }
  bool number_integer(number_integer_t v) { return add(Json(int64_t{v})); }
  bool number_unsigned(number_unsigned_t v) { return add(Json(uint64_t{v})); }
  bool number_float(number_float_t v, const string_t&) { return add(Json(v)); }
  bool string(string_t& v) { return add(Json(std::move(v))); }
  bool binary(binary_t&) { return false; }

  bool start_object(std::size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool key(string_t& k) {
    Frame& top = stack_.back();
    // Small objects are searched, large ones (vocabularies) get an index.
    Json::Object& members = top.value.as_object();
    bool fresh;
    if (members.size() < 16) {
      fresh = top.value.find(k) == nullptr;
    } else {
      if (top.keys.empty()) {
        for (const auto& m : members) top.keys.insert(m.first);
      }
      fresh = top.keys.insert(k).second;
    }
    if (!fresh) {
      reason_ = format("duplicate key \"{}\"", k);
      return false;
    }
    top.key = std::move(k);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) {
    if (reason_.empty()) {
      const std::string_view what = e.what();
      const size_t colon = what.find(": ");
      reason_ = format("{} (byte {})", colon == std::string_view::npos ? what : what.substr(colon + 2), position);
    }
    return false;
  }

  const std::string& reason() const { return reason_; }
  Json take() { return std::move(root_); }

 private:
  struct Frame {
    Json value;
    std::string key;
    std::unordered_set<std::string> keys;
  };
  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      reason_ = format("nested deeper than {} levels", max_depth_);
      return false;
    }
    stack_.push_back({std::move(container), {}, {}});
    return true;
  }
  bool close() {
    Json done = std::move(stack_.back().value);
    stack_.pop_back();
    return add(std::move(done));
  }
  bool add(Json v) {
    if (stack_.empty()) {
      root_ = std::move(v);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.as_array().push_back(std::move(v));
    } else {
      stack_.back().value.as_object().emplace_back(std::move(stack_.back().key), std::move(v));
    }
    return true;
  }

  int max_depth_;
  std::vector<Frame> stack_;
  Json root_;
  std::string reason_;
};

void append_double(std::string& out, double v) {
  if (std::isnan(v)) {
    out += "NaN";
  } else if (std::isinf(v)) {
    out += v < 0 ? "-Infinity" : "Infinity";
  } else {
    char buffer[32];
    const auto [end, ec] = std::to_chars(buffer, buffer + sizeof buffer, v);
    const std::string_view text(buffer, static_cast<size_t>(end - buffer));
    out += text;
    if (text.find_first_of(".en") == std::string_view::npos) out += ".0";
  }
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\r': out += "\\r"; break;
      case '\t': out += "\\t"; break;
      case '\b': out += "\\b"; break;
      case '\f': out += "\\f"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += format("\\u{:04x}", static_cast<unsigned>(static_cast<unsigned char>(c)));
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void append(std::string& out, const Json& v, int indent, int depth) {
  const auto newline = [&](int d) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent * d), ' ');
  };
  if (v.is_null()) {
    out += "null";
  } else if (v.is_bool()) {
    out += v.as_bool() ? "true" : "false";
  } else if (v.is_int()) {
    out += std::to_string(v.as_int());
  } else if (v.is_double()) {
    append_double(out, v.as_double());
  } else if (v.is_string()) {
    append_quoted(out, v.as_string());
  } else if (v.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& item : v.as_array()) {
      if (!first) out += indent < 0 ? ", " : ",";
      first = false;
      newline(depth + 1);
      append(out, item, indent, depth + 1);
    }
    if (!first) newline(depth);
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : v.as_object()) {
      if (!first) out += indent < 0 ? ", " : ",";
      first = false;
      newline(depth + 1);
      append_quoted(out, key);
      out += ": ";
      append(out, item, indent, depth + 1);
    }
    if (!first) newline(depth);
    out += '}';
  }
}

}  // namespace

Json::Json(uint64_t v) {
  if (v <= static_cast<uint64_t>(INT64_MAX)) {
    value_ = static_cast<int64_t>(v);
  } else {
    value_ = static_cast<double>(v);
  }
}

const char* Json::type_name() const {
  static constexpr const char* kNames[] = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return kNames[value_.index()];
}

const Json* Json::find(std::string_view key) const {
  if (!is_object()) return nullptr;
  for (const auto& [k, v] : as_object()) {
    if (k == key) return &v;
  }
  return nullptr;
}

Json& Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  for (auto& [k, v] : as_object()) {
    if (k == key) return v = std::move(value);
  }
  return as_object().emplace_back(std::string(key), std::move(value)).second;
}

void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

std::string Json::dump(int indent) const {
  std::string out;
  append(out, *this, indent, 0);
  return out;
}

std::string json_quote(std::string_view text) {
  std::string out;
  append_quoted(out, text);
  return out;
}

Result<Json> parse_json(std::string_view text, JsonLimits limits) {
  Builder builder(limits.max_depth);
  try {
    if (nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) return builder.take();
  } catch (const std::exception& e) {
    return error(StatusCode::kCorrupt, "JSON: {}", e.what());
  }
  return error(StatusCode::kCorrupt, "JSON: {}", builder.reason().empty() ? "refused" : builder.reason());
}

}  // namespace pointsman
