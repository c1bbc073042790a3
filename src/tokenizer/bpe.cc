// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/bpe.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/log.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

constexpr size_t kMaxProbes = 4096;
// Beyond this many symbols a heap beats scanning.
constexpr size_t kShort = 64;
constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

// Direct-mapped: a word has one place and the latest one wins. 1 MiB, allocated with the tokenizer so that it is charged once.
struct Bpe::Cache {
  static constexpr size_t kEntries = 16384;
  static constexpr size_t kMaxText = 30;
  static constexpr size_t kMaxIds = 8;
  struct Entry {
    uint8_t text_bytes = 0;
    uint8_t num_ids = 0;
    char text[kMaxText];
    int32_t ids[kMaxIds];
  };
  static_assert(sizeof(Entry) == 64);

  std::mutex in_use;
  std::vector<Entry> entries = std::vector<Entry>(kEntries);
};

Bpe::Bpe() : slots_(8), cache_(std::make_unique<Cache>()) {}
Bpe::~Bpe() = default;
Bpe::Bpe(Bpe&&) noexcept = default;
Bpe& Bpe::operator=(Bpe&&) noexcept = default;

void Bpe::reserve(uint64_t num_merges) {
  slots_.assign(static_cast<size_t>(num_merges + num_merges / 2 + 8), Slot{});
}

Status Bpe::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t product) {
  const uint64_t pair = key(left, right);
  size_t i = home(pair);
  for (size_t probes = 0; slots_[i].pair != UINT64_MAX && slots_[i].pair != pair; ++probes) {
    if (probes > kMaxProbes) return error(StatusCode::kCorrupt, "merges made to collide");
    if (++i == slots_.size()) i = 0;
  }
  slots_[i] = {pair, rank, product};
  return ok_status();
}

void Bpe::finish(const Vocabulary& vocabulary, BpeOptions options) {
  vocabulary_ = &vocabulary;
  options_ = options;
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(b);
    byte_ids_[static_cast<size_t>(b)] = options.byte_level      ? vocabulary.find({&c, 1})
                                        : options.byte_fallback ? vocabulary.find(format("<0x{:02X}>", b))
                                                                : -1;
  }
}

uint64_t Bpe::memory_bytes() const {
  return slots_.capacity() * sizeof(Slot) + sizeof(Cache) + Cache::kEntries * sizeof(Cache::Entry);
}

Bpe::Session::Session(const Bpe& bpe) : bpe_(bpe), has_cache_(bpe.cache_->in_use.try_lock()) {}

Bpe::Session::~Session() {
  if (has_cache_) bpe_.cache_->in_use.unlock();
}

void Bpe::Session::encode(std::string_view piece, const std::vector<bool>* is_forbidden, std::vector<int32_t>& out) {
  if (piece.empty()) return;
  if (bpe_.options_.ignore_merges) {
    const int32_t id = bpe_.vocabulary_->find(piece);
    if (id >= 0 && (is_forbidden == nullptr || !(*is_forbidden)[static_cast<size_t>(id)])) {
      out.push_back(id);
      return;
    }
  }
  Cache::Entry* entry = nullptr;
  if (has_cache_ && piece.size() <= Cache::kMaxText) {
    entry = &bpe_.cache_->entries[(hash_bytes(piece) >> 32) % Cache::kEntries];
    if (entry->text_bytes == piece.size() && std::memcmp(entry->text, piece.data(), piece.size()) == 0) {
      out.insert(out.end(), entry->ids, entry->ids + entry->num_ids);
      return;
    }
  }
  ids_.clear();
  load_symbols(piece);
  if (ids_.size() <= kShort) {
    merge_short();
  } else {
    merge_long();
  }
  if (entry != nullptr && ids_.size() <= Cache::kMaxIds) {
    entry->text_bytes = static_cast<uint8_t>(piece.size());
    entry->num_ids = static_cast<uint8_t>(ids_.size());
    std::memcpy(entry->text, piece.data(), piece.size());
    std::copy(ids_.begin(), ids_.end(), entry->ids);
  }
  out.insert(out.end(), ids_.begin(), ids_.end());
}

void Bpe::Session::load_symbols(std::string_view piece) {
  pending_unknown_ = -1;
  const auto flush_unknown = [&] {
    if (pending_unknown_ >= 0) ids_.push_back(std::exchange(pending_unknown_, -1));
  };
  if (bpe_.options_.byte_level) {
    bool all_known = true;
    for (const char c : piece) {
      const int32_t id = bpe_.byte_ids_[static_cast<unsigned char>(c)];
      ids_.push_back(id);
      all_known = all_known && id >= 0;
    }
    if (all_known) return;
    ids_.clear();
    for (const char c : piece) {
      const int32_t id = bpe_.byte_ids_[static_cast<unsigned char>(c)];
      if (id >= 0) {
        flush_unknown();
        ids_.push_back(id);
      } else {
        add_unknown(bytes_to_alphabet({&c, 1}));
      }
    }
  } else {
    for (size_t i = 0; i < piece.size();) {
      const size_t begin = i;
      utf8_decode_valid(piece, i);
      const std::string_view character = piece.substr(begin, i - begin);
      const int32_t id = bpe_.vocabulary_->find(character);
      if (id >= 0) {
        flush_unknown();
        ids_.push_back(id);
      } else {
        add_unknown(character);
      }
    }
  }
  flush_unknown();
}

// A pending unknown token is not flushed by fallback bytes: the reference appends it after them.
void Bpe::Session::add_unknown(std::string_view character) {
  const BpeOptions& options = bpe_.options_;
  if (options.byte_fallback) {
    const auto byte_id = [&](char c) {
      return options.byte_level ? bpe_.vocabulary_->find(format("<0x{:02X}>", static_cast<unsigned char>(c)))
                                : bpe_.byte_ids_[static_cast<unsigned char>(c)];
    };
    if (std::all_of(character.begin(), character.end(), [&](char c) { return byte_id(c) >= 0; })) {
      for (const char c : character) ids_.push_back(byte_id(c));
      return;
    }
  }
  if (options.unk_id < 0) return;
  if (pending_unknown_ >= 0 && !options.fuse_unk) ids_.push_back(pending_unknown_);
  pending_unknown_ = options.unk_id;
}

void Bpe::Session::merge_short() {
  size_t n = ids_.size();
  if (n < 2) return;
  int32_t* ids = ids_.data();
  uint32_t* ranks = ranks_.data();
  int32_t* products = products_.data();
  const auto look = [&](size_t i) {
    const Found f = bpe_.find(ids[i], ids[i + 1]);
    ranks[i] = f.rank;
    products[i] = f.product;
  };
  for (size_t i = 0; i + 1 < n; ++i) look(i);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNoMerge) break;
    ids[best] = products[best];
    std::memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof(int32_t));
    if (best + 2 < n) {
      std::memmove(ranks + best + 1, ranks + best + 2, (n - best - 3) * sizeof(uint32_t));
      std::memmove(products + best + 1, products + best + 2, (n - best - 3) * sizeof(int32_t));
    }
    --n;
    if (best + 1 < n) look(best);
    if (best > 0) look(best - 1);
  }
  ids_.resize(n);
}

void Bpe::Session::merge_long() {
  const size_t n = ids_.size();
  symbols_.resize(n);
  heap_.clear();
  const auto look = [&](uint32_t i) {
    Symbol& s = symbols_[i];
    if (s.next == kNone) {
      s.rank = kNoMerge;
      return;
    }
    const Found f = bpe_.find(s.id, symbols_[s.next].id);
    s.rank = f.rank;
    s.product = f.product;
    if (f.rank != kNoMerge) {
      heap_.push_back(static_cast<uint64_t>(f.rank) << 32 | i);
    }
  };
  for (uint32_t i = 0; i < n; ++i) {
    symbols_[i] = {ids_[i], i == 0 ? kNone : i - 1, i + 1 == n ? kNone : i + 1, kNoMerge, -1};
  }
  for (uint32_t i = 0; i < n; ++i) look(i);
  std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t top = heap_.back();
    heap_.pop_back();
    const auto at = static_cast<uint32_t>(top);
    Symbol& s = symbols_[at];
    // Entries of pairs that are gone stay in the heap; the symbol knows its present rank.
    if (s.rank != static_cast<uint32_t>(top >> 32)) continue;
    const uint32_t gone = s.next;
    s.id = s.product;
    s.next = symbols_[gone].next;
    symbols_[gone].rank = kNoMerge;
    if (s.next != kNone) symbols_[s.next].previous = at;
    size_t size = heap_.size();
    look(at);
    if (heap_.size() > size) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
    size = heap_.size();
    if (s.previous != kNone) look(s.previous);
    if (heap_.size() > size) std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  ids_.clear();
  for (uint32_t i = 0; i != kNone; i = symbols_[i].next) ids_.push_back(symbols_[i].id);
  // One huge piece must not keep its scratch for the many small ones that follow.
  if (symbols_.capacity() > 65536) {
    symbols_ = {};
    heap_ = {};
  }
}

}  // namespace pointsman
