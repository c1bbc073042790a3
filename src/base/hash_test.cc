// SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace pointsman {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// FIPS 180-4's examples.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(to_hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256(bytes_of("abc"))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(bytes_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  const std::string million(1'000'000, 'a');
  EXPECT_EQ(to_hex(sha256(bytes_of(million))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Xxh3, PublishedVectors) {
  EXPECT_EQ(Xxh3().finish(), (Xxh3Digest{.low = 0x6001c324468d497f, .high = 0x99aa06d3014798d8}));
  Xxh3 hash;
  hash.update(bytes_of("abc"));
  EXPECT_EQ(hash.finish(), (Xxh3Digest{.low = 0x78af5f94892f3950, .high = 0x06b05ab6733a6185}));
}

TEST(Hash, PiecesGiveWhatTheWholeGives) {
  std::string text;
  for (int i = 0; i < 3000; ++i) text += static_cast<char>(i * 7);
  Sha256 sha, moved;
  Xxh3 xxh, whole;
  whole.update(bytes_of(text));
  for (const size_t step : {1u, 3u, 64u, 65u, 1000u}) {
    sha.reset();
    xxh.reset();
    for (size_t i = 0; i < text.size(); i += step) {
      sha.update(bytes_of(std::string_view(text).substr(i, step)));
      xxh.update(bytes_of(std::string_view(text).substr(i, step)));
    }
    EXPECT_EQ(sha.finish(), sha256(bytes_of(text)));
    EXPECT_EQ(xxh.finish(), whole.finish());
  }
  sha.reset();
  sha.update(bytes_of("ab"));
  moved = std::move(sha);
  moved.update(bytes_of("c"));
  EXPECT_EQ(moved.finish(), sha256(bytes_of("abc")));
}

TEST(Xxh3, HexPutsTheHighHalfFirst) {
  const std::string text = "99aa06d3014798d86001c324468d497f";  // xxhsum -H128 /dev/null
  EXPECT_EQ(to_hex(Xxh3().finish()), text);
  Xxh3Digest digest;
  EXPECT_TRUE(from_hex(text, digest));
  EXPECT_EQ(digest, Xxh3().finish());
  for (const std::string& bad : {text + "0", text.substr(1), "g" + text.substr(1), std::string()}) EXPECT_FALSE(from_hex(bad, digest)) << bad;
}

TEST(Hash, HexIsStrict) {
  const std::string good = to_hex(sha256({}));
  Sha256Digest digest;
  EXPECT_TRUE(from_hex(good, digest));
  EXPECT_EQ(digest, sha256({}));
  std::string upper = good;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  EXPECT_TRUE(from_hex(upper, digest));
  EXPECT_FALSE(from_hex(good.substr(1), digest));
  EXPECT_FALSE(from_hex(good + "0", digest));
  EXPECT_FALSE(from_hex("g" + good.substr(1), digest));
  EXPECT_FALSE(from_hex("", digest));
}

}  // namespace
}  // namespace pointsman
