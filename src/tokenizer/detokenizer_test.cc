// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/detokenizer.h"

#include <gtest/gtest.h>

#include <random>

#include "base/log.h"
#include "tokenizer/utf8.h"

namespace pointsman {
namespace {

// Ids 0..255 are bytes, 256 is "<|end|>" (special), 257 is "好" whole, 258 its first two bytes.
std::unique_ptr<Tokenizer> bytes_tokenizer(std::string_view decoder = R"({"type": "ByteLevel"})") {
  std::string vocab;
  int next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool own = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    vocab += format("{}\"\\u{:04x}\": {}", b == 0 ? "" : ", ", own ? b : next++, b);
  }
  vocab += ", \"\\u00e5\\u00a5\\u00bd\": 257, \"\\u00e5\\u00a5\": 258";
  Result<std::unique_ptr<Tokenizer>> t = Tokenizer::from_text(format(
      R"({{"added_tokens": [{{"id": 256, "content": "<|end|>", "special": true, "normalized": false}}],
          "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}}, "decoder": {},
          "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}})",
      decoder, vocab));
  EXPECT_TRUE(t.ok()) << t.status().to_string();
  return std::move(t).value();
}

std::vector<int32_t> ids_of(std::string_view bytes) {
  std::vector<int32_t> out;
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

// Every delta is valid UTF-8, and together they are decode().
std::vector<std::string> deltas(const Tokenizer& t, const std::vector<int32_t>& ids, DetokenizerOptions options = {}) {
  const bool skip = options.skip_special;
  StreamingDetokenizer stream(t, std::move(options));
  std::vector<std::string> out;
  for (const int32_t id : ids) out.push_back(stream.push(id));
  out.push_back(stream.flush());
  std::string all;
  for (const std::string& d : out) {
    EXPECT_EQ(utf8_valid_prefix(d), d.size());
    all += d;
  }
  if (stream.stopped() < 0) {
    EXPECT_EQ(all, t.decode(ids, skip));
  }
  return out;
}
using Deltas = std::vector<std::string>;

// DeepSeek and Qwen mark reasoning and tool calls with added tokens that are not special: an answer keeps them, however it is read.
TEST(StreamingDetokenizer, MarkupThatIsNotSpecialStays) {
  const Result<std::unique_ptr<Tokenizer>> t = Tokenizer::from_text(
      R"({"added_tokens": [{"id": 1, "content": "</think>", "special": false, "normalized": false}, {"id": 2, "content": "<|end|>", "special": true, "normalized": false},
                           {"id": 3, "content": "<tool_call>", "special": false, "normalized": true}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}, "decoder": {"type": "ByteLevel"},
          "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  StreamingDetokenizer stream(**t, {.skip_special = true});
  std::string text;
  for (const int32_t id : {0, 1, 0, 3, 2}) text += stream.push(id);
  EXPECT_EQ(text + stream.flush(), "a</think>a<tool_call>");
  EXPECT_EQ((*t)->decode(std::vector<int32_t>{0, 1, 2}, true), "a</think>");
}

TEST(StreamingDetokenizer, CharactersComeWhole) {
  const auto t = bytes_tokenizer();
  EXPECT_EQ(deltas(*t, ids_of("\xC3\xA9")), (Deltas{"", "\xC3\xA9", ""}));
  EXPECT_EQ(deltas(*t, ids_of("\xE5\xA5\xBD")), (Deltas{"", "", "\xE5\xA5\xBD", ""}));
  EXPECT_EQ(deltas(*t, ids_of("\xF0\x9F\x98\x80")), (Deltas{"", "", "", "\xF0\x9F\x98\x80", ""}));
  EXPECT_EQ(deltas(*t, {258, 0xBD, 257}), (Deltas{"", "\xE5\xA5\xBD", "\xE5\xA5\xBD", ""}));
}

TEST(StreamingDetokenizer, OnlyBadBytesAreReplaced) {
  const auto t = bytes_tokenizer();
  const std::string bad(kReplacementCharacter);
  EXPECT_EQ(deltas(*t, ids_of("a\xFF"
                              "b")),
            (Deltas{"a", bad, "b", ""}));
  // A character cut off by another one, then the stream goes on.
  EXPECT_EQ(deltas(*t, ids_of("\xE5\xA5x\xC3\xA9")), (Deltas{"", "", bad + "x", "", "\xC3\xA9", ""}));
  // The end in the middle of a character.
  EXPECT_EQ(deltas(*t, ids_of("a\xF0\x9F\x98")), (Deltas{"a", "", "", "", bad}));
  EXPECT_EQ(deltas(*t, {}), (Deltas{""}));
}

TEST(StreamingDetokenizer, RandomTokensEqualTheWholeDecode) {
  for (const char* decoder :
       {R"({"type": "ByteLevel"})", "null",
        R"({"type": "Sequence", "decoders": [{"type": "ByteLevel"}, {"type": "Strip", "content": "a", "start": 1, "stop": 2},
            {"type": "Replace", "pattern": {"String": "aab"}, "content": "-"}]})",
        R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "b"}, "content": "a"}, {"type": "Fuse"},
            {"type": "Strip", "content": "a", "start": 2, "stop": 1}]})"}) {
    const auto t = bytes_tokenizer(decoder);
    std::mt19937 random(7);
    for (int round = 0; round < 2000; ++round) {
      std::vector<int32_t> ids;
      for (unsigned n = random() % 12; n > 0; --n) {
        static constexpr int32_t kChoices[] = {'a', 'b', 0xE5, 0xA5, 0xBD, 0xF0, 0x9F, 0x98, 0x80, 256, 257, 258, 259, -1};
        ids.push_back(random() % 8 == 0 ? static_cast<int32_t>(random() % 256) : kChoices[random() % 14]);
      }
      deltas(*t, ids);
      deltas(*t, ids, {.skip_special = true});
    }
  }
}

TEST(StreamingDetokenizer, StopStringsAreHeldBackAndDropped) {
  const auto t = bytes_tokenizer();
  EXPECT_EQ(deltas(*t, ids_of("abSTO!"), {.stop = {"STOP"}}), (Deltas{"a", "b", "", "", "", "STO!", ""}));
  StreamingDetokenizer stream(*t, {.stop = {"", "\n\nUser:", "END"}});
  std::string all;
  for (const int32_t id : ids_of("hi\n\n\nUser: more")) all += stream.push(id);
  EXPECT_EQ(all + stream.flush(), "hi\n");
  EXPECT_EQ(stream.stopped(), 1);
  EXPECT_EQ(stream.push('x'), "");
}

TEST(StreamingDetokenizer, TheFirstStopStringCounts) {
  const auto t = bytes_tokenizer();
  // One token completes both: the one that begins first wins, then the longer.
  StreamingDetokenizer stream(*t, {.stop = {"\xBD", "|", "<|end", "<|", "<|end|>"}});
  std::string all = stream.push('a');
  all += stream.push(256);
  EXPECT_EQ(all, "a");
  EXPECT_EQ(stream.stopped(), 4);
}

TEST(StreamingDetokenizer, HeldTextComesWithTheEnd) {
  const auto t = bytes_tokenizer();
  EXPECT_EQ(deltas(*t, ids_of("xab"), {.stop = {"abc"}}), (Deltas{"x", "", "", "ab"}));
  EXPECT_EQ(deltas(*t, {257, 258}, {.stop = {"\xE5\xA5\xBDx"}}), (Deltas{"", "", "\xE5\xA5\xBD\xEF\xBF\xBD"}));
}

}  // namespace
}  // namespace pointsman
