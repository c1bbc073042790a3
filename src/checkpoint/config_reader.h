// SPDX-License-Identifier: Apache-2.0
//
// Range-checked access to config.json that writes down where each value came from. The first failure sticks: read everything, then
// look at status().
#pragma once

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/model_config.h"

namespace pointsman {

class ConfigReader {
 public:
  // `where`: "config.json"; `model_type` names the source of defaults.
  ConfigReader(const Json& root, std::string where, ModelConfig& out) : root_(root), where_(std::move(where)), out_(out) {}

  // The first of `keys` that is present and not null; null otherwise. Top level first, then inside text_config.
  const Json* find(std::initializer_list<std::string_view> keys, std::string* path = nullptr);

  // An integer in [low, high]; `fallback` when absent (required when absent and no fallback is given).
  int64_t integer(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low, int64_t high);
  int64_t integer_or(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low, int64_t high, int64_t fallback,
                     std::string_view origin);
  double number_or(std::string_view name, std::initializer_list<std::string_view> keys, double low, double high, double fallback,
                   std::string_view origin);
  bool boolean_or(std::string_view name, std::initializer_list<std::string_view> keys, bool fallback, std::string_view origin);
  std::string text_or(std::string_view name, std::initializer_list<std::string_view> keys, std::string fallback, std::string_view origin);

  // Values that were found elsewhere or computed.
  void record(std::string_view name, std::string value, std::string source) {
    out_.origins.push_back({std::string(name), std::move(value), std::move(source)});
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }
  const std::set<std::string, std::less<>>& seen_keys() const { return seen_; }

  // Helpers for nested objects: the value must be of that kind and range.
  int64_t check_integer(const std::string& path, const Json& value, int64_t low, int64_t high);
  double check_number(const std::string& path, const Json& value, double low, double high);

 private:
  const Json& root_;
  std::string where_;
  ModelConfig& out_;
  Status status_;
  std::set<std::string, std::less<>> seen_;
};

// Fills rope from rope_scaling / rope_parameters / rope_theta in all their spellings.
void read_rope(ConfigReader& reader, ModelConfig& config);

}  // namespace pointsman
