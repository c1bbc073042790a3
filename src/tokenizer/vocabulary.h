// SPDX-License-Identifier: Apache-2.0
//
// The tokens of a tokenizer: id -> text and text -> id, in one arena. 200,000 tokens take 6 MB.
//
// When the pre-tokenizer ends in ByteLevel, tokens written in the byte-level alphabet are kept as the bytes they stand for, so
// that encoding never leaves the byte domain. Tokens with other characters (chat markup, mostly) are "raw": kept as written,
// and no text can lead to them through merges.
//
// Immutable after loading; then thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "pointsman/status.h"

namespace pointsman {

uint64_t hash_bytes(std::string_view bytes);

class Vocabulary {
 public:
  // Sizes every table once. kUnsupported when ids are so sparse that tables by id would be mostly empty.
  Status reserve(uint64_t num_tokens, uint64_t text_bytes, int64_t max_id);
  // `in_model`: text can be found by find(); tokens that exist only as added tokens cannot. kCorrupt for a second token with
  // the same id or text. REQUIRES: within what was reserved.
  Status add(int32_t id, std::string_view text, bool raw, bool in_model);

  // -1 when there is none.
  int32_t find(std::string_view text, bool raw = false) const;
  bool contains(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < begin_.size() && begin_[static_cast<size_t>(id)] != kAbsent;
  }
  // REQUIRES: contains(id).
  std::string_view text(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return {arena_.data() + begin_[i], length_[i]};
  }
  bool is_raw(int32_t id) const {
    const auto i = static_cast<size_t>(id);
    return (raw_[i / 64] >> (i % 64) & 1) != 0;
  }
  // Largest id + 1.
  int32_t num_ids() const { return static_cast<int32_t>(begin_.size()); }
  int32_t num_model_tokens() const { return num_model_tokens_; }
  uint64_t memory_bytes() const;

 private:
  static constexpr uint32_t kAbsent = UINT32_MAX;
  struct Slot {
    int32_t id = -1;
    uint32_t tag = 0;  // more bits of the hash: most strangers are told apart without touching their text
  };
  size_t home(uint64_t hash) const { return static_cast<size_t>((static_cast<unsigned __int128>(hash) * slots_.size()) >> 64); }

  std::vector<char> arena_;
  std::vector<uint32_t> begin_;
  std::vector<uint16_t> length_;
  std::vector<uint64_t> raw_;
  std::vector<Slot> slots_;
  int32_t num_model_tokens_ = 0;
};

}  // namespace pointsman
