// SPDX-License-Identifier: Apache-2.0
//
// StreamingDetokenizer: token ids in, text out as soon as it is certain.
//
// A character may be spread over several tokens; its bytes are held until it is whole, so every delta is valid UTF-8 and U+FFFD
// stands only for bytes that can belong to no character. All deltas and the flush together are exactly Tokenizer::decode().
//
// With stop strings, text that could be the beginning of one is held back. When one is complete, everything from its first byte
// on is dropped, and stopped() tells which it was; of several, the one that begins first counts, and among those the longest.
//
// One object is one stream, used by one thread at a time. The tokenizer must outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pointsman/status.h"
#include "tokenizer/tokenizer.h"

namespace pointsman {

struct DetokenizerOptions {
  bool skip_special = false;      // special tokens give no text
  std::vector<std::string> stop;  // empty strings are passed over
};

class StreamingDetokenizer {
 public:
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {});

  // What is certain after this token. Always "" once a stop string was hit. Ids without a token give "".
  std::string push(int32_t id);
  // The end of the stream: what was held back. Then the object is as new, but for stopped().
  std::string flush();

  // Index of the stop string (in the options' list) that ended the stream, or -1.
  int stopped() const { return stopped_; }

 private:
  std::string release(std::string text, bool at_end);

  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  DecodeStream stream_;
  std::string held_;  // could be the beginning of a stop string
  size_t longest_stop_ = 0;
  int stopped_ = -1;
};

}  // namespace pointsman
