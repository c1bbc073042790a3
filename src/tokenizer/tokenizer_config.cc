// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer_config.h"

#include <algorithm>

#include "base/log.h"

namespace pointsman {
namespace {

constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kSpecialTokensFile = "special_tokens_map.json";
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kTemplateFolder = "additional_chat_templates";
constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMaxTemplateBytes = 1 << 20;
constexpr size_t kMaxTemplates = 32;

// "..." or {"content": "..."}; null and anything else leave it empty.
bool read_token(JsonReader& reader, std::optional<std::string>& out) {
  std::string text;
  if (reader.peek() == '"') {
    if (!reader.read_string(text)) return false;
    out = std::move(text);
    return true;
  }
  if (reader.peek() != '{') return reader.skip_value();
  reader.begin_object();
  std::string key;
  while (reader.next_key(key)) {
    if (key == "content" && reader.peek() == '"') {
      if (!reader.read_string(text)) return false;
      out = std::move(text);
    } else if (!reader.skip_value()) {
      return false;
    }
  }
  return !reader.failed();
}

bool read_flag(JsonReader& reader, bool& out) {
  out = reader.peek() == 't';
  return reader.skip_value();
}

bool read_templates(JsonReader& reader, TokenizerConfig& config) {
  std::string text;
  if (reader.peek() == '"') {
    if (!reader.read_string(text)) return false;
    config.chat_templates.emplace_back("default", std::move(text));
    return true;
  }
  if (reader.peek() != '[') return reader.skip_value();
  reader.begin_array();
  while (reader.next_element()) {
    std::string key;
    std::string name;
    std::string source;
    if (!reader.begin_object()) return false;
    while (reader.next_key(key)) {
      const bool wanted = (key == "name" || key == "template") && reader.peek() == '"';
      if (!(wanted ? reader.read_string(key == "name" ? name : source) : reader.skip_value())) return false;
    }
    if (config.chat_templates.size() >= kMaxTemplates) return reader.fail("too many chat templates");
    config.chat_templates.emplace_back(std::move(name), std::move(source));
  }
  return !reader.failed();
}

void set_template(TokenizerConfig& config, const std::string& name, std::string source) {
  for (auto& [known, text] : config.chat_templates) {
    if (known == name) {
      text = std::move(source);
      return;
    }
  }
  config.chat_templates.emplace_back(name, std::move(source));
}

}  // namespace

Result<TokenizerConfig> parse_tokenizer_config(ByteSource& source, bool with_templates) {
  TokenizerConfig config;
  JsonReader reader(source);
  std::string key;
  reader.begin_object();
  while (reader.next_key(key)) {
    if (key == "bos_token") {
      read_token(reader, config.bos_token);
    } else if (key == "eos_token") {
      read_token(reader, config.eos_token);
    } else if (key == "pad_token") {
      read_token(reader, config.pad_token);
    } else if (key == "unk_token") {
      read_token(reader, config.unk_token);
    } else if (key == "add_bos_token") {
      read_flag(reader, config.add_bos_token);
    } else if (key == "add_eos_token") {
      read_flag(reader, config.add_eos_token);
    } else if (key == "added_tokens_decoder") {
      config.lists_added_tokens = true;
      reader.skip_value();
    } else if (key == "chat_template" && with_templates) {
      read_templates(reader, config);
    } else {
      reader.skip_value();
    }
  }
  if (!reader.failed() && !reader.at_end()) reader.fail("text after the value");
  if (reader.failed()) return reader.status();
  return config;
}

namespace {

// Absent: an empty configuration.
Result<TokenizerConfig> load_file(FileSystem& fs, const std::string& model_dir, const char* name, bool with_templates) {
  const std::string path = join_path(model_dir, name);
  Result<std::unique_ptr<File>> file = fs.open(path);
  if (!file.ok()) {
    if (file.status().code() == StatusCode::kNotFound) return TokenizerConfig();
    return file.status();
  }
  PM_ASSIGN_OR_RETURN(const FileInfo info, (*file)->stat());
  if (!info.is_regular || info.size_bytes > kMaxConfigBytes) {
    return error(StatusCode::kUnsupported, "{}: no regular file of at most {} bytes", path, kMaxConfigBytes);
  }
  FileSource source(**file, info.size_bytes);
  Result<TokenizerConfig> parsed = parse_tokenizer_config(source, with_templates);
  if (!parsed.ok()) return parsed.status().with_context(path);
  return parsed;
}

}  // namespace

Result<TokenizerConfig> load_tokenizer_config(FileSystem& fs, const std::string& model_dir, bool with_templates) {
  PM_ASSIGN_OR_RETURN(TokenizerConfig config, load_file(fs, model_dir, kConfigFile, with_templates));
  if (!config.lists_added_tokens) {
    // Folders from before added_tokens_decoder: what this file says comes first, as in transformers.
    PM_ASSIGN_OR_RETURN(TokenizerConfig old, load_file(fs, model_dir, kSpecialTokensFile, false));
    if (old.bos_token) config.bos_token = std::move(old.bos_token);
    if (old.eos_token) config.eos_token = std::move(old.eos_token);
    if (old.pad_token) config.pad_token = std::move(old.pad_token);
    if (old.unk_token) config.unk_token = std::move(old.unk_token);
  }
  if (!with_templates) return config;

  Result<std::string> text = read_text_file(fs, join_path(model_dir, kTemplateFile), kMaxTemplateBytes);
  if (text.ok()) {
    set_template(config, "default", std::move(text).value());
  } else if (text.status().code() != StatusCode::kNotFound) {
    return text.status();
  }
  const std::string folder = join_path(model_dir, kTemplateFolder);
  Result<std::vector<std::string>> names = fs.list(folder);
  if (!names.ok()) return config;  // most models have no such folder
  for (const std::string& name : *names) {
    if (!name.ends_with(".jinja")) continue;
    if (config.chat_templates.size() >= kMaxTemplates) return error(StatusCode::kUnsupported, "{}: too many templates", folder);
    PM_ASSIGN_OR_RETURN(std::string more, read_text_file(fs, join_path(folder, name), kMaxTemplateBytes));
    set_template(config, name.substr(0, name.size() - 6), std::move(more));
  }
  return config;
}

}  // namespace pointsman
