// SPDX-License-Identifier: Apache-2.0
//
// Ids and texts against those of the tokenizers library (tests/golden/MANIFEST.md): three real vocabularies and one small file
// per feature.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/json.h"
#include "base/log.h"
#include "support/golden.h"
#include "support/xz.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"

namespace pointsman {
namespace {

using testing::read_xz;
using testing::RecordReader;
using testing::source_path;

std::string golden(const std::string& name) {
  return source_path("tests/golden/tokenizer/" + name);
}

std::unique_ptr<Tokenizer> load_real(const std::string& name) {
  Result<std::unique_ptr<Tokenizer>> t =
      Tokenizer::from_text(read_xz(source_path("tests/data/tokenizers/" + name + ".tokenizer.json.xz")));
  EXPECT_TRUE(t.ok()) << t.status().to_string();
  return t.ok() ? std::move(t).value() : nullptr;
}

void check_encode(const Tokenizer& t, const std::string& path, EncodeOptions options = {}) {
  RecordReader records(read_xz(path));
  int count = 0;
  int wrong = 0;
  while (!records.done()) {
    const std::string text = records.bytes();
    const std::vector<int32_t> expected = records.ids();
    const Result<std::vector<int32_t>> ids = t.encode(text, options);
    ASSERT_TRUE(ids.ok()) << ids.status().to_string();
    ++count;
    if (*ids == expected) continue;
    if (++wrong > 3) continue;
    EXPECT_EQ(*ids, expected) << "record " << count - 1 << " of " << path << ": " << json_quote(text.substr(0, 300));
  }
  EXPECT_EQ(wrong, 0) << path;
  EXPECT_GT(count, 0) << path;
}

std::string streamed(const Tokenizer& t, const std::vector<int32_t>& ids, bool skip_special) {
  StreamingDetokenizer stream(t, {.skip_special = skip_special});
  std::string out;
  for (const int32_t id : ids) out += stream.push(id);
  return out + stream.flush();
}

// `skip_broken`: records whose text has U+FFFD are only checked for streaming.
void check_decode(const Tokenizer& t, const std::string& path, bool skip_broken = false) {
  RecordReader records(read_xz(path));
  int wrong = 0;
  while (!records.done()) {
    const std::vector<int32_t> ids = records.ids();
    std::string all = records.bytes();
    std::string plain = records.bytes();
    if (skip_broken && all.find("\xEF\xBF\xBD") != std::string::npos) {
      all = t.decode(ids);
      plain = t.decode(ids, true);
    }
    if (t.decode(ids) == all && t.decode(ids, true) == plain && streamed(t, ids, false) == all &&
        streamed(t, ids, true) == plain)
      continue;
    if (++wrong > 3) continue;
    EXPECT_EQ(t.decode(ids), all) << path;
    EXPECT_EQ(t.decode(ids, true), plain) << path;
    EXPECT_EQ(streamed(t, ids, false), all) << path;
  }
  EXPECT_EQ(wrong, 0) << path;
}

// The file with the ids of its added tokens as the library gives them out: those of the vocabulary, else the next free one.
std::string renumbered(const std::string& path) {
  Result<Json> file = parse_json(*read_text_file(FileSystem::real(), path, 16 << 20));
  EXPECT_TRUE(file.ok());
  const Json& vocab = *file->find("model")->find("vocab");
  int64_t next = static_cast<int64_t>(vocab.as_object().size());
  Json added = *file->find("added_tokens");
  for (Json& token : added.as_array()) {
    const Json* known = vocab.find(token.find("content")->as_string());
    token.set("id", known != nullptr ? *known : Json(next++));
  }
  file->set("added_tokens", std::move(added));
  return file->dump();
}

class RealTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(RealTokenizer, IdsAndTextsAreThoseOfTheReference) {
  const std::string name = GetParam();
  const std::unique_ptr<Tokenizer> t = load_real(name);
  ASSERT_NE(t, nullptr);
  check_encode(*t, golden(name + ".encode.bin.xz"));
  check_encode(*t, golden(name + ".newer_unicode.bin.xz"));
  check_decode(*t, golden(name + ".decode.bin.xz"));
}

TEST_P(RealTokenizer, AMegabyteEncodesAsTheReferenceHasIt) {
  const std::string name = GetParam();
  const std::unique_ptr<Tokenizer> t = load_real(name);
  ASSERT_NE(t, nullptr);
  check_encode(*t, golden(name + ".long.bin.xz"));
}

INSTANTIATE_TEST_SUITE_P(All, RealTokenizer, ::testing::Values("qwen3", "deepseek_v3", "gptoss"),
                         [](const ::testing::TestParamInfo<const char*>& p) { return std::string(p.param); });

TEST(SmallTokenizer, EveryFeatureAgreesWithTheReference) {
  int agreed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden("small"))) {
    const std::string folder = entry.path().string();
    SCOPED_TRACE(folder);
    Result<std::unique_ptr<Tokenizer>> t = Tokenizer::load(FileSystem::real(), folder);
    if (folder.ends_with("/end_of_word_suffix")) {
      ASSERT_FALSE(t.ok());
      EXPECT_EQ(t.status().code(), StatusCode::kUnsupported);
      EXPECT_NE(t.status().message().find("end_of_word_suffix"), std::string::npos);
      continue;
    }
    if (folder.find("/added_tokens") != std::string::npos) {
      // One added token has another id than in the vocabulary. The library warns and renumbers it and those after it; we
      // refuse.
      ASSERT_FALSE(t.ok());
      EXPECT_EQ(t.status().code(), StatusCode::kCorrupt);
      t = Tokenizer::from_text(renumbered(folder + "/tokenizer.json"));
    }
    ASSERT_TRUE(t.ok()) << t.status().to_string();
    check_encode(**t, folder + "/encode.bin.xz");
    if (std::filesystem::exists(folder + "/encode_special.bin.xz")) {
      check_encode(**t, folder + "/encode_special.bin.xz", {.add_special_tokens = true});
    }
    // Where <0xXX> tokens form no valid text, the library drops the good bytes of the run as well (decoder.h).
    const bool whole_runs = folder.find("/byte_fallback") != std::string::npos || folder.ends_with("/llama_like");
    check_decode(**t, folder + "/decode.bin.xz", whole_runs);
    ++agreed;
  }
  EXPECT_GE(agreed, 70);
}

}  // namespace
}  // namespace pointsman
