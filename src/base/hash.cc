// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <utility>

#include "base/check.h"

namespace pointsman {
namespace {

// Fetched once: looking the algorithm up costs as much as hashing a small tensor.
const EVP_MD* sha256_md() {
  static const EVP_MD* md = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  PM_CHECK(md != nullptr, "libcrypto has no SHA-256");
  return md;
}

template <size_t N>
std::string hex_of(const std::array<uint8_t, N>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * N);
  for (const uint8_t b : bytes) {
    text += kDigits[b >> 4];
    text += kDigits[b & 15];
  }
  return text;
}

template <size_t N>
bool bytes_of(std::string_view text, std::array<uint8_t, N>& out) {
  if (text.size() != 2 * N) return false;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  for (size_t i = 0; i < N; ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) return false;
    out[i] = static_cast<uint8_t>(high * 16 + low);
  }
  return true;
}

}  // namespace

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  PM_CHECK(context_ != nullptr);
  reset();
}
Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }
Sha256::Sha256(Sha256&& other) noexcept : context_(std::exchange(other.context_, nullptr)) {}
Sha256& Sha256::operator=(Sha256&& other) noexcept {
  std::swap(context_, other.context_);
  return *this;
}
void Sha256::reset() { PM_CHECK(EVP_DigestInit_ex2(static_cast<EVP_MD_CTX*>(context_), sha256_md(), nullptr) == 1); }
void Sha256::update(std::span<const std::byte> data) {
  PM_CHECK(EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), data.data(), data.size()) == 1);
}
Sha256Digest Sha256::finish() {
  Sha256Digest digest;
  unsigned int size = 0;
  PM_CHECK(EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), &size) == 1 && size == digest.size());
  return digest;
}

Xxh3::Xxh3() : state_(XXH3_createState()) {
  PM_CHECK(state_ != nullptr);
  reset();
}
Xxh3::~Xxh3() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }
Xxh3::Xxh3(Xxh3&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
Xxh3& Xxh3::operator=(Xxh3&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}
void Xxh3::reset() { XXH3_128bits_reset(static_cast<XXH3_state_t*>(state_)); }
void Xxh3::update(std::span<const std::byte> data) {
  XXH3_128bits_update(static_cast<XXH3_state_t*>(state_), data.data(), data.size());
}
Xxh3Digest Xxh3::finish() const {
  const XXH128_hash_t h = XXH3_128bits_digest(static_cast<const XXH3_state_t*>(state_));
  return {h.low64, h.high64};
}

Sha256Digest sha256(std::span<const std::byte> data) {
  Sha256 hash;
  hash.update(data);
  return hash.finish();
}

std::string to_hex(const Sha256Digest& digest) {
  return hex_of(digest);
}
bool from_hex(std::string_view text, Sha256Digest& out) {
  return bytes_of(text, out);
}

std::string to_hex(const Xxh3Digest& digest) {
  std::array<uint8_t, 16> bytes;
  for (size_t i = 0; i < 8; ++i) {
    bytes[i] = static_cast<uint8_t>(digest.high >> (8 * (7 - i)));
    bytes[8 + i] = static_cast<uint8_t>(digest.low >> (8 * (7 - i)));
  }
  return hex_of(bytes);
}
bool from_hex(std::string_view text, Xxh3Digest& out) {
  std::array<uint8_t, 16> bytes;
  if (!bytes_of(text, bytes)) return false;
  out = {};
  for (size_t i = 0; i < 8; ++i) {
    out.high = out.high << 8 | bytes[i];
    out.low = out.low << 8 | bytes[8 + i];
  }
  return true;
}

}  // namespace pointsman
