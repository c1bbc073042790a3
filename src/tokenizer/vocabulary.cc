// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/vocabulary.h"

#include <cstring>

#include "base/log.h"

namespace pointsman {
namespace {

// Tables are two thirds full at most, so that long probes mean a file made to collide.
constexpr size_t kMaxProbes = 4096;

uint64_t fold(uint64_t a, uint64_t b) {
  const unsigned __int128 r = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(r) ^ static_cast<uint64_t>(r >> 64);
}

}  // namespace

uint64_t hash_bytes(std::string_view bytes) {
  constexpr uint64_t kA = 0x9E3779B97F4A7C15;
  constexpr uint64_t kB = 0xD1B54A32D192ED03;
  const char* p = bytes.data();
  size_t n = bytes.size();
  uint64_t h = kA ^ (n * kB);
  for (; n > 8; n -= 8, p += 8) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    h = fold(h ^ w, kB);
  }
  uint64_t w = 0;
  std::memcpy(&w, p, n);
  return fold(fold(h ^ w, kB) ^ kA, kA);
}

Status Vocabulary::reserve(uint64_t num_tokens, uint64_t text_bytes, int64_t max_id) {
  if (max_id < 0 || max_id >= INT32_MAX || static_cast<uint64_t>(max_id) > num_tokens * 2 + 4096) {
    return error(StatusCode::kUnsupported, "token ids up to {} for {} tokens: too sparse", max_id, num_tokens);
  }
  if (text_bytes >= kAbsent) return error(StatusCode::kUnsupported, "{} bytes of token text", text_bytes);
  const size_t ids = static_cast<size_t>(max_id) + 1;
  arena_.reserve(text_bytes);
  begin_.assign(ids, kAbsent);
  length_.assign(ids, 0);
  raw_.assign((ids + 63) / 64, 0);
  slots_.assign(static_cast<size_t>(num_tokens + num_tokens / 2 + 8), Slot{});
  return ok_status();
}

Status Vocabulary::add(int32_t id, std::string_view text, bool raw, bool in_model) {
  const auto i = static_cast<size_t>(id);
  if (text.size() > UINT16_MAX) return error(StatusCode::kUnsupported, "token {}: {} bytes long", id, text.size());
  if (id < 0 || i >= begin_.size()) return error(StatusCode::kCorrupt, "token id {} is out of range", id);
  if (begin_[i] != kAbsent) return error(StatusCode::kCorrupt, "two tokens have the id {}", id);
  begin_[i] = static_cast<uint32_t>(arena_.size());
  length_[i] = static_cast<uint16_t>(text.size());
  arena_.insert(arena_.end(), text.begin(), text.end());
  if (raw) raw_[i / 64] |= uint64_t{1} << (i % 64);
  if (!in_model) return ok_status();
  ++num_model_tokens_;
  const uint64_t hash = hash_bytes(text);
  const auto tag = static_cast<uint32_t>(hash);
  size_t slot = home(hash);
  for (size_t probes = 0; slots_[slot].id >= 0; ++probes) {
    const Slot& other = slots_[slot];
    if (other.tag == tag && this->text(other.id) == text && is_raw(other.id) == raw) {
      return error(StatusCode::kCorrupt, "tokens {} and {} are the same text", other.id, id);
    }
    if (probes > kMaxProbes) return error(StatusCode::kCorrupt, "a vocabulary made to collide");
    if (++slot == slots_.size()) slot = 0;
  }
  slots_[slot] = {id, tag};
  return ok_status();
}

int32_t Vocabulary::find(std::string_view text, bool raw) const {
  if (slots_.empty()) return -1;
  const uint64_t hash = hash_bytes(text);
  const auto tag = static_cast<uint32_t>(hash);
  size_t slot = home(hash);
  while (slots_[slot].id >= 0) {
    const Slot& s = slots_[slot];
    if (s.tag == tag && this->text(s.id) == text && is_raw(s.id) == raw) return s.id;
    if (++slot == slots_.size()) slot = 0;
  }
  return -1;
}

uint64_t Vocabulary::memory_bytes() const {
  return arena_.capacity() + begin_.capacity() * sizeof(uint32_t) + length_.capacity() * sizeof(uint16_t) +
         raw_.capacity() * sizeof(uint64_t) + slots_.capacity() * sizeof(Slot);
}

}  // namespace pointsman
