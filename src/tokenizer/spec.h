// SPDX-License-Identifier: Apache-2.0
//
// Reading the small sections of tokenizer.json (normalizer, pre_tokenizer, post_processor, decoder) from their Json.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "pointsman/status.h"

namespace pointsman::spec {

// The "type" of a component; kCorrupt when it has none.
inline Result<std::string> type_of(const Json& component, std::string_view what) {
  const Json* type = component.find("type");
  if (type == nullptr || !type->is_string()) return error(StatusCode::kCorrupt, "tokenizer.json: {} without a \"type\"", what);
  return type->as_string();
}

inline Result<bool> get_bool(const Json& component, std::string_view key, bool otherwise) {
  const Json* v = component.find(key);
  if (v == nullptr || v->is_null()) return otherwise;
  if (!v->is_bool())
    return error(StatusCode::kCorrupt, "tokenizer.json: \"{}\" is a {}, not true or false", key, v->type_name());
  return v->as_bool();
}

inline Result<std::string> get_string(const Json& component, std::string_view key) {
  const Json* v = component.find(key);
  if (v == nullptr || !v->is_string()) return error(StatusCode::kCorrupt, "tokenizer.json: no string \"{}\"", key);
  return v->as_string();
}

inline Result<int64_t> get_count(const Json& component, std::string_view key) {
  const Json* v = component.find(key);
  if (v == nullptr || !v->is_int() || v->as_int() < 0)
    return error(StatusCode::kCorrupt, "tokenizer.json: no count \"{}\"", key);
  return v->as_int();
}

inline Result<const Json::Array*> get_array(const Json& component, std::string_view key) {
  const Json* v = component.find(key);
  if (v == nullptr || !v->is_array()) return error(StatusCode::kCorrupt, "tokenizer.json: no list \"{}\"", key);
  return &v->as_array();
}

// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  bool is_regex = false;
  std::string text;
};
inline Result<Pattern> get_pattern(const Json& component) {
  const Json* v = component.find("pattern");
  if (v != nullptr) {
    if (const Json* text = v->find("String"); text != nullptr && text->is_string()) return Pattern{false, text->as_string()};
    if (const Json* text = v->find("Regex"); text != nullptr && text->is_string()) return Pattern{true, text->as_string()};
  }
  return error(StatusCode::kCorrupt, "tokenizer.json: a \"pattern\" that is neither String nor Regex");
}

}  // namespace pointsman::spec
