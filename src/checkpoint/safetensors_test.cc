// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/memory_fs.h"
#include "support/safetensors_builder.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::raw_safetensors;
using testing::SafetensorsBuilder;

Result<SafetensorsHeader> parse(std::string_view json, uint64_t data_bytes) {
  return parse_safetensors_header(json, data_bytes, 8 + json.size());
}

// Through a file, so that length prefix and size are checked as well.
Result<SafetensorsHeader> read(const std::string& bytes, uint64_t max_header_bytes = kMaxSafetensorsHeaderBytes) {
  testing::MemoryFs fs;
  const auto* data = reinterpret_cast<const std::byte*>(bytes.data());
  fs.put("m/f.safetensors", std::vector<std::byte>(data, data + bytes.size()));
  return read_safetensors_header(**fs.open("m/f.safetensors"), bytes.size(), max_header_bytes);
}

TEST(Safetensors, ReadsEntriesSortedByNameWithOffsetsInTheFile) {
  const std::string file =
      SafetensorsBuilder().metadata("format", "pt").add("z", "F32", {2, 3}, 24).add("a", "BF16", {5}, 10).build();
  const Result<SafetensorsHeader> h = read(file);
  ASSERT_TRUE(h.ok()) << h.status().to_string();
  ASSERT_EQ(h->entries.size(), 2u);
  EXPECT_EQ(h->entries[0].name, "a");
  EXPECT_EQ(h->entries[0].dtype, DType::kBF16);
  EXPECT_EQ(h->entries[0].num_dims, 1);
  EXPECT_EQ(h->entries[0].shape[0], 5);
  EXPECT_EQ(h->entries[0].offset, file.size() - 10);
  EXPECT_EQ(h->entries[1].name, "z");
  EXPECT_EQ(h->entries[1].offset, file.size() - 34);
  EXPECT_EQ(h->entries[1].size_bytes, 24u);
  ASSERT_EQ(h->metadata.size(), 1u);
  EXPECT_EQ(h->metadata[0], std::make_pair(std::string("format"), std::string("pt")));
}

TEST(Safetensors, UnalignedHeadersScalarsAndEmptyTensorsAreFine) {
  EXPECT_TRUE(parse(R"({"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})", 4).ok());
  EXPECT_TRUE(parse(R"({"e":{"dtype":"F32","shape":[3,0,2],"data_offsets":[0,0]}})", 0).ok());
  EXPECT_TRUE(parse("{}", 0).ok());
  EXPECT_TRUE(parse(R"({"__metadata__":{}})", 0).ok());
  // Empty tensors may lie before, between and after others.
  EXPECT_TRUE(
      parse(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
            R"("c":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},"d":{"dtype":"U8","shape":[1],"data_offsets":[4,5]},)"
            R"("e":{"dtype":"U8","shape":[0],"data_offsets":[5,5]}})",
            5)
          .ok());
  // Keys of an entry in any order; escapes in names; spaces and line ends as padding.
  const auto h = parse("{ \"\\u00e9\\/x\" : {\"data_offsets\":[0,1],\"shape\":[1],\"dtype\":\"U8\"} } \n ", 1);
  ASSERT_TRUE(h.ok()) << h.status().to_string();
  EXPECT_EQ(h->entries[0].name, "é/x");
}

TEST(Safetensors, SubByteTypesAreCountedInBits) {
  EXPECT_TRUE(parse(R"({"q":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3]}})", 3).ok());
  EXPECT_TRUE(parse(R"({"q":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3).ok());
  EXPECT_THAT(parse(R"({"q":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2).status().message(),
              AllOf(HasSubstr("tensor q"), HasSubstr("no whole number of bytes")));
}

struct BadHeader {
  const char* what;
  std::string json;
  uint64_t data_bytes;
  StatusCode code;
  std::vector<std::string> says;
};

std::string tensor(const std::string& body) {
  return "{\"t\":{" + body + "}}";
}

std::vector<BadHeader> bad_headers() {
  constexpr StatusCode corrupt = StatusCode::kCorrupt, unsupported = StatusCode::kUnsupported;
  const std::string ok = R"("dtype":"F32","shape":[1],"data_offsets":[0,4])";
  return {
      {"empty", "", 0, corrupt, {"does not begin with '{'"}},
      {"no object", "[1]", 0, corrupt, {"does not begin with '{'"}},
      {"space before the brace", " {}", 0, corrupt, {"does not begin with '{'"}},
      {"cut", "{", 0, corrupt, {"ends with \"{\"", "cut"}},
      {"cut in a string", "{\"t", 0, corrupt, {"safetensors header"}},
      {"cut after an entry", "{\"t\":{" + ok + "}", 4, corrupt, {"safetensors header"}},
      {"trailing comma", "{\"t\":{" + ok + "},}", 4, corrupt, {"safetensors header"}},
      {"no UTF-8", "{\"\xff\":{" + ok + "}}", 4, corrupt, {"UTF-8"}},
      {"lone surrogate", "{\"\\ud800\":{" + ok + "}}", 4, corrupt, {"safetensors header"}},
      {"text after it", tensor(ok) + "x", 4, corrupt, {"ends with", "x\", expected '}'"}},
      {"second value", tensor(ok) + "{}", 4, corrupt, {"after the closing brace"}},
      {"zero bytes after it", tensor(ok) + std::string(3, '\0'), 4, corrupt, {"???\", expected '}'"}},
      {"same tensor twice",
       "{\"t\":{" + ok + R"(},"t":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8,
       corrupt,
       {"tensor t", "twice"}},
      {"same tensor twice, escaped",
       "{\"t\":{" + ok + R"(},"\u0074":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
       8,
       corrupt,
       {"tensor t", "twice"}},
      {"dtype twice", tensor(R"("dtype":"F32",)" + ok), 4, corrupt, {"tensor t", "\"dtype\" appears twice"}},
      {"shape twice", tensor(ok + R"(,"shape":[1])"), 4, corrupt, {"tensor t", "\"shape\" appears twice"}},
      {"offsets twice", tensor(ok + R"(,"data_offsets":[0,4])"), 4, corrupt, {"tensor t", "\"data_offsets\" appears twice"}},
      {"metadata twice", R"({"__metadata__":{},"__metadata__":{}})", 0, corrupt, {"__metadata__ appears twice"}},
      {"metadata key twice", R"({"__metadata__":{"a":"1","a":"2"}})", 0, corrupt, {"__metadata__ key \"a\" appears twice"}},
      {"metadata number", R"({"__metadata__":{"a":1}})", 0, corrupt, {"__metadata__ \"a\" is 1, expected a string"}},
      {"metadata no object", R"({"__metadata__":"x"})", 0, corrupt, {"__metadata__"}},
      {"unknown key", tensor(ok + R"(,"strides":[1])"), 4, corrupt, {"tensor t", "unknown key \"strides\""}},
      {"no dtype", tensor(R"("shape":[1],"data_offsets":[0,4])"), 4, corrupt, {"tensor t", "lacks \"dtype\""}},
      {"no shape", tensor(R"("dtype":"F32","data_offsets":[0,4])"), 4, corrupt, {"tensor t", "lacks \"shape\""}},
      {"no offsets", tensor(R"("dtype":"F32","shape":[1])"), 4, corrupt, {"tensor t", "lacks \"data_offsets\""}},
      {"entry is a list", R"({"t":[]})", 0, corrupt, {"tensor t", "expected an object"}},
      {"entry is null", R"({"t":null})", 0, corrupt, {"tensor t", "expected an object"}},
      {"unknown dtype",
       tensor(R"("dtype":"F33","shape":[1],"data_offsets":[0,4])"),
       4,
       unsupported,
       {"tensor t", "unknown dtype \"F33\""}},
      {"dtype in small letters",
       tensor(R"("dtype":"f32","shape":[1],"data_offsets":[0,4])"),
       4,
       unsupported,
       {"unknown dtype \"f32\""}},
      {"dtype no string",
       tensor(R"("dtype":32,"shape":[1],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "\"dtype\" is 32"}},
      {"shape no list", tensor(R"("dtype":"F32","shape":1,"data_offsets":[0,4])"), 4, corrupt, {"tensor t", "\"shape\" is 1"}},
      {"negative dimension",
       tensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "dimension 0", "-1", "non-negative"}},
      {"fractional dimension",
       tensor(R"("dtype":"F32","shape":[1,1.5],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "dimension 1", "1.5"}},
      {"dimension with exponent",
       tensor(R"("dtype":"F32","shape":[1e0],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "1e0"}},
      {"dimension as text",
       tensor(R"("dtype":"F32","shape":["1"],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "dimension 0", "\"1\""}},
      {"dimension null", tensor(R"("dtype":"F32","shape":[null],"data_offsets":[0,4])"), 4, corrupt, {"tensor t", "null"}},
      {"dimension 2^63",
       tensor(R"("dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "9223372036854775808"}},
      {"dimension 2^64",
       tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "18446744073709551616"}},
      {"product overflows",
       tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"tensor t", "overflows"}},
      {"product wraps to 4 bytes",
       tensor(R"("dtype":"U8","shape":[4294967297,4294967296,4294967296],"data_offsets":[0,4])"),
       4,
       corrupt,
       {"overflows"}},
      {"overflow hidden by a zero",
       tensor(R"("dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0])"),
       0,
       corrupt,
       {"overflows"}},
      {"five dimensions",
       tensor(R"("dtype":"F32","shape":[1,1,1,1,1],"data_offsets":[0,4])"),
       4,
       unsupported,
       {"tensor t", "more than 4 dimensions"}},
      {"offsets no list",
       tensor(R"("dtype":"F32","shape":[1],"data_offsets":{})"),
       4,
       corrupt,
       {"tensor t", "\"data_offsets\" is {"}},
      {"one offset", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])"), 4, corrupt, {"tensor t", "1 numbers"}},
      {"no offset", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[])"), 4, corrupt, {"tensor t", "0 numbers"}},
      {"three offsets",
       tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"),
       8,
       corrupt,
       {"tensor t", "more than two"}},
      {"reversed",
       tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"),
       4,
       corrupt,
       {"tensor t", "reversed: begin 4 is after end 0"}},
      {"negative offset",
       tensor(R"("dtype":"F32","shape":[1],"data_offsets":[-4,0])"),
       4,
       corrupt,
       {"tensor t", "-4", "non-negative"}},
      {"fractional offset", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4.0])"), 4, corrupt, {"tensor t", "4.0"}},
      {"past the end",
       tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"),
       7,
       corrupt,
       {"tensor t", "ends at byte 8", "7 data bytes", "truncated"}},
      {"end 2^64-1",
       tensor(R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615])"),
       4,
       corrupt,
       {"tensor t", "18446744073709551615"}},
      {"size mismatch",
       tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
       8,
       corrupt,
       {"tensor t", "need 12 bytes", "span 8"}},
      {"first not at 0",
       tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"),
       8,
       corrupt,
       {"tensor t", "begins at byte 4", "expected 0"}},
      {"last not at the end", tensor(ok), 9, corrupt, {"end at byte 4", "9 data bytes", "5 belong to no tensor"}},
      {"data without tensors", "{}", 1, corrupt, {"1 belong to no tensor"}},
      {"hole",
       "{\"t\":{" + ok + R"(},"u":{"dtype":"U8","shape":[2],"data_offsets":[6,8]}})",
       8,
       corrupt,
       {"tensor u", "2 bytes before it belong to no tensor"}},
      {"overlap",
       "{\"t\":{" + ok + R"(},"u":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6,
       corrupt,
       {"tensor u", "overlaps tensor t by 2 bytes"}},
      {"same span twice",
       "{\"t\":{" + ok + R"(},"u":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4,
       corrupt,
       {"overlaps"}},
      {"empty tensor within another",
       "{\"t\":{" + ok + R"(},"u":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}})",
       4,
       corrupt,
       {"tensor u", "overlaps"}},
      {"empty name", "{\"\":{" + ok + "}}", 4, corrupt, {"name of tensor 0"}},
      {"name with a line end", "{\"a\\nb\":{" + ok + "}}", 4, corrupt, {"name of tensor 0", "a?b", "control"}},
      {"name with a zero", "{\"a\\u0000b\":{" + ok + "}}", 4, corrupt, {"control"}},
      {"name with DEL", "{\"a\\u007f\":{" + ok + "}}", 4, corrupt, {"control"}},
      {"name with a C1 control", "{\"a\\u009b\":{" + ok + "}}", 4, corrupt, {"control"}},
      {"raw control character", "{\"a\nb\":{" + ok + "}}", 4, corrupt, {"safetensors header"}},
      {"long name", "{\"" + std::string(1025, 'n') + "\":{" + ok + "}}", 4, corrupt, {"1 to 1024 bytes"}},
      {"deep nesting", tensor(R"("dtype":"F32","shape":[)" + std::string(5000, '[') + "1"), 4, corrupt, {"tensor t"}},
  };
}

TEST(Safetensors, EveryBrokenRuleHasItsOwnMessage) {
  for (const BadHeader& c : bad_headers()) {
    SCOPED_TRACE(c.what);
    const Result<SafetensorsHeader> h = parse(c.json, c.data_bytes);
    ASSERT_FALSE(h.ok());
    EXPECT_EQ(h.status().code(), c.code) << h.status().to_string();
    for (const std::string& s : c.says) EXPECT_THAT(h.status().message(), HasSubstr(s));
    EXPECT_LT(h.status().message().size(), 500u);
    // The same through a file: its name comes first.
    const Result<SafetensorsHeader> in_file = read(raw_safetensors(c.json, std::string(c.data_bytes, 'd')));
    ASSERT_FALSE(in_file.ok());
    EXPECT_THAT(in_file.status().message(), ::testing::StartsWith("m/f.safetensors: "));
  }
}

TEST(Safetensors, TheLongestNameIsAccepted) {
  EXPECT_TRUE(parse("{\"" + std::string(1024, 'n') + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1).ok());
}

TEST(Safetensors, LengthPrefixIsCheckedBeforeAnythingIsAllocated) {
  EXPECT_THAT(read("").status().message(), HasSubstr("empty"));
  EXPECT_THAT(read("1234567").status().message(), HasSubstr("7 bytes, too few"));
  EXPECT_THAT(read(raw_safetensors(0, "", "")).status().message(), HasSubstr("claims 0 bytes"));
  EXPECT_THAT(read(raw_safetensors(3, "{}", "")).status().message(),
              AllOf(HasSubstr("claims 3 bytes"), HasSubstr("only 2 follow")));
  EXPECT_THAT(read(raw_safetensors(uint64_t{1} << 63, "{}", "")).status().message(),
              HasSubstr("more than the limit of 100000000"));
  EXPECT_THAT(read(raw_safetensors(~uint64_t{0}, "{}", "")).status().message(), HasSubstr("more than the limit"));
  EXPECT_THAT(read(raw_safetensors(100'000'001, "{}", "")).status().message(), HasSubstr("more than the limit"));
  const auto too_long = read(raw_safetensors(64, "{}" + std::string(62, ' '), ""), 63);
  EXPECT_THAT(too_long.status().message(), AllOf(HasSubstr("limit of 63"), HasSubstr("several files")));
  EXPECT_EQ(too_long.status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(read(raw_safetensors(64, "{}" + std::string(62, ' '), ""), 64).ok());
}

TEST(Safetensors, GitLfsPointerIsNamed) {
  const Status s = read("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4\n").status();
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), AllOf(HasSubstr("Git LFS pointer"), HasSubstr("git lfs pull")));
}

TEST(Safetensors, EveryPrefixOfAFileIsRefused) {
  const std::string file = SafetensorsBuilder().metadata("k", "v").add("a", "F32", {2}, 8).add("b", "I64", {}, 8).build();
  ASSERT_TRUE(read(file).ok());
  for (size_t n = 0; n < file.size(); ++n) EXPECT_EQ(read(file.substr(0, n)).status().code(), StatusCode::kCorrupt) << n;
}

// No flipped byte may crash or yield a span outside the file.
TEST(Safetensors, EveryFlippedHeaderByteIsRefusedOrHarmless) {
  const std::string good = SafetensorsBuilder().metadata("k", "v").add("a", "F32", {2, 1}, 8).add("b", "I64", {}, 8).build();
  const size_t end = good.size() - 16;
  for (size_t i = 0; i < end; ++i) {
    for (const int mask : {0x01, 0x02, 0x04, 0x10, 0x20, 0x80, 0xff}) {
      std::string file = good;
      file[i] = static_cast<char>(file[i] ^ mask);
      const Result<SafetensorsHeader> h = read(file);
      if (!h.ok()) continue;
      for (const SafetensorsEntry& e : h->entries) {
        EXPECT_LE(e.offset, file.size());
        EXPECT_LE(e.size_bytes, file.size() - e.offset);
      }
    }
  }
}

TEST(Safetensors, AHundredThousandTensorsAreRead) {
  std::string json = "{";
  constexpr int kTensors = 93'697;
  for (int i = 0; i < kTensors; ++i) {
    json += (i == 0 ? "" : ",") + std::string("\"model.layers.") + std::to_string(i / 1536) + ".mlp.experts." +
            std::to_string(i % 1536) + ".weight\":{\"dtype\":\"BF16\",\"shape\":[2048,4096],\"data_offsets\":[" +
            std::to_string(uint64_t{16777216} * i) + "," + std::to_string(uint64_t{16777216} * (i + 1)) + "]}";
  }
  const Result<SafetensorsHeader> h = parse(json + "}", uint64_t{16777216} * kTensors);
  ASSERT_TRUE(h.ok()) << h.status().to_string();
  EXPECT_EQ(h->entries.size(), static_cast<size_t>(kTensors));
  EXPECT_TRUE(
      std::is_sorted(h->entries.begin(), h->entries.end(), [](const auto& a, const auto& b) { return a.name < b.name; }));
}

}  // namespace
}  // namespace pointsman
