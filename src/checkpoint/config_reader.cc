// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/config_reader.h"

#include <cmath>

namespace pointsman {

const Json* ConfigReader::find(std::initializer_list<std::string_view> keys, std::string* path) {
  const Json* nested = root_.find("text_config");
  for (const std::string_view key : keys) {
    for (const Json* object : {&root_, nested}) {
      if (object == nullptr) continue;
      const Json* value = object->find(key);
      if (value == nullptr) continue;
      seen_.insert(std::string(key));
      if (value->is_null()) continue;  // null means "not said"
      if (path != nullptr) *path = format("{}: {}{}", where_, object == nested ? "text_config." : "", key);
      return value;
    }
  }
  return nullptr;
}

int64_t ConfigReader::check_integer(const std::string& path, const Json& value, int64_t low, int64_t high) {
  // 4096.0 is an integer that went through a careless writer; 4096.5 is not.
  double d = 0;
  if (value.is_double()) d = value.as_double();
  const bool whole = value.is_int() || (value.is_double() && std::floor(d) == d && std::fabs(d) < 0x1p53);
  if (!whole) {
    fail(error(StatusCode::kCorrupt, "{}: expected an integer, found {} {}", path, value.type_name(), value.dump().substr(0, 80)));
    return low;
  }
  const int64_t v = value.is_int() ? value.as_int() : static_cast<int64_t>(d);
  if (v < low || v > high) {
    fail(error(StatusCode::kInvalidArgument, "{}: {} is out of range, expected {} to {}", path, v, low, high));
    return low;
  }
  return v;
}

double ConfigReader::check_number(const std::string& path, const Json& value, double low, double high) {
  if (!value.is_number()) {
    fail(error(StatusCode::kCorrupt, "{}: expected a number, found {} {}", path, value.type_name(), value.dump().substr(0, 80)));
    return low;
  }
  const double v = value.as_double();
  if (!(v >= low && v <= high)) {
    fail(error(StatusCode::kInvalidArgument, "{}: {} is out of range, expected {} to {}", path, v, low, high));
    return low;
  }
  return v;
}

int64_t ConfigReader::integer(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low, int64_t high) {
  std::string path;
  const Json* value = find(keys, &path);
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
  std::string path;
  const Json* value = find(keys, &path);
  const int64_t v = value != nullptr ? check_integer(path, *value, low, high) : fallback;
  record(name, std::to_string(v), value != nullptr ? path : std::string(origin));
  return v;
}

double ConfigReader::number_or(std::string_view name, std::initializer_list<std::string_view> keys, double low, double high, double fallback,
                               std::string_view origin) {
  std::string path;
  const Json* value = find(keys, &path);
  const double v = value != nullptr ? check_number(path, *value, low, high) : fallback;
  record(name, format("{}", v), value != nullptr ? path : std::string(origin));
  return v;
}

bool ConfigReader::boolean_or(std::string_view name, std::initializer_list<std::string_view> keys, bool fallback, std::string_view origin) {
  std::string path;
  const Json* value = find(keys, &path);
  bool v = fallback;
  if (value != nullptr) {
    if (value->is_bool()) {
      v = value->as_bool();
    } else {
      fail(error(StatusCode::kCorrupt, "{}: expected true or false, found {} {}", path, value->type_name(), value->dump().substr(0, 80)));
    }
  }
  record(name, v ? "true" : "false", value != nullptr ? path : std::string(origin));
  return v;
}

std::string ConfigReader::text_or(std::string_view name, std::initializer_list<std::string_view> keys, std::string fallback,
                                  std::string_view origin) {
  std::string path;
  const Json* value = find(keys, &path);
  std::string v = std::move(fallback);
  if (value != nullptr) {
    if (value->is_string()) {
      v = value->as_string();
    } else {
      fail(error(StatusCode::kCorrupt, "{}: expected a string, found {} {}", path, value->type_name(), value->dump().substr(0, 80)));
    }
  }
  record(name, v, value != nullptr ? path : std::string(origin));
  return v;
}

}  // namespace pointsman
