// SPDX-License-Identifier: Apache-2.0
//
// tokenizer.json -> Tokenizer. The file is visited twice: the first pass checks it, counts, and notes where the large sections
// are; then every table is allocated once, at its final size, and filled by the second.
#include <algorithm>
#include <optional>

#include "base/json.h"
#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/json_reader.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

constexpr const char* kFile = "tokenizer.json";
constexpr uint64_t kMaxFileBytes = uint64_t{512} << 20;
constexpr uint64_t kMaxSectionBytes = 64 << 10;
constexpr size_t kMaxAddedTokens = 65536;
// A longer content would make the search for added tokens slow.
constexpr size_t kMaxAddedBytes = 512;
constexpr uint64_t kNowhere = UINT64_MAX;

// What is held beside tables by token and merge: word cache, read buffer, compiled patterns, one section as a tree.
constexpr uint64_t kFixedBytes = uint64_t{3} << 20;

}  // namespace

class TokenizerLoader {
 public:
  TokenizerLoader(ByteSource& source, const TokenizerConfig& config) : reader_(source), config_(config), size_(source.size()) {}

  Result<std::unique_ptr<Tokenizer>> run() {
    PM_RETURN_IF_ERROR(scan());
    PM_RETURN_IF_ERROR(check_model());
    PM_RETURN_IF_ERROR(parse_sections());
    PM_RETURN_IF_ERROR(read_added_tokens());
    PM_RETURN_IF_ERROR(read_vocabulary());
    PM_RETURN_IF_ERROR(place_added_tokens());
    PM_RETURN_IF_ERROR(read_merges());
    PM_RETURN_IF_ERROR(finish());
    return std::move(t_);
  }

 private:
  struct Section {
    const char* key;
    std::string text;
    bool seen = false;
  };

  Status problem(StatusCode code, std::string_view what) const { return error(code, "{}: {}", kFile, what); }
  Status reader_status() const { return reader_.status().with_context(kFile); }

  Status scan() {
    std::string key;
    bool model_seen = false;
    reader_.begin_object();
    while (reader_.next_key(key)) {
      auto section = std::find_if(sections_.begin(), sections_.end(), [&](const Section& s) { return key == s.key; });
      if (section != sections_.end()) {
        if (std::exchange(section->seen, true)) reader_.fail(format("a second \"{}\"", key));
        reader_.read_raw(section->text, kMaxSectionBytes);
      } else if (key == "added_tokens" && reader_.peek() == '[') {
        if (added_at_ != kNowhere) reader_.fail("a second \"added_tokens\"");
        added_at_ = reader_.offset();
        reader_.begin_array();
        while (reader_.next_element() && reader_.skip_value()) ++num_added_;
      } else if (key == "model") {
        if (std::exchange(model_seen, true)) reader_.fail("a second \"model\"");
        scan_model();
      } else {
        reader_.skip_value();
      }
    }
    if (!reader_.failed() && !reader_.at_end()) reader_.fail("text after the value");
    if (reader_.failed()) return reader_status();
    if (!model_seen) return problem(StatusCode::kCorrupt, "no \"model\"");
    return ok_status();
  }

  void scan_model() {
    std::string key;
    std::vector<std::string> seen;
    reader_.begin_object();
    while (reader_.next_key(key)) {
      if (std::find(seen.begin(), seen.end(), key) != seen.end()) reader_.fail(format("a second \"{}\"", key));
      if (seen.size() > 64) reader_.fail("a model with more than 64 members");
      seen.push_back(key);
      const char first = reader_.peek();
      if (key == "type" && first == '"') {
        reader_.read_string(type_);
      } else if (key == "vocab" && first == '{') {
        vocab_at_ = reader_.offset();
        count_vocabulary();
      } else if (key == "merges" && first == '[') {
        merges_at_ = reader_.offset();
        reader_.begin_array();
        while (reader_.next_element() && reader_.skip_value()) ++num_merges_;
      } else if (key == "unk_token" && first == '"') {
        std::string token;
        reader_.read_string(token);
        unk_token_ = std::move(token);
      } else if (key == "continuing_subword_prefix" && first == '"') {
        reader_.read_string(prefix_);
      } else if (key == "end_of_word_suffix" && first == '"') {
        reader_.read_string(suffix_);
      } else if (key == "fuse_unk") {
        options_.fuse_unk = first == 't';
        reader_.skip_value();
      } else if (key == "byte_fallback") {
        options_.byte_fallback = first == 't';
        reader_.skip_value();
      } else if (key == "ignore_merges") {
        options_.ignore_merges = first == 't';
        reader_.skip_value();
      } else if (key == "dropout" && first != 'n') {
        std::string number;
        reader_.read_raw(number, 64);
        dropout_ = number.find_first_of("123456789") != std::string::npos;
      } else {
        reader_.skip_value();
      }
    }
  }

  void count_vocabulary() {
    std::string token;
    int64_t id = 0;
    reader_.begin_object();
    while (reader_.next_key(token) && reader_.read_int(id)) {
      ++num_tokens_;
      text_bytes_ += token.size();
      max_id_ = std::max(max_id_, id);
      if (id < 0 || id >= INT32_MAX) reader_.fail(format("token id {}", id));
    }
  }

  Status check_model() const {
    const bool looks_like_bpe = vocab_at_ != kNowhere && merges_at_ != kNowhere;
    if (type_ != "BPE" && !(type_.empty() && looks_like_bpe)) {
      return problem(StatusCode::kUnsupported, format("model \"{}\" is not supported, only BPE", type_));
    }
    if (!looks_like_bpe) return problem(StatusCode::kCorrupt, "a BPE model without vocab or merges");
    if (!prefix_.empty()) return problem(StatusCode::kUnsupported, "continuing_subword_prefix is not supported");
    if (!suffix_.empty()) return problem(StatusCode::kUnsupported, "end_of_word_suffix is not supported");
    if (dropout_) return problem(StatusCode::kUnsupported, "dropout is not supported");
    if (num_added_ > kMaxAddedTokens) return problem(StatusCode::kUnsupported, format("{} added tokens", num_added_));
    // The promise of load_peak_bytes().
    const uint64_t tables =
        text_bytes_ + num_tokens_ * 20 + static_cast<uint64_t>(max_id_ + 1) * 8 + num_merges_ * 26 + num_added_ * 400;
    if (tables + kFixedBytes > Tokenizer::load_peak_bytes(size_)) {
      return problem(StatusCode::kUnsupported,
                     format("{} tokens and {} merges in {} bytes: denser than any tokenizer", num_tokens_, num_merges_, size_));
    }
    return ok_status();
  }

  Status parse_section(size_t index, std::optional<Json>& out) {
    if (sections_[index].text.empty()) return ok_status();
    Result<Json> parsed = parse_json(sections_[index].text);
    if (!parsed.ok()) return parsed.status().with_context(format("{}: {}", kFile, sections_[index].key));
    out = std::move(parsed).value();
    sections_[index].text = {};
    return ok_status();
  }

  Status parse_sections() {
    // One tree at a time.
    for (size_t i = 0; i < sections_.size(); ++i) {
      std::optional<Json> tree;
      PM_RETURN_IF_ERROR(parse_section(i, tree));
      const Json* section = tree ? &*tree : nullptr;
      switch (i) {
        case 0: {
          PM_ASSIGN_OR_RETURN(t_->normalizer_, Normalizer::parse(section));
          break;
        }
        case 1: {
          PM_ASSIGN_OR_RETURN(t_->pre_tokenizer_, PreTokenizer::parse(section));
          break;
        }
        case 2: {
          PM_ASSIGN_OR_RETURN(t_->post_processor_, PostProcessor::parse(section));
          break;
        }
        default: {
          PM_ASSIGN_OR_RETURN(t_->decoder_, Decoder::parse(section));
        }
      }
    }
    t_->byte_level_ = options_.byte_level = t_->pre_tokenizer_.ends_in_byte_level();
    return ok_status();
  }

  Status read_added_tokens() {
    if (added_at_ == kNowhere) return ok_status();
    std::vector<AddedToken>& tokens = t_->added_tokens_;
    tokens.reserve(num_added_);
    reader_.seek(added_at_);
    reader_.begin_array();
    std::string key;
    while (reader_.next_element()) {
      AddedToken token;
      token.normalized = true;  // the library's default: not special
      std::optional<bool> normalized;
      int64_t id = -1;
      if (!reader_.begin_object()) break;
      while (reader_.next_key(key)) {
        const bool yes = reader_.peek() == 't';
        if (key == "id") {
          reader_.read_int(id);
        } else if (key == "content") {
          reader_.read_string(token.content);
        } else {
          if (key == "special") token.special = yes;
          if (key == "normalized") normalized = yes;
          if (key == "lstrip") token.lstrip = yes;
          if (key == "rstrip") token.rstrip = yes;
          if (key == "single_word") token.single_word = yes;
          reader_.skip_value();
        }
      }
      if (reader_.failed()) break;
      token.normalized = normalized.value_or(!token.special);
      if (id < 0 || id >= INT32_MAX) reader_.fail(format("id {} of added token \"{}\"", id, token.content));
      if (token.content.size() > kMaxAddedBytes) reader_.fail("an added token of more than 512 bytes");
      token.id = static_cast<int32_t>(id);
      if (token.content.empty()) continue;  // the library passes over them
      token.content.shrink_to_fit();
      max_id_ = std::max(max_id_, id);
      text_bytes_ += token.content.size() * (token.normalized ? 4 : 1);
      tokens.push_back(std::move(token));
    }
    if (reader_.failed()) return reader_status();
    return ok_status();
  }

  Status add_token(int32_t id, std::string_view text, bool in_model) {
    if (!t_->byte_level_) return t_->vocabulary_.add(id, text, false, in_model);
    if (alphabet_to_bytes(text, bytes_)) return t_->vocabulary_.add(id, bytes_, false, in_model);
    return t_->vocabulary_.add(id, text, true, in_model);
  }

  Status read_vocabulary() {
    if (max_id_ < 0) return problem(StatusCode::kCorrupt, "no tokens");
    PM_RETURN_IF_ERROR(t_->vocabulary_.reserve(num_tokens_ + t_->added_tokens_.size(), text_bytes_, max_id_));
    reader_.seek(vocab_at_);
    reader_.begin_object();
    std::string token;
    int64_t id = 0;
    uint64_t count = 0;
    while (reader_.next_key(token) && reader_.read_int(id)) {
      // The bounds of the first pass hold again: the file may have changed between the two.
      if (++count > num_tokens_ || id < 0 || id > max_id_) reader_.fail("the file changed while it was read");
      if (reader_.failed()) break;
      if (Status s = add_token(static_cast<int32_t>(id), token, true); !s.ok())
        return s.with_context(format("{}: vocab", kFile));
    }
    if (reader_.failed()) return reader_status();
    return ok_status();
  }

  Status place_added_tokens() {
    Tokenizer& t = *t_;
    t.is_special_.assign(static_cast<size_t>(t.vocabulary_.num_ids()), false);
    std::vector<bool> placed(t.is_special_.size(), false);
    std::vector<TokenMatcher::Pattern> raw;
    std::vector<TokenMatcher::Pattern> normalized;
    RegexMatcher matcher;
    for (const AddedToken& token : t.added_tokens_) {
      const auto i = static_cast<size_t>(token.id);
      const int32_t in_model = t.find_in_model(token.content);
      if (in_model >= 0 && in_model != token.id) {
        return problem(StatusCode::kCorrupt,
                       format("added token \"{}\" has the id {}, but {} in the vocabulary", token.content, token.id, in_model));
      }
      if (placed[i]) return problem(StatusCode::kCorrupt, format("two added tokens have the id {}", token.id));
      placed[i] = true;
      if (token.special) t.is_special_[i] = true;
      std::string text = token.content;
      if (token.normalized) {
        bool at_start = true;
        PM_RETURN_IF_ERROR(t.normalizer_.apply(text, at_start, matcher));
        if (text.size() > kMaxAddedBytes * 4) return problem(StatusCode::kUnsupported, "an added token grows when normalised");
        text.shrink_to_fit();
      }
      if (in_model < 0) {
        // A normalised token also decodes to its normalised content, as in the library.
        if (Status s = add_token(token.id, text, false); !s.ok()) return s.with_context(format("{}: added_tokens", kFile));
      }
      (token.normalized ? normalized : raw).push_back({std::move(text), &token});
    }
    // Of equal contents, special tokens come first, as in the library.
    const auto special_first = [](const TokenMatcher::Pattern& a, const TokenMatcher::Pattern& b) {
      return a.token->special && !b.token->special;
    };
    std::stable_sort(raw.begin(), raw.end(), special_first);
    std::stable_sort(normalized.begin(), normalized.end(), special_first);
    t.raw_matcher_.build(std::move(raw));
    t.normalized_matcher_.build(std::move(normalized));
    return ok_status();
  }

  Status read_merges() {
    t_->bpe_.reserve(num_merges_);
    reader_.seek(merges_at_);
    reader_.begin_array();
    std::string left;
    std::string right;
    uint64_t count = 0;
    uint32_t rank = 0;
    while (reader_.next_element()) {
      if (++count > num_merges_) reader_.fail("the file changed while it was read");
      if (reader_.peek() == '[') {
        reader_.begin_array();
        bool pair = reader_.next_element() && reader_.read_string(left) && reader_.next_element() && reader_.read_string(right);
        pair = pair && !reader_.next_element();
        if (!pair) reader_.fail(format("merge {} is not a pair of tokens", count - 1));
      } else if (reader_.read_string(left)) {
        if (left.starts_with("#version")) continue;
        const size_t space = left.find(' ');
        if (space == std::string::npos || left.find(' ', space + 1) != std::string::npos) {
          reader_.fail(format("merge {} is not two tokens with a space between", count - 1));
        } else {
          right = left.substr(space + 1);
          left.resize(space);
        }
      }
      if (reader_.failed()) break;
      const int32_t left_id = t_->find_in_model(left);
      const int32_t right_id = t_->find_in_model(right);
      left += right;
      const int32_t product = t_->find_in_model(left);
      if (left_id < 0 || right_id < 0 || product < 0) {
        return problem(StatusCode::kCorrupt, format("merge {} makes \"{}\" with \"{}\": not all of them are in the vocabulary",
                                                    count - 1, left, right));
      }
      if (Status s = t_->bpe_.add_merge(left_id, right_id, rank++, product); !s.ok()) return s.with_context(kFile);
    }
    if (reader_.failed()) return reader_status();
    return ok_status();
  }

  Status finish() {
    Tokenizer& t = *t_;
    if (unk_token_) {
      options_.unk_id = t.find_in_model(*unk_token_);
      if (options_.unk_id < 0)
        return problem(StatusCode::kCorrupt, format("unk_token \"{}\" is not in the vocabulary", *unk_token_));
    }
    t.bpe_.finish(t.vocabulary_, options_);
    for (const int32_t id : t.post_processor_.added_ids()) {
      if (!t.contains(id)) return problem(StatusCode::kCorrupt, format("the template adds {}, which is no token", id));
    }
    const auto resolve = [&](const std::optional<std::string>& token, std::optional<int32_t>& id) {
      if (!token) return;
      const int32_t found = t.find(*token);
      if (found >= 0) id = found;
    };
    resolve(config_.bos_token, t.special_tokens_.bos);
    resolve(config_.eos_token, t.special_tokens_.eos);
    resolve(config_.pad_token, t.special_tokens_.pad);
    resolve(config_.unk_token, t.special_tokens_.unk);
    if (!t.special_tokens_.unk && options_.unk_id >= 0) t.special_tokens_.unk = options_.unk_id;
    t.add_bos_ = config_.add_bos_token;
    t.add_eos_ = config_.add_eos_token;
    return ok_status();
  }

  JsonReader reader_;
  const TokenizerConfig& config_;
  uint64_t size_;
  std::unique_ptr<Tokenizer> t_{new Tokenizer()};
  std::vector<Section> sections_{{"normalizer", {}}, {"pre_tokenizer", {}}, {"post_processor", {}}, {"decoder", {}}};
  std::string bytes_;

  uint64_t added_at_ = kNowhere;
  uint64_t vocab_at_ = kNowhere;
  uint64_t merges_at_ = kNowhere;
  uint64_t num_added_ = 0;
  uint64_t num_tokens_ = 0;
  uint64_t num_merges_ = 0;
  uint64_t text_bytes_ = 0;
  int64_t max_id_ = -1;
  std::string type_;
  std::optional<std::string> unk_token_;
  std::string prefix_;
  std::string suffix_;
  bool dropout_ = false;
  BpeOptions options_;
};

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(FileSystem& fs, const std::string& model_dir) {
  PM_ASSIGN_OR_RETURN(const TokenizerConfig config, load_tokenizer_config(fs, model_dir, false));
  const std::string path = join_path(model_dir, kFile);
  PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.open(path));
  PM_ASSIGN_OR_RETURN(const FileInfo info, file->stat());
  if (!info.is_regular || info.size_bytes > kMaxFileBytes) {
    return error(StatusCode::kUnsupported, "{}: no regular file of at most {} bytes", path, kMaxFileBytes);
  }
  FileSource source(*file, info.size_bytes);
  Result<std::unique_ptr<Tokenizer>> tokenizer = TokenizerLoader(source, config).run();
  if (!tokenizer.ok()) return tokenizer.status().with_context(model_dir);
  return tokenizer;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_text(std::string_view tokenizer_json,
                                                        std::string_view tokenizer_config_json) {
  TextSource config_source(tokenizer_config_json);
  const Result<TokenizerConfig> config = parse_tokenizer_config(config_source, false);
  if (!config.ok()) return config.status().with_context("tokenizer_config.json");
  TextSource source(tokenizer_json);
  return TokenizerLoader(source, *config).run();
}

Status missing_tokenizer(FileSystem& fs, const std::string& model_dir) {
  for (const char* name : {"tokenizer.model", "vocab.json", "tiktoken.model", "qwen.tiktoken"}) {
    if (!fs.stat(join_path(model_dir, name)).ok()) continue;
    return error(StatusCode::kNotFound,
                 "{}: no {}, only {} of the older format; with the Python package transformers, "
                 "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes it. Or give token ids with --tokens",
                 model_dir, kFile, name);
  }
  return error(StatusCode::kNotFound, "{}: the model has no {}: give the prompt as token ids with --tokens", model_dir, kFile);
}

}  // namespace pointsman
