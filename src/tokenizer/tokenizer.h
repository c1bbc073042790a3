// SPDX-License-Identifier: Apache-2.0
//
// Tokenizer: text <-> token ids, as the model's tokenizer.json says.
//
// The file is a program, and this class runs it: added tokens are cut out of the raw text, then normalizer, pre-tokenizer and
// BPE work on what lies between; decoding is the decoder section. A component that is not known is kUnsupported, by name, when
// loading: ids are either those of the reference library or there is no tokenizer.
//
// An injection boundary: a chat prompt contains control tokens, what a user typed must not. Encode the two with different
// options (see EncodeOptions) and join the ids.
//
// Memory: the file is read in pieces and never held; load_peak_bytes() bounds what loading and keeping take, and loading
// refuses files that would break it.
//
// Immutable; every function is thread-safe. Concurrent encode() calls share one small cache: the first one has it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/post_processor.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/vocabulary.h"

namespace pointsman {

struct EncodeOptions {
  // Adds what the file's template says; without a template, BOS and EOS as tokenizer_config.json's add_bos_token and
  // add_eos_token say. Rendered chats carry their own: leave it off for them.
  bool add_special_tokens = false;
  // False: the text of special tokens ("<|im_end|>") is plain text, never that token.
  bool parse_special = true;
  // False: no added token is recognised at all, whether marked special or not. Some models mark chat markup ("<think>",
  // "<tool_call>", DeepSeek's user and assistant tags) as not special; this is what text from users needs with them.
  bool parse_added = true;
  // True: broken UTF-8 becomes U+FFFD, one per maximal subpart. False: it is kInvalidArgument, with the offset.
  bool replace_invalid = false;
};

struct SpecialTokens {
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;
  std::optional<int32_t> unk;
};

class Tokenizer {
 public:
  static constexpr uint64_t kMaxTextBytes = uint64_t{256} << 20;

  // tokenizer.json, and tokenizer_config.json where there is one.
  static Result<std::unique_ptr<Tokenizer>> load(FileSystem& fs, const std::string& model_dir);
  static Result<std::unique_ptr<Tokenizer>> from_text(std::string_view tokenizer_json,
                                                      std::string_view tokenizer_config_json = "{}");

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // kInvalidArgument: broken UTF-8 (unless replaced), more than kMaxTextBytes. kUnsupported, kDeadlineExceeded: a pattern of
  // the file needs too much work on this text.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options = {}) const;
  // Always valid UTF-8: bytes that form no character become U+FFFD. Ids without a token are passed over.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // What a token adds to a text that has begun already; bytes, not always whole characters. Empty for unknown ids.
  std::string token_bytes(int32_t id) const;
  // The token as the file writes it ("\u0120the"). Empty for unknown ids.
  std::string token_text(int32_t id) const;
  // By its text in the file. -1 when there is none.
  int32_t find(std::string_view token) const;

  bool contains(int32_t id) const { return vocabulary_.contains(id); }
  // Marked "special" in the file.
  bool is_special(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < is_special_.size() && is_special_[static_cast<size_t>(id)];
  }
  // Tokens of the model, without those that exist only as added tokens.
  int32_t vocab_size() const { return vocabulary_.num_model_tokens(); }
  // Largest id + 1, added tokens included. Not every id below it needs to have a token; a model's embedding may have more rows.
  int32_t num_ids() const { return vocabulary_.num_ids(); }
  const SpecialTokens& special_tokens() const { return special_tokens_; }
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }

  // Heap held by this object, compiled patterns included.
  uint64_t memory_bytes() const;
  // Upper bound of the heap that loading a tokenizer.json of this size takes at any moment, and of memory_bytes() afterwards.
  static uint64_t load_peak_bytes(uint64_t tokenizer_json_bytes);

 private:
  friend class TokenizerLoader;
  friend class StreamingDetokenizer;
  Tokenizer() = default;

  Status encode_text(std::string_view text, bool at_start, EncodeOptions options, struct EncodeScratch& scratch,
                     std::vector<int32_t>& out) const;
  void push_token(DecodeStream& stream, int32_t id, std::string& out) const;
  std::string text_in_file(int32_t id) const;
  int32_t find_in_model(std::string_view token) const;

  bool byte_level_ = false;  // the vocabulary holds bytes (vocabulary.h)
  Vocabulary vocabulary_;
  Bpe bpe_;
  std::vector<AddedToken> added_tokens_;
  std::vector<bool> is_special_;  // by id
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PostProcessor post_processor_;
  Decoder decoder_;
  TokenMatcher raw_matcher_;         // normalized = false
  TokenMatcher normalized_matcher_;  // normalized = true
  SpecialTokens special_tokens_;
  bool add_bos_ = false;
  bool add_eos_ = false;
};

// kNotFound, for a folder whose tokenizer.json is absent: says what older file is there instead and what to do.
Status missing_tokenizer(FileSystem& fs, const std::string& model_dir);

}  // namespace pointsman
