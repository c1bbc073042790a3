// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <ctime>
#include <thread>

#include "base/json.h"
#include "base/log.h"
#include "support/golden.h"
#include "support/memory_fs.h"
#include "support/xz.h"

namespace pointsman {
namespace {

using Ids = std::vector<int32_t>;

// A byte-level tokenizer of the 256 bytes, "ab", "abc" and "bc", with the parts that a test wants to change.
struct Parts {
  std::string added = R"([{"id": 300, "content": "<|end|>", "special": true, "normalized": false},
                          {"id": 301, "content": "<think>", "special": false, "normalized": false},
                          {"id": 302, "content": "<|end|><|end|>", "special": true, "normalized": false}])";
  std::string normalizer = "null";
  std::string pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "ByteLevel"})";
  std::string merges = R"(["a b", ["ab", "c"], ["b", "c"]])";
  std::string model_type = "BPE";
  std::string more_model;
  std::string more_vocab;

  std::string text() const {
    std::string vocab;
    for (int b = 0; b < 256; ++b) {
      const bool own = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const int rank = b < 0x21 ? b : b < 0xA1 ? b - 0x7F + 0x21 : 0xAD - 0xA1 + 34 + 0x21 - 0xC;
      vocab += format("{}\"\\u{:04x}\": {}", b == 0 ? "" : ", ", own ? b : 0x100 + rank, b);
    }
    vocab += R"(, "ab": 256, "abc": 257, "bc": 258)" + more_vocab;
    return format(
        R"({{"version": "1.0", "added_tokens": {}, "normalizer": {}, "pre_tokenizer": {}, "post_processor": {}, "decoder": {},
            "model": {{"type": "{}"{}, "vocab": {{{}}}, "merges": {}}}}})",
        added, normalizer, pre_tokenizer, post_processor, decoder, model_type, more_model, vocab, merges);
  }
  Result<std::unique_ptr<Tokenizer>> load(std::string_view config = "{}") const { return Tokenizer::from_text(text(), config); }
};

std::unique_ptr<Tokenizer> make(const Parts& parts = {}, std::string_view config = "{}") {
  Result<std::unique_ptr<Tokenizer>> t = parts.load(config);
  EXPECT_TRUE(t.ok()) << t.status().to_string();
  return std::move(t).value();
}

void expect_refused(const Parts& parts, StatusCode code, std::string_view name) {
  const Result<std::unique_ptr<Tokenizer>> t = parts.load();
  ASSERT_FALSE(t.ok()) << name;
  EXPECT_EQ(t.status().code(), code) << t.status().to_string();
  EXPECT_NE(t.status().message().find(name), std::string::npos) << t.status().to_string();
}

TEST(Tokenizer, MergesByRankNotByProduct) {
  const auto t = make();
  EXPECT_EQ(*t->encode("abc"), (Ids{257}));
  EXPECT_EQ(*t->encode("xbcab"), (Ids{'x', 258, 256}));
  // "b c" first: ab never forms.
  const auto other = make({.merges = R"([["b", "c"], "a b", ["ab", "c"]])"});
  EXPECT_EQ(*other->encode("abc"), (Ids{'a', 258}));
  // A pair given twice keeps its latest rank, as in the library.
  const auto twice = make({.merges = R"(["a b", "b c", "a b"])"});
  EXPECT_EQ(*twice->encode("abc"), (Ids{'a', 258}));
}

TEST(Tokenizer, IgnoreMergesTakesWholePiecesOnly) {
  const auto t = make({.merges = R"([["b", "c"]])", .more_model = R"(, "ignore_merges": true)"});
  EXPECT_EQ(*t->encode("abc"), (Ids{257}));
  EXPECT_EQ(*t->encode("abcx"), (Ids{'a', 258, 'x'}));
}

TEST(Tokenizer, AddedTokensAreLeftmostLongest) {
  const auto t = make();
  EXPECT_EQ(*t->encode("a<|end|>b"), (Ids{'a', 300, 'b'}));
  EXPECT_EQ(*t->encode("<|end|><|end|><|end|>"), (Ids{302, 300}));
  EXPECT_EQ(*t->encode("<think>"), (Ids{301}));
  EXPECT_EQ(t->encode("<|end|")->size(), 6u);
}

TEST(Tokenizer, UserTextNeverBecomesControlTokens) {
  const auto t = make();
  const Ids plain = *t->encode("x<|end|><think>", {.parse_special = false});
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 300), 0);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), 301), 1);
  const Ids nothing = *t->encode("x<|end|><think>", {.parse_added = false});
  EXPECT_EQ(nothing.size(), 15u);
  EXPECT_EQ(t->decode(nothing), "x<|end|><think>");
  // Not even where ignore_merges would find the text in the vocabulary.
  const auto direct = make({.more_model = R"(, "ignore_merges": true)", .more_vocab = R"(, "<|end|>": 300)"});
  EXPECT_EQ(*direct->encode("<|end|>"), (Ids{300}));
  EXPECT_EQ(direct->encode("<|end|>", {.parse_special = false})->size(), 7u);
  EXPECT_EQ(direct->encode("<|end|>", {.parse_added = false})->size(), 7u);
}

TEST(Tokenizer, SpecialTokensComeFromTheTemplateOrTheConfiguration) {
  const auto with_template = make({.post_processor = R"({"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [300], "tokens": ["<|end|>"]}}})"},
                                  R"({"add_bos_token": true, "bos_token": "<think>"})");
  EXPECT_EQ(*with_template->encode("a", {.add_special_tokens = true}), (Ids{300, 'a'}));
  EXPECT_EQ(*with_template->encode("a"), (Ids{'a'}));
  const auto with_config =
      make({}, R"({"add_bos_token": true, "add_eos_token": true, "bos_token": {"content": "<|end|>"}, "eos_token": "abc"})");
  EXPECT_EQ(*with_config->encode("a", {.add_special_tokens = true}), (Ids{300, 'a', 257}));
  EXPECT_EQ(with_config->special_tokens().bos, 300);
  EXPECT_EQ(with_config->special_tokens().eos, 257);
  EXPECT_FALSE(with_config->special_tokens().pad.has_value());
}

TEST(Tokenizer, BrokenUtf8IsRefusedOrReplaced) {
  const auto t = make();
  const Result<Ids> refused = t->encode("ab\xFF");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("byte 2"), std::string::npos);
  EXPECT_EQ(t->decode(*t->encode("ab\xFF", {.replace_invalid = true})), "ab\xEF\xBF\xBD");
}

TEST(Tokenizer, DecodeIsTotal) {
  const auto t = make();
  EXPECT_EQ(t->decode(Ids{-1, 'a', 299, 1 << 30, INT32_MIN, 300}), "a<|end|>");
  EXPECT_EQ(t->decode(Ids{'a', 300, 301}, true), "a<think>");
  EXPECT_EQ(t->decode(Ids{0xE5, 0xA5, 'x', 0xE5, 0xA5, 0xBD}), "\xEF\xBF\xBDx\xE5\xA5\xBD");
  EXPECT_EQ(t->decode(Ids{}), "");
}

TEST(Tokenizer, LooksUpTokens) {
  const auto t = make();
  EXPECT_EQ(t->find("abc"), 257);
  EXPECT_EQ(t->find("\xC4\xA0"), 0x20);  // Ġ
  EXPECT_EQ(t->find("<think>"), 301);
  EXPECT_EQ(t->find("nothing"), -1);
  EXPECT_EQ(t->find("\xFF"), -1);
  EXPECT_EQ(t->token_bytes(0x20), " ");
  EXPECT_EQ(t->token_text(0x20), "\xC4\xA0");
  EXPECT_EQ(t->token_bytes(0xE5), "\xE5");
  EXPECT_EQ(t->token_bytes(299), "");
  EXPECT_EQ(t->vocab_size(), 259);
  EXPECT_EQ(t->num_ids(), 303);
  EXPECT_TRUE(t->is_special(300));
  EXPECT_FALSE(t->is_special(301));
  EXPECT_FALSE(t->contains(299));
}

TEST(Tokenizer, UnknownComponentsAreRefusedByName) {
  expect_refused({.normalizer = R"({"type": "Precompiled", "precompiled_charsmap": ""})"}, StatusCode::kUnsupported,
                 "Precompiled");
  expect_refused({.normalizer = R"({"type": "Sequence", "normalizers": [{"type": "Nmt"}]})"}, StatusCode::kUnsupported, "Nmt");
  expect_refused({.pre_tokenizer = R"({"type": "BertPreTokenizer"})"}, StatusCode::kUnsupported, "BertPreTokenizer");
  expect_refused({.post_processor = R"({"type": "BertProcessing"})"}, StatusCode::kUnsupported, "BertProcessing");
  expect_refused({.decoder = R"({"type": "CTC"})"}, StatusCode::kUnsupported, "CTC");
  expect_refused({.model_type = "WordPiece"}, StatusCode::kUnsupported, "WordPiece");
  expect_refused({.model_type = "Unigram"}, StatusCode::kUnsupported, "Unigram");
  expect_refused({.more_model = R"(, "dropout": 0.1)"}, StatusCode::kUnsupported, "dropout");
  expect_refused({.more_model = R"(, "continuing_subword_prefix": "##")"}, StatusCode::kUnsupported,
                 "continuing_subword_prefix");
  expect_refused({.pre_tokenizer = R"({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false})"},
                 StatusCode::kUnsupported, "regular expression");
}

TEST(Tokenizer, ChainsThatMultiplyAreBounded) {
  const auto chain = [](std::string_view part, int n) {
    std::string list;
    for (int i = 0; i < n; ++i) list += (i == 0 ? "" : ", ") + std::string(part);
    return list;
  };
  const std::string thousand =
      format(R"({{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}})", std::string(1000, 'a'));
  const std::string by_expression =
      format(R"({{"type": "Replace", "pattern": {{"Regex": "a"}}, "content": "{}"}})", std::string(1000, 'a'));
  for (const std::string& part : {thousand, by_expression}) {
    const auto t = make({.normalizer = format(R"({{"type": "Sequence", "normalizers": [{}]}})", chain(part, 8))});
    EXPECT_EQ(t->encode("aaaa").status().code(), StatusCode::kInvalidArgument);
    EXPECT_TRUE(t->encode("bbbb").ok());
  }
  // Each pair puts a mark before every piece, and the marks become pieces of their own.
  const std::string marks = R"({"type": "Metaspace", "replacement": "!", "prepend_scheme": "always", "split": false},
                               {"type": "Punctuation", "behavior": "Isolated"},
                               {"type": "Metaspace", "replacement": "?", "prepend_scheme": "always", "split": false},
                               {"type": "Punctuation", "behavior": "Isolated"})";
  const auto marked =
      make({.pre_tokenizer = format(R"({{"type": "Sequence", "pretokenizers": [{}]}})", chain(marks, 20)), .decoder = "null"});
  EXPECT_EQ(marked->encode("ab").status().code(), StatusCode::kInvalidArgument);
  const std::string wide =
      format(R"({{"type": "Replace", "pattern": {{"String": "a"}}, "content": "{}"}})", std::string(200, 'a'));
  expect_refused({.decoder = format(R"({{"type": "Sequence", "decoders": [{}]}})", chain(wide, 2))}, StatusCode::kUnsupported,
                 "multiply");
}

TEST(Tokenizer, ContradictionsAreCorrupt) {
  expect_refused({.more_vocab = R"(, "new": 256)"}, StatusCode::kCorrupt, "the id 256");
  expect_refused({.more_vocab = R"(, "abc": 270)"}, StatusCode::kCorrupt, "same text");
  expect_refused({.more_vocab = R"(, "neg": -1)"}, StatusCode::kCorrupt, "-1");
  expect_refused({.more_vocab = R"(, "far": 2000000000)"}, StatusCode::kUnsupported, "denser");
  expect_refused({.more_vocab = R"(, "far": 6000)"}, StatusCode::kUnsupported, "sparse");
  expect_refused({.merges = R"(["a q"])"}, StatusCode::kCorrupt, "merge 0");
  expect_refused({.merges = R"(["a"])"}, StatusCode::kCorrupt, "merge 0");
  expect_refused({.merges = R"([["a", "b", "c"]])"}, StatusCode::kCorrupt, "merge 0");
  expect_refused({.added = R"([{"id": 5, "content": "abc"}])"}, StatusCode::kCorrupt, "257 in the vocabulary");
  expect_refused({.added = R"([{"id": 300, "content": "x1"}, {"id": 300, "content": "x2"}])"}, StatusCode::kCorrupt, "300");
  expect_refused({.more_model = R"(, "unk_token": "<unk>")"}, StatusCode::kCorrupt, "<unk>");
  const std::string text = Parts().text();
  EXPECT_FALSE(Tokenizer::from_text(text + "x").ok());
  EXPECT_FALSE(Tokenizer::from_text("{}").ok());
  EXPECT_FALSE(Tokenizer::from_text("[]").ok());
  EXPECT_FALSE(Tokenizer::from_text(R"({"model": {"type": "BPE", "vocab": {}, "merges": []}})").ok());
  // Every cut of the file is an error, not a crash.
  for (size_t n = 0; n < text.size(); n += 7) EXPECT_FALSE(Tokenizer::from_text(std::string_view(text).substr(0, n)).ok());
}

TEST(Tokenizer, LoadsFromAModelFolder) {
  testing::MemoryFs fs;
  const auto put = [&](const std::string& path, const std::string& text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    fs.put(path, {p, p + text.size()});
  };
  EXPECT_EQ(Tokenizer::load(fs, "model").status().code(), StatusCode::kNotFound);
  put("model/tokenizer.json", Parts().text());
  ASSERT_TRUE(Tokenizer::load(fs, "model").ok());
  put("model/tokenizer_config.json", R"({"eos_token": "<|end|>", "more": [1, {"a": null}]})");
  EXPECT_EQ((*Tokenizer::load(fs, "model"))->special_tokens().eos, 300);
  // A read error in the middle is reported as such.
  fs.set_hook([](const testing::ReadCall& call) -> std::optional<Result<size_t>> {
    if (call.path.ends_with("tokenizer.json")) return Result<size_t>(Status(StatusCode::kIo, "disk gone"));
    return std::nullopt;
  });
  EXPECT_EQ(Tokenizer::load(fs, "model").status().code(), StatusCode::kIo);
}

// Folders from before added_tokens_decoder keep the special tokens in a file of their own; later ones may carry a stale copy.
TEST(Tokenizer, SpecialTokensMapOfOlderFolders) {
  testing::MemoryFs fs;
  const auto put = [&](const std::string& path, const std::string& text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    fs.put(path, {p, p + text.size()});
  };
  put("model/tokenizer.json", Parts().text());
  put("model/special_tokens_map.json", R"({"eos_token": {"content": "<|end|>", "lstrip": false}, "additional_special_tokens": ["x"]})");
  EXPECT_EQ((*Tokenizer::load(fs, "model"))->special_tokens().eos, 300);
  put("model/tokenizer_config.json", R"({"eos_token": "a", "legacy": true})");
  EXPECT_EQ((*Tokenizer::load(fs, "model"))->special_tokens().eos, 300);
  put("model/tokenizer_config.json", R"({"eos_token": "a", "added_tokens_decoder": {"300": {"content": "<|end|>"}}})");
  EXPECT_NE((*Tokenizer::load(fs, "model"))->special_tokens().eos, 300);
  put("model/tokenizer_config.json", "{}");
  put("model/special_tokens_map.json", R"({"eos_token": )");
  const Status broken = Tokenizer::load(fs, "model").status();
  EXPECT_EQ(broken.code(), StatusCode::kCorrupt);
  EXPECT_NE(broken.message().find("special_tokens_map.json"), std::string::npos) << broken.message();
}

TEST(Tokenizer, AnAbsentFileIsExplained) {
  testing::MemoryFs fs;
  EXPECT_NE(missing_tokenizer(fs, "model").message().find("--tokens"), std::string::npos);
  fs.put("model/tokenizer.model", {});
  const Status s = missing_tokenizer(fs, "model");
  EXPECT_EQ(s.code(), StatusCode::kNotFound);
  EXPECT_NE(s.message().find("only tokenizer.model"), std::string::npos) << s.message();
  EXPECT_NE(s.message().find("save_pretrained"), std::string::npos);
}

TEST(Tokenizer, AMegabyteInOnePieceIsNotQuadratic) {
  const auto t = make();
  std::string text;
  for (int i = 0; i < 400'000; ++i) text += "abcbc"[i % 5];
  const std::clock_t start = std::clock();
  const Ids ids = *t->encode(text);
  EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC);
  EXPECT_EQ(ids.size(), 160'000u);
  // The same as in small pieces.
  EXPECT_EQ(Ids(ids.begin(), ids.begin() + 2), *t->encode("abcbc"));
  EXPECT_EQ(t->decode(ids), text);
}

TEST(Tokenizer, ShortAndLongPiecesAgree) {
  const auto t = make();
  // 63, 64 and 65 symbols: both algorithms.
  for (const int n : {1, 2, 3, 63, 64, 65, 66, 200}) {
    std::string text;
    for (int i = 0; i < n; ++i) text += "cabbcab"[i % 7];
    Ids naive;
    for (const char c : text) naive.push_back(c);
    const auto merge = [&](int32_t a, int32_t b, int32_t product) {
      for (size_t i = 0; i + 1 < naive.size(); ++i) {
        if (naive[i] == a && naive[i + 1] == b) {
          naive[i] = product;
          naive.erase(naive.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        }
      }
    };
    merge('a', 'b', 256);
    merge(256, 'c', 257);
    merge('b', 'c', 258);
    EXPECT_EQ(*t->encode(text), naive) << n;
  }
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const auto t = make({.pre_tokenizer = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": true})"});
  const std::string text = "abc cab abcabc bcbcbc 123 <|end|> ab";
  const Ids expected = *t->encode(text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t i = 0; i < wrong.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 2000; ++k) wrong[i] += *t->encode(text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

// Sanitizers bring their own allocator, whose numbers stay at zero.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsHeap = false;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
constexpr bool kCountsHeap = false;
#else
constexpr bool kCountsHeap = true;
#endif
#else
constexpr bool kCountsHeap = true;
#endif

uint64_t heap_in_use() {
  const struct mallinfo2 m = ::mallinfo2();
  return m.uordblks + m.hblkhd;
}

// Samples the heap at every read of the file.
TEST(Tokenizer, LoadingStaysWithinItsBound) {
  if (!kCountsHeap) GTEST_SKIP() << "needs the system's allocator";
  for (const char* name : {"qwen3", "deepseek_v3", "gptoss"}) {
    SCOPED_TRACE(name);
    testing::MemoryFs fs;
    uint64_t size = 0;
    {
      const std::string text =
          testing::read_xz(testing::source_path(format("tests/data/tokenizers/{}.tokenizer.json.xz", name)));
      size = text.size();
      const auto* p = reinterpret_cast<const std::byte*>(text.data());
      fs.put("m/tokenizer.json", {p, p + text.size()});
    }
    const uint64_t before = heap_in_use();
    uint64_t peak = 0;
    fs.set_hook([&](const testing::ReadCall&) -> std::optional<Result<size_t>> {
      peak = std::max(peak, heap_in_use() - before);
      return std::nullopt;
    });
    Result<std::unique_ptr<Tokenizer>> t = Tokenizer::load(fs, "m");
    ASSERT_TRUE(t.ok()) << t.status().to_string();
    const uint64_t kept = heap_in_use() - before;
    peak = std::max(peak, kept);
    const uint64_t bound = Tokenizer::load_peak_bytes(size);
    EXPECT_LT(peak, bound);
    EXPECT_LT((*t)->memory_bytes(), bound);
    // memory_bytes() counts compiled patterns, which are not on the heap, and misses the allocator's rounding.
    EXPECT_LT(kept, (*t)->memory_bytes() + (1 << 20));
    RecordProperty(format("{}_peak_bytes", name), format("{}", peak));
    RecordProperty(format("{}_kept_bytes", name), format("{}", kept));
  }
}

TEST(Tokenizer, AFileTooDenseForTheBoundIsRefused) {
  // Four million tiny merges in a small file.
  std::string merges = "[";
  for (int i = 0; i < 1'000'000; ++i) merges += i == 0 ? "\"a b\"" : ",\"a b\"";
  merges += "]";
  expect_refused({.merges = merges}, StatusCode::kUnsupported, "denser");
}

}  // namespace
}  // namespace pointsman
