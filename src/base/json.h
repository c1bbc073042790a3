// SPDX-License-Identifier: Apache-2.0
//
// JSON values for configuration, lock files, templates and reports (nlohmann's parser inside; bulk safetensors headers use
// simdjson in checkpoint/). Strict: duplicate keys, trailing text, non-UTF-8 and nesting beyond a limit are errors with a
// position. Integers stay integers; objects keep the order of their keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "pointsman/status.h"

namespace pointsman {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;                                   // null
  Json(std::nullptr_t) {}                             // NOLINT: literals convert
  Json(bool v) : value_(v) {}                         // NOLINT
  Json(int v) : value_(int64_t{v}) {}                 // NOLINT
  Json(int64_t v) : value_(v) {}                      // NOLINT
  Json(uint64_t v);                                   // NOLINT; beyond int64 becomes a double
  Json(double v) : value_(v) {}                       // NOLINT
  Json(const char* v) : value_(std::string(v)) {}     // NOLINT
  Json(std::string v) : value_(std::move(v)) {}       // NOLINT
  Json(std::string_view v) : value_(std::string(v)) {}  // NOLINT
  Json(Array v) : value_(std::move(v)) {}             // NOLINT
  Json(Object v) : value_(std::move(v)) {}            // NOLINT
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_int() const { return std::holds_alternative<int64_t>(value_); }
  bool is_double() const { return std::holds_alternative<double>(value_); }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  const char* type_name() const;

  // REQUIRES: the matching is_...().
  bool as_bool() const { return std::get<bool>(value_); }
  int64_t as_int() const { return std::get<int64_t>(value_); }
  double as_double() const { return is_int() ? static_cast<double>(as_int()) : std::get<double>(value_); }
  const std::string& as_string() const { return std::get<std::string>(value_); }
  const Array& as_array() const { return std::get<Array>(value_); }
  Array& as_array() { return std::get<Array>(value_); }
  const Object& as_object() const { return std::get<Object>(value_); }
  Object& as_object() { return std::get<Object>(value_); }

  // The member of an object, or null when this is no object or has none.
  const Json* find(std::string_view key) const;
  // Adds or replaces a member; a null value becomes an object first.
  Json& set(std::string_view key, Json value);
  void push_back(Json value);

  // indent < 0: one line, ", " and ": " as Python's json.dumps writes them. Non-ASCII is written as it is.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json& a, const Json& b) { return a.value_ == b.value_; }

 private:
  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int max_depth = 64;
};

// kCorrupt with byte position and reason.
Result<Json> parse_json(std::string_view text, JsonLimits limits = {});

// `text` as a JSON string literal, quotes included.
std::string json_quote(std::string_view text);

}  // namespace pointsman
