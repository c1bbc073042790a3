// SPDX-License-Identifier: Apache-2.0
//
// The "decoder" section, run as a stream: tokens go in one by one, valid UTF-8 comes out as soon as it is certain. Decoding a
// whole text is the same stream, pushed and flushed, so the two can never differ. Known: Sequence, ByteLevel, ByteFallback,
// Fuse, Strip, Replace (String), Metaspace. Without a decoder, tokens are joined with spaces.
//
// Difference from the reference: when <0xXX> tokens (ByteFallback) form no valid text, only the bad bytes become U+FFFD, not
// the whole run. Byte-level vocabularies agree with it in every case.
//
// Decoder is immutable and thread-safe; DecodeStream belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"
#include "tokenizer/regex.h"

namespace pointsman {

class Decoder {
 public:
  // `section` may be null or JSON null. kUnsupported names an unknown type.
  static Result<Decoder> parse(const Json* section);

  // True when the decoder maps the byte-level alphabet: tokens kept as bytes need no step.
  bool is_byte_level() const { return is_byte_level_; }
  // Appends what one token means: `text` is the token as written in the file; `is_first`: nothing came before it.
  void token_bytes(std::string_view text, bool is_first, std::string& out) const;
  uint64_t memory_bytes() const;

 private:
  friend class DecodeStream;
  enum class Kind { kByteLevel, kByteFallback, kReplace, kStrip, kMetaspace };
  struct Step {
    Kind kind;
    std::string text;            // Replace: pattern; Strip, Metaspace: the character
    std::string content;         // Replace: replacement
    std::optional<Regex> regex;  // Replace: instead of the pattern, per token only
    size_t left = 0;             // Strip
    size_t right = 0;
    bool drop_first = true;  // Metaspace: no space at the very beginning
  };
  Status add(const Json& component);

  std::vector<Step> per_token_;
  std::vector<Step> fused_;  // after Fuse or ByteLevel: on the text as a whole
  bool is_fused_ = false;
  bool is_byte_level_ = false;
  bool join_with_space_ = false;
  // Decoding cannot fail, so a chain of replacements that multiply is refused when loading.
  static constexpr uint64_t kMaxGrowth = 4096;
  uint64_t growth_ = 1;
};

class DecodeStream {
 public:
  // `decoder` must outlive this object.
  explicit DecodeStream(const Decoder& decoder);

  // A token as written in the file.
  void push(std::string_view token, std::string& out);
  // A token whose bytes are known already (byte-level).
  void push_bytes(std::string_view bytes, std::string& out);
  // The end: an unfinished character becomes U+FFFD. Then the stream is as new.
  void flush(std::string& out);

 private:
  struct StepState {
    size_t stripped = 0;  // characters cut from the left so far
    bool left_done = false;
    std::string held;  // may still be cut or replaced
  };
  void run_fused(size_t step, std::string_view text, bool at_end, std::string& out);

  const Decoder* decoder_;
  std::string pending_;  // an unfinished character: at most three bytes
  std::vector<StepState> states_;
  bool is_first_ = true;
};

}  // namespace pointsman
