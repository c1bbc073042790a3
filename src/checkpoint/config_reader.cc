// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config_reader.h"

#include <algorithm>
#include <cmath>

namespace pointsman {

std::string brief(const Json& value) {
  constexpr size_t kMaxText = 80;
  // Without printing a whole vocabulary to throw it away.
  if ((value.is_array() && value.as_array().size() > 64) || (value.is_object() && value.as_object().size() > 64)) {
    return format("({} with {} members)", value.type_name(),
                  value.is_array() ? value.as_array().size() : value.as_object().size());
  }
  const std::string text = value.is_string() && value.as_string().size() > kMaxText
                               ? json_quote(value.as_string().substr(0, kMaxText))
                               : value.dump();
  return text.size() > kMaxText ? text.substr(0, kMaxText) + "..." : text;
}

ConfigReader::ConfigReader(const Json& root, std::string where, ModelConfig& out)
    : root_(root), nested_(root.find("text_config")), where_(std::move(where)), out_(out) {
  if (nested_ == nullptr || nested_->is_null()) {
    nested_ = nullptr;
  } else if (!nested_->is_object()) {
    fail_type(key_path(&root_, "text_config"), *nested_, "an object");
  }
}

std::string ConfigReader::key_path(const Json* object, std::string_view key) const {
  return format("{}: {}{}", where_, object == nested_ ? "text_config." : "", key);
}

void ConfigReader::warn(std::string text) {
  if (std::find(out_.warnings.begin(), out_.warnings.end(), text) == out_.warnings.end())
    out_.warnings.push_back(std::move(text));
}

void ConfigReader::fail_type(const std::string& path, const Json& value, std::string_view expected) {
  fail(error(StatusCode::kCorrupt, "{}: expected {}, found {} {}", path, expected, value.type_name(), brief(value)));
}

const Json* ConfigReader::find(std::initializer_list<std::string_view> keys, std::string* path) {
  for (const std::string_view key : keys) {
    const Json* found = nullptr;
    for (const Json* object : {&root_, nested_}) {
      const Json* value = object == nullptr ? nullptr : object->find(key);
      if (value == nullptr) continue;
      seen_.insert(std::string(key));
      if (value->is_null()) continue;
      if (found == nullptr) {
        found = value;
        if (path != nullptr) *path = key_path(object, key);
      } else if (!(*found == *value)) {
        warn(format("{} is {}, text_config says {}; the former is used", key_path(&root_, key), brief(*found), brief(*value)));
      }
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

const Json* ConfigReader::find_aliases(std::initializer_list<std::string_view> keys, std::string* path) {
  const Json* first = find(keys, path);
  for (const std::string_view key : keys) {
    std::string other_path;
    const Json* other = first == nullptr ? nullptr : find({key}, &other_path);
    if (other != nullptr && other != first && !(*other == *first)) {
      fail(error(StatusCode::kInvalidArgument, "{} is {}, but {} is {}: two names of one thing; keep one", *path, brief(*first),
                 other_path, brief(*other)));
    }
  }
  return first;
}

bool ConfigReader::is_null(std::string_view key) {
  if (find({key}) != nullptr) return false;
  return root_.find(key) != nullptr || (nested_ != nullptr && nested_->find(key) != nullptr);
}

int64_t ConfigReader::check_integer(const std::string& path, const Json& value, int64_t low, int64_t high) {
  const double d = value.is_double() ? value.as_double() : 0;
  const bool is_whole = value.is_int() || (value.is_double() && std::floor(d) == d);
  if (!is_whole) {
    fail_type(path, value, "an integer");
    return low;
  }
  // Beyond 2^53 a double is no longer the number that was written, and far out of any range here.
  const bool fits = value.is_int() || std::fabs(d) < 0x1p53;
  const int64_t v = value.is_int() ? value.as_int() : fits ? static_cast<int64_t>(d) : 0;
  if (!fits || v < low || v > high) {
    fail(error(StatusCode::kInvalidArgument, "{}: {} is out of range, expected {} to {}", path, brief(value), low, high));
    return low;
  }
  return v;
}

double ConfigReader::check_number(const std::string& path, const Json& value, double low, double high) {
  if (!value.is_number()) {
    fail_type(path, value, "a number");
    return low;
  }
  const double v = value.as_double();
  if (!(v >= low && v <= high)) {
    fail(error(StatusCode::kInvalidArgument, "{}: {} is out of range, expected {} to {}", path, brief(value), low, high));
    return low;
  }
  return v;
}

bool ConfigReader::check_boolean(const std::string& path, const Json& value) {
  if (!value.is_bool()) {
    fail_type(path, value, "true or false");
    return false;
  }
  return value.as_bool();
}

int64_t ConfigReader::integer(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low, int64_t high) {
  std::string path;
  const Json* value = find_aliases(keys, &path);
  if (value == nullptr) {
    fail(error(StatusCode::kCorrupt, "{}: key \"{}\" is missing", where_, *keys.begin()));
    return low;
  }
  const int64_t v = check_integer(path, *value, low, high);
  record(name, std::to_string(v), path);
  return v;
}

int64_t ConfigReader::integer_or(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low, int64_t high,
                                 int64_t fallback, std::string_view origin) {
  std::string path(origin);
  const Json* value = find_aliases(keys, &path);
  const int64_t v = value != nullptr ? check_integer(path, *value, low, high) : fallback;
  record(name, std::to_string(v), path);
  return v;
}

double ConfigReader::number_or(std::string_view name, std::initializer_list<std::string_view> keys, double low, double high,
                               double fallback, std::string_view origin) {
  std::string path(origin);
  const Json* value = find_aliases(keys, &path);
  const double v = value != nullptr ? check_number(path, *value, low, high) : fallback;
  record(name, format("{}", v), path);
  return v;
}

bool ConfigReader::boolean_or(std::string_view name, std::initializer_list<std::string_view> keys, bool fallback,
                              std::string_view origin) {
  std::string path(origin);
  const Json* value = find_aliases(keys, &path);
  const bool v = value != nullptr ? check_boolean(path, *value) : fallback;
  record(name, v ? "true" : "false", path);
  return v;
}

std::string ConfigReader::text_or(std::string_view name, std::initializer_list<std::string_view> keys, std::string fallback,
                                  std::string_view origin) {
  std::string path(origin);
  const Json* value = find(keys, &path);
  std::string v = std::move(fallback);
  if (value != nullptr) {
    if (value->is_string()) {
      v = value->as_string();
    } else {
      fail_type(path, *value, "a string");
    }
  }
  record(name, v, path);
  return v;
}

std::vector<std::string> ConfigReader::unread_keys(const std::set<std::string_view>& harmless) const {
  std::vector<std::string> unread;
  for (const Json* object : {&root_, nested_}) {
    if (object == nullptr || !object->is_object()) continue;
    for (const auto& [key, value] : object->as_object()) {
      if (seen_.count(key) == 0 && harmless.count(key) == 0) unread.push_back(object == nested_ ? "text_config." + key : key);
    }
  }
  return unread;
}

}  // namespace pointsman
