// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair encoding of one pre-token. A merge is chosen by the rank of its pair, leftmost first, never by the id of the
// product: the same product may come from several pairs of very different rank.
//
// Cost: n symbols take O(n log n), also when a megabyte is one pre-token. Short words, which are nearly all of them, are merged
// in place by scanning; a word that was seen lately comes from a small cache.
//
// Immutable after loading, then thread-safe. The cache is used by one thread at a time; others go without it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"
#include "tokenizer/vocabulary.h"

namespace pointsman {

struct BpeOptions {
  bool byte_level = false;     // pieces are bytes of the byte-level alphabet, not text
  bool ignore_merges = false;  // a piece that is a token is that token
  bool byte_fallback = false;  // unknown characters become <0xXX> tokens
  bool fuse_unk = false;
  int32_t unk_id = -1;
};

class Bpe {
 public:
  Bpe();
  ~Bpe();
  Bpe(Bpe&&) noexcept;
  Bpe& operator=(Bpe&&) noexcept;

  void reserve(uint64_t num_merges);
  // A pair given twice keeps its latest rank. REQUIRES: within what was reserved.
  Status add_merge(int32_t left, int32_t right, uint32_t rank, int32_t product);
  // After the last merge. `vocabulary` must outlive this object.
  void finish(const Vocabulary& vocabulary, BpeOptions options);

  // Scratch of one encode() call of the tokenizer.
  class Session {
   public:
    explicit Session(const Bpe& bpe);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    // Appends the ids of a piece (valid UTF-8, or any bytes when byte_level). Characters that are in no token are dropped, as
    // the reference does, unless there is a fallback. `is_forbidden` (by id, may be null): tokens that ignore_merges may not
    // take directly.
    void encode(std::string_view piece, const std::vector<bool>* is_forbidden, std::vector<int32_t>& out);

   private:
    friend class Bpe;
    struct Symbol {
      int32_t id;
      uint32_t previous;
      uint32_t next;
      uint32_t rank;    // of the pair with the next symbol
      int32_t product;  // of that pair
    };
    void load_symbols(std::string_view piece);
    void add_unknown(std::string_view character);
    void merge_short();
    void merge_long();

    const Bpe& bpe_;
    bool has_cache_ = false;
    std::vector<int32_t> ids_;
    std::vector<Symbol> symbols_;
    std::vector<uint64_t> heap_;
    std::array<uint32_t, 64> ranks_;
    std::array<int32_t, 64> products_;
    int32_t pending_unknown_ = -1;
  };

  uint64_t memory_bytes() const;

 private:
  struct Slot {
    uint64_t pair = UINT64_MAX;
    uint32_t rank = 0;
    int32_t product = 0;
  };
  struct Found {
    uint32_t rank;
    int32_t product;
  };
  struct Cache;
  static constexpr uint32_t kNoMerge = UINT32_MAX;

  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t home(uint64_t pair) const {
    uint64_t h = pair * 0x9E3779B97F4A7C15;
    h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93;
    return static_cast<size_t>((static_cast<unsigned __int128>(h) * slots_.size()) >> 64);
  }
  Found find(int32_t left, int32_t right) const {
    const uint64_t pair = key(left, right);
    for (size_t i = home(pair);;) {
      const Slot& s = slots_[i];
      if (s.pair == pair) return {s.rank, s.product};
      if (s.pair == UINT64_MAX) return {kNoMerge, -1};
      if (++i == slots_.size()) i = 0;
    }
  }

  const Vocabulary* vocabulary_ = nullptr;
  BpeOptions options_;
  std::vector<Slot> slots_;
  std::array<int32_t, 256> byte_ids_{};  // token of a single byte; by fallback, of its <0xXX>
  std::unique_ptr<Cache> cache_;
};

}  // namespace pointsman
