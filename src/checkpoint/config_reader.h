// SPDX-License-Identifier: Apache-2.0
//
// Range-checked access to config.json that writes down where each value came from. The first failure sticks: read everything,
// then look at status(). After a failure values are in range but mean nothing.
//
// A key is looked for at the top level, then inside text_config. null means "not said". Strict about types: 1 is no boolean and
// "32" no integer; 32.0 is the integer 32, as some writers print it.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "checkpoint/family.h"
#include "checkpoint/model_config.h"

namespace pointsman {

class ConfigReader {
 public:
  // `where`: "config.json"; `out` receives origins and warnings.
  ConfigReader(const Json& root, std::string where, ModelConfig& out);

  // The first of `keys` that is present and not null; null otherwise. `path` is set with it: "config.json:
  // text_config.hidden_size". A different value under the same key in text_config becomes a warning.
  const Json* find(std::initializer_list<std::string_view> keys, std::string* path = nullptr);
  // Present and null, and nothing said elsewhere.
  bool is_null(std::string_view key);

  // A value in [low, high]. `keys` are spellings of one thing: two of them with different values are refused.
  int64_t integer(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low,
                  int64_t high);  // must be there
  int64_t integer_or(std::string_view name, std::initializer_list<std::string_view> keys, int64_t low, int64_t high,
                     int64_t fallback, std::string_view origin);
  double number_or(std::string_view name, std::initializer_list<std::string_view> keys, double low, double high,
                   double fallback, std::string_view origin);
  bool boolean_or(std::string_view name, std::initializer_list<std::string_view> keys, bool fallback, std::string_view origin);
  std::string text_or(std::string_view name, std::initializer_list<std::string_view> keys, std::string fallback,
                      std::string_view origin);

  // Values that were found elsewhere or computed.
  void record(std::string_view name, std::string value, std::string source) {
    out_.origins.push_back({std::string(name), std::move(value), std::move(source)});
  }
  // The same text once.
  void warn(std::string text);
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  // For a value of the wrong type.
  void fail_type(const std::string& path, const Json& value, std::string_view expected);
  const Status& status() const { return status_; }
  const std::string& where() const { return where_; }
  // Keys at the top level, and "text_config.x", that nobody asked for and that are not in `harmless`.
  std::vector<std::string> unread_keys(const std::set<std::string_view>& harmless) const;

  // For values of nested objects and lists.
  int64_t check_integer(const std::string& path, const Json& value, int64_t low, int64_t high);
  double check_number(const std::string& path, const Json& value, double low, double high);
  bool check_boolean(const std::string& path, const Json& value);

 private:
  const Json* find_aliases(std::initializer_list<std::string_view> keys, std::string* path);
  std::string key_path(const Json* object, std::string_view key) const;

  const Json& root_;
  const Json* nested_;  // text_config, or null
  std::string where_;
  ModelConfig& out_;
  Status status_;
  std::set<std::string, std::less<>> seen_;
};

// Which layers slide (layer_config.cc) and which are sparse. REQUIRES: model_type and num_hidden_layers are read.
void read_layer_windows(ConfigReader& reader, const Family& family, ModelConfig& config);
void read_moe(ConfigReader& reader, const Family& family, ModelConfig& config);
// Fills rope from rope_scaling / rope_parameters / rope_theta in all their spellings, and rotary_dim. REQUIRES: windows and head_dim
// are read.
void read_rope(ConfigReader& reader, const Family& family, ModelConfig& config);
// Fills config.rope from one rope dictionary at `path`; `partial` is its partial_rotary_factor, when it has one.
void read_rope_dictionary(ConfigReader& reader, const Json& dictionary, const std::string& path, ModelConfig& config, double& partial);
// Everything that only deepseek_v4 has: kinds of layers, ropes, indexer, hyper-connections, router (deepseek_v4_config.cc).
// REQUIRES: sizes and read_moe() are read.
void read_deepseek_v4(ConfigReader& reader, const Family& family, ModelConfig& config);
// Latent attention of deepseek_v3 and kimi_k2; windows, ropes and SwiGLU of gpt_oss (latent_config.cc).
void read_latent_attention(ConfigReader& reader, const Family& family, ModelConfig& config);
void read_gpt_oss(ConfigReader& reader, const Family& family, ModelConfig& config);
// quantization_config: known methods and the block size.
void read_quantization(ConfigReader& reader, ModelConfig& config);
// eos, bos and pad: generation_config.json before config.json.
void read_token_ids(ConfigReader& reader, const Json& generation, ModelConfig& config);

// The text of a value for a message: one line, bounded.
std::string brief(const Json& value);

}  // namespace pointsman
