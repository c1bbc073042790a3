// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/lockfile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/json.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;

Sha256Digest digest_of(std::string_view text) {
  return sha256(std::as_bytes(std::span(text)));
}

LockFile sample() {
  LockFile lock{.tool_version = "0.1.0", .created = "2026-11-30T06:00:00Z"};
  lock.files["config.json"] = {digest_of("config"), 6};
  lock.files["tokenizer.json"] = {digest_of("tokenizer"), 9};
  lock.tensors["model.norm.weight"] = {digest_of("norm"), 128};
  lock.experts["layers.0.experts.1"] = {digest_of("one"), uint64_t{1} << 40};
  lock.experts["layers.0.experts.10"] = {digest_of("ten"), 0};
  lock.experts["layers.0.experts.10"].xxh3 = Xxh3Digest{.low = 1, .high = 0xab00000000000000};
  return lock;
}

TEST(LockFile, RoundTripIsExactAndTextIsStable) {
  const LockFile lock = sample();
  const std::string text = lock_to_json(lock);
  EXPECT_EQ(text, lock_to_json(sample()));
  const auto back = parse_lock_json(text);
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->files, lock.files);
  EXPECT_EQ(back->tensors, lock.tensors);
  EXPECT_EQ(back->experts, lock.experts);
  EXPECT_EQ(back->tool_version, "0.1.0");
  EXPECT_EQ(back->created, "2026-11-30T06:00:00Z");
  EXPECT_EQ(lock_to_json(*back), text);
  EXPECT_THAT(text, HasSubstr("\"xxh3\": \"ab000000000000000000000000000001\""));
  EXPECT_EQ(back->experts.at("layers.0.experts.10").xxh3, lock.experts.at("layers.0.experts.10").xxh3);
  EXPECT_EQ(back->experts.at("layers.0.experts.1").xxh3, std::nullopt);
  // The keys in the order of the format's description.
  std::vector<std::string> keys;
  const Json json = *parse_json(text);
  for (const auto& [key, value] : json.as_object()) keys.push_back(key);
  EXPECT_THAT(
      keys, ::testing::ElementsAre("format_version", "tool_version", "created", "model_digest", "files", "tensors", "experts"));
}

TEST(LockFile, DigestNamesTheEntriesOnly) {
  const LockFile lock = sample();
  LockFile later = sample();
  later.created = "2027-01-01T00:00:00Z";
  later.tool_version = "9";
  EXPECT_EQ(later.model_digest(), lock.model_digest());
  // Pinned, computed by another implementation of docs/formats/lockfile.md: a change of the recipe is a change of the format.
  EXPECT_EQ(to_hex(LockFile{}.model_digest()), "63088bc93cb721d87714c796a84abc6d32c3491af974e1e3ea8f285cbe9f2211");
  EXPECT_EQ(to_hex(lock.model_digest()), "d5dc25c851b618f83566c17272192fd77dbc0f65bfc9d2cfa0f9df404d24d311");
  const auto differs = [&](auto change) {
    LockFile other = sample();
    change(other);
    return other.model_digest() != lock.model_digest();
  };
  EXPECT_TRUE(differs([](LockFile& l) { l.files["config.json"].sha256[31] ^= 1; }));
  EXPECT_TRUE(differs([](LockFile& l) { l.files["config.json"].size_bytes = 7; }));
  EXPECT_TRUE(differs([](LockFile& l) { l.experts.erase("layers.0.experts.10"); }));
  EXPECT_TRUE(differs([](LockFile& l) { l.tensors["x"] = {}; }));
  EXPECT_FALSE(differs([](LockFile& l) { l.experts["layers.0.experts.1"].xxh3 = Xxh3Digest{}; })) << "a model has one digest, with XXH3 or without";
  EXPECT_TRUE(differs([](LockFile& l) { l.files.swap(l.tensors); }));
  // An entry that moves to the neighbouring section.
  EXPECT_TRUE(differs([](LockFile& l) {
    l.tensors["tokenizer.json"] = l.files["tokenizer.json"];
    l.files.erase("tokenizer.json");
  }));
}

TEST(LockFile, ReadsAndWritesBesideTheModel) {
  const testing::TempDir dir;
  EXPECT_EQ(read_lock_file(FileSystem::real(), dir.path()).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(write_lock_file(FileSystem::real(), dir.path(), sample()).ok());
  const auto lock = read_lock_file(FileSystem::real(), dir.path());
  ASSERT_TRUE(lock.ok());
  EXPECT_EQ(lock->experts.size(), 2u);
  dir.write(kLockFileName, "{}");
  EXPECT_THAT(read_lock_file(FileSystem::real(), dir.path()).status().message(), HasSubstr(dir.file(kLockFileName)));
}

// Replaces the first occurrence; the digest line stays, so what is checked before it must speak first.
std::string edited(const std::string& from, const std::string& to) {
  std::string text = lock_to_json(sample());
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(LockFile, DamageIsNamed) {
  const std::string hex = to_hex(digest_of("config"));
  const std::tuple<std::string, StatusCode, const char*> cases[] = {
      {"", StatusCode::kCorrupt, "JSON"},
      {"[]", StatusCode::kCorrupt, "expected an object"},
      {"{}", StatusCode::kCorrupt, "format_version"},
      {edited("\"format_version\": 1", "\"format_version\": 2"), StatusCode::kUnsupported,
       "format_version 2: this build reads 1"},
      {R"({"format_version":2,"everything":"else"})", StatusCode::kUnsupported, "format_version 2"},
      {edited("\"format_version\": 1", "\"format_version\": \"1\""), StatusCode::kCorrupt, "no integer \"format_version\""},
      {edited("\"format_version\": 1", "\"format_version\": 1.0"), StatusCode::kCorrupt, "no integer \"format_version\""},
      {edited("\"created\"", "\"made\""), StatusCode::kCorrupt, "unknown key \"made\""},
      {edited("\"2026-11-30T06:00:00Z\"", "7"), StatusCode::kCorrupt, "no string \"created\""},
      {edited("\"files\": {", "\"files\": [], \"tensors\": {"), StatusCode::kCorrupt, "duplicate key"},
      {edited(hex, hex.substr(1)), StatusCode::kCorrupt, "files \"config.json\": \"sha256\" must be 64 hexadecimal digits"},
      {edited(hex, "g" + hex.substr(1)), StatusCode::kCorrupt, "64 hexadecimal digits"},
      {edited("\"size\": 6", "\"size\": -6"), StatusCode::kCorrupt,
       "files \"config.json\": \"size\" must be a non-negative integer"},
      {edited("\"size\": 6", "\"size\": 6.5"), StatusCode::kCorrupt, "non-negative integer"},
      {edited("\"size\": 6", "\"size\": 6, \"note\": 1"), StatusCode::kCorrupt, "files \"config.json\": unknown key \"note\""},
      {edited("\"size\": 6", "\"size\": 6, \"xxh3\": \"ab000000000000000000000000000001\""), StatusCode::kCorrupt,
       "files \"config.json\": unknown key \"xxh3\""},
      {edited("\"ab00000000000000", "\"b00000000000000"), StatusCode::kCorrupt, "\"xxh3\" must be 32 hexadecimal digits"},
      {edited("\"ab000000000000000000000000000001\"", "7"), StatusCode::kCorrupt, "\"xxh3\" must be 32 hexadecimal digits"},
      {edited("\"size\": 6", "\"size\": 7"), StatusCode::kCorrupt, "\"model_digest\" does not match"},
      {edited("\"config.json\"", "\"../config.json\""), StatusCode::kCorrupt, "expected a plain file name"},
      {edited("model.norm", "model\\u0001norm"), StatusCode::kCorrupt, "control characters"},
      {edited("layers.0.experts.10", "layers.0.experts.1"), StatusCode::kCorrupt, "duplicate key"},
      {edited("layers.0.experts.10", "layers.0.experts.11"), StatusCode::kCorrupt, "does not match"},
      {edited("\"model_digest\": \"", "\"model_digest\": \"0"), StatusCode::kCorrupt, "does not match"},
  };
  for (const auto& [text, code, says] : cases) {
    const auto lock = parse_lock_json(text);
    ASSERT_FALSE(lock.ok()) << says;
    EXPECT_EQ(lock.status().code(), code) << lock.status().to_string();
    EXPECT_THAT(lock.status().message(), HasSubstr(says));
  }
}

TEST(LockFile, EveryPrefixIsRefused) {
  const std::string text = lock_to_json(sample());
  for (size_t n = 0; n + 1 < text.size(); ++n)
    EXPECT_FALSE(parse_lock_json(text.substr(0, n)).ok()) << n;  // the last byte is a line end
}

}  // namespace
}  // namespace pointsman
