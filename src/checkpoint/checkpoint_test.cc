// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "support/golden.h"
#include "support/log_capture.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::LogCapture;
using testing::SafetensorsBuilder;
using testing::shard_index_json;
using testing::TempDir;

constexpr const char* kIndex = "model.safetensors.index.json";
const std::vector<std::pair<std::string, std::string>> kTwoShards = {
    {"a", "s-1.safetensors"}, {"b", "s-1.safetensors"}, {"c", "s-2.safetensors"}};

void write_two_shards(const TempDir& dir) {
  dir.write("s-1.safetensors", SafetensorsBuilder().add("a", "F32", {2, 2}, 16, 1).add("b", "U8", {3}, 3, 20).build());
  dir.write("s-2.safetensors", SafetensorsBuilder().add("c", "F32", {1}, 4, 40).build());
  dir.write(kIndex, shard_index_json(kTwoShards, 23));
}

Result<std::unique_ptr<Checkpoint>> open(const TempDir& dir, CheckpointOptions options = {}) {
  return Checkpoint::open(FileSystem::real(), dir.path(), options);
}
// Always checks the name as well.
Result<std::unique_ptr<Checkpoint>> open_watchful(const TempDir& dir, size_t max_open_files) {
  return open(dir, {.max_open_files = max_open_files, .path_check_interval_ms = 0});
}
Status read_all(const Checkpoint& c, std::string_view name, std::vector<std::byte>* out = nullptr) {
  const TensorEntry* t = c.find(name);
  std::vector<std::byte> bytes(t->size_bytes);
  Status s = c.read(t->file_idx, t->offset, bytes);
  if (out != nullptr) *out = bytes;
  return s;
}

TEST(Checkpoint, ShardsBecomeOneTableSortedByName) {
  const TempDir dir;
  write_two_shards(dir);
  const LogCapture log;
  const auto c = open(dir);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_THAT(log.lines, IsEmpty());
  ASSERT_EQ((*c)->tensors().size(), 3u);
  EXPECT_EQ((*c)->tensors()[1].name, "b");
  EXPECT_EQ((*c)->files().size(), 2u);
  EXPECT_EQ((*c)->files()[(*c)->find("c")->file_idx].name, "s-2.safetensors");
  EXPECT_EQ(shape_string(*(*c)->find("a")), "[2, 2]");
  EXPECT_EQ((*c)->find("a")->num_elements(), 4);
  EXPECT_EQ((*c)->find("aa"), nullptr);
  EXPECT_EQ((*c)->find(""), nullptr);
  EXPECT_GT((*c)->table_bytes(), 3 * sizeof(TensorEntry));
  std::vector<std::byte> b;
  ASSERT_TRUE(read_all(**c, "b", &b).ok());
  EXPECT_EQ(b, (std::vector<std::byte>{std::byte{20}, std::byte{21}, std::byte{22}}));
}

TEST(Checkpoint, FilesBeyondTheLimitAreOpenedForEachRead) {
  const TempDir dir;
  write_two_shards(dir);
  for (const size_t limit : {0u, 1u, 2u}) {
    const auto c = open_watchful(dir, limit);
    ASSERT_TRUE(c.ok());
    for (const char* name : {"a", "b", "c"}) EXPECT_TRUE(read_all(**c, name).ok());
    (*c)->forget(1, 0, 4096);
  }
}

TEST(Checkpoint, SymbolicLinksToFilesAreFiles) {
  const TempDir blobs, dir;
  write_two_shards(blobs);
  for (const char* name : {"s-1.safetensors", "s-2.safetensors", kIndex}) fs::create_symlink(blobs.file(name), dir.file(name));
  const auto c = open(dir);
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_TRUE(read_all(**c, "c").ok());
}

TEST(Checkpoint, EveryGoldenFolderOpens) {
  for (const std::string& folder : testing::golden_folders("")) {
    const auto c = Checkpoint::open(FileSystem::real(), folder);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    for (const TensorEntry& t : (*c)->tensors()) EXPECT_TRUE(read_all(**c, t.name).ok()) << t.name;
  }
}

TEST(Checkpoint, FoldersWithoutWeightsAreExplained) {
  const TempDir dir;
  EXPECT_EQ(Checkpoint::open(FileSystem::real(), dir.file("absent")).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(Checkpoint::open(FileSystem::real(), dir.file("absent")).status().message(), HasSubstr("absent"));
  dir.write("config.json", "{}");
  EXPECT_EQ(open(dir).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(open(dir).status().message(), HasSubstr("expected a Hugging Face model folder"));
  dir.write("weights.gguf", "GGUF");
  EXPECT_THAT(open(dir).status().message(), HasSubstr("GGUF"));
  for (const char* name : {"pytorch_model.bin", "model.pt", "model.pth"}) {
    dir.write(name, "\x80\x02}q\x01.");
    EXPECT_EQ(open(dir).status().code(), StatusCode::kUnsupported) << name;
    EXPECT_THAT(open(dir).status().message(), AllOf(HasSubstr(name), HasSubstr("pickled"), HasSubstr("safe_serialization")));
    fs::remove(dir.file(name));
  }
  // The folder is a file.
  EXPECT_EQ(Checkpoint::open(FileSystem::real(), dir.file("config.json")).status().code(), StatusCode::kNotFound);
}

TEST(Checkpoint, ThingsThatAreNoFilesAreRefused) {
  for (const char* kind : {"folder", "pipe", "dangling link", "link to a folder", "loop"}) {
    SCOPED_TRACE(kind);
    const TempDir dir;
    const std::string path = dir.file("model.safetensors");
    const std::string_view k = kind;
    if (k == "folder") fs::create_directory(path);
    if (k == "pipe") {
      ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
    }
    if (k == "dangling link") fs::create_symlink(dir.file("gone"), path);
    if (k == "link to a folder") fs::create_symlink(dir.path(), path);
    if (k == "loop") fs::create_symlink(path, path);
    const Status s = open(dir).status();
    ASSERT_FALSE(s.ok());
    EXPECT_THAT(s.message(), HasSubstr(path));
    if (k == "dangling link") {
      EXPECT_THAT(s.message(), HasSubstr("target does not exist"));
    } else if (k != "loop") {
      EXPECT_THAT(s.message(), HasSubstr("expected a regular file"));
    }
  }
}

TEST(Checkpoint, MissingShardsAreListedAtOnce) {
  const TempDir dir;
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 10; i < 40; ++i) map.emplace_back("t" + std::to_string(i), "s-" + std::to_string(i) + ".safetensors");
  dir.write(kIndex, shard_index_json(map, 0));
  const Status s = open(dir).status();
  EXPECT_EQ(s.code(), StatusCode::kNotFound);
  EXPECT_THAT(s.message(), AllOf(HasSubstr("30 of 30 shards are missing"), HasSubstr("s-10.safetensors, s-11.safetensors"),
                                 HasSubstr("and 20 more")));
  EXPECT_LT(s.message().size(), 600u);
}

TEST(Checkpoint, IndexAndShardsMustAgree) {
  const TempDir dir;
  write_two_shards(dir);
  const auto message = [&](std::vector<std::pair<std::string, std::string>> map) {
    dir.write(kIndex, shard_index_json(map, 23));
    return open(dir).status().message();
  };
  auto map = kTwoShards;
  map.emplace_back("d", "s-2.safetensors");
  map.emplace_back("aa", "s-1.safetensors");
  EXPECT_THAT(message(map),
              AllOf(HasSubstr("2 of 5 tensors are in no shard"), HasSubstr("aa (s-1.safetensors), d (s-2.safetensors)")));
  map = kTwoShards;
  map[1].second = "s-2.safetensors";
  EXPECT_THAT(message(map), HasSubstr("b (in s-1.safetensors, not in s-2.safetensors)"));
  map = kTwoShards;
  map.erase(map.begin());
  EXPECT_THAT(message(map),
              AllOf(HasSubstr("1 tensors of the shards are not in the index"), HasSubstr("a (in s-1.safetensors)")));
  dir.write("s-2.safetensors", SafetensorsBuilder().add("c", "F32", {1}, 4).add("a", "F32", {2, 2}, 16).build());
  EXPECT_THAT(message(kTwoShards), HasSubstr("tensor a is in two shards, s-1.safetensors and s-2.safetensors"));
}

TEST(Checkpoint, ALongListOfMissingTensorsIsCounted) {
  const TempDir dir;
  dir.write("s.safetensors", SafetensorsBuilder().add("t0", "U8", {1}, 1).build());
  std::vector<std::pair<std::string, std::string>> map;
  for (int i = 0; i < 5000; ++i) map.emplace_back("t" + std::to_string(i), "s.safetensors");
  dir.write(kIndex, shard_index_json(map, 1));
  const std::string message = open(dir).status().message();
  EXPECT_THAT(message, AllOf(HasSubstr("4999 of 5000 tensors"), HasSubstr("and 4989 more")));
  EXPECT_LT(message.size(), 700u);
}

TEST(Checkpoint, AWrongTotalSizeIsAWarning) {
  const TempDir dir;
  write_two_shards(dir);
  dir.write(kIndex, shard_index_json(kTwoShards, 24));
  const LogCapture log;
  EXPECT_TRUE(open(dir).ok());
  EXPECT_THAT(log.text(), HasSubstr("total_size says 24, the tensors have 23 bytes"));
}

TEST(Checkpoint, StrayFilesAreListedInOneWarning) {
  const TempDir dir;
  write_two_shards(dir);
  dir.write("consolidated.safetensors", "anything");
  dir.write("s-3.safetensors", "anything");
  const LogCapture log;
  EXPECT_TRUE(open(dir).ok());
  ASSERT_EQ(log.lines.size(), 1u);
  EXPECT_THAT(log.lines[0], AllOf(HasSubstr("not part of the checkpoint"), HasSubstr("2 in all"),
                                  HasSubstr("consolidated.safetensors, s-3.safetensors")));
}

TEST(Checkpoint, ASingleFileBesideAnIndexThatDoesNotMentionItWins) {
  const TempDir dir;
  write_two_shards(dir);
  dir.write("model.safetensors", SafetensorsBuilder().add("only", "U8", {1}, 1).build());
  for (const bool shards_present : {true, false}) {
    if (!shards_present) fs::remove(dir.file("s-1.safetensors"));
    const LogCapture log;
    const auto c = open(dir);
    ASSERT_TRUE(c.ok()) << c.status().to_string();
    EXPECT_EQ((*c)->tensors().size(), 1u);
    EXPECT_THAT(log.text(), AllOf(HasSubstr("the index is stale and ignored"), HasSubstr("s-2.safetensors")));
  }
  // An index that maps to the single file is checked like any other.
  dir.write(kIndex, shard_index_json({{"only", "model.safetensors"}, {"other", "model.safetensors"}}, 1));
  EXPECT_THAT(open(dir).status().message(), HasSubstr("other (model.safetensors)"));
}

TEST(Checkpoint, AnIndexThatIsNoIndexIsRefusedByName) {
  const TempDir dir;
  write_two_shards(dir);
  for (const std::string& text : {std::string(), std::string("{"), std::string("version https://git-lfs.github.com/spec/v1\n"),
                                  std::string("\0\0", 2), std::string(R"({"weight_map":{"a":"../s-1.safetensors"}})")}) {
    dir.write(kIndex, text);
    EXPECT_EQ(open(dir).status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(open(dir).status().message(), HasSubstr(dir.file(kIndex)));
  }
}

TEST(Checkpoint, LimitsOfOptionsHold) {
  const TempDir dir;
  write_two_shards(dir);
  EXPECT_TRUE(open(dir, {.max_tensors = 3}).ok());
  EXPECT_THAT(open(dir, {.max_tensors = 2}).status().message(), HasSubstr("more than 2 tensors"));
  EXPECT_THAT(open(dir, {.max_header_bytes = 16}).status().message(), HasSubstr("limit of 16"));
}

// What can happen to a file under a running engine. Each with descriptors kept and without.
class CheckpointChanges : public ::testing::TestWithParam<size_t> {
 protected:
  void SetUp() override {
    write_two_shards(dir_);
    auto c = open_watchful(dir_, GetParam());
    ASSERT_TRUE(c.ok());
    checkpoint_ = std::move(*c);
    ASSERT_TRUE(read_all(*checkpoint_, "c").ok());
  }
  Status read() { return read_all(*checkpoint_, "c"); }
  std::string path() const { return dir_.file("s-2.safetensors"); }
  void expect_refused(const char* says) {
    const Status s = read();
    EXPECT_EQ(s.code(), StatusCode::kCorrupt) << s.to_string();
    EXPECT_THAT(s.message(), AllOf(HasSubstr(path()), HasSubstr(says), HasSubstr("reading 4 bytes at 0x")));
    EXPECT_TRUE(read_all(*checkpoint_, "a").ok());  // the other shard is untouched
  }
  TempDir dir_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_P(CheckpointChanges, Truncated) {
  fs::resize_file(path(), fs::file_size(path()) - 1);
  expect_refused("truncated while in use");
}
TEST_P(CheckpointChanges, TruncatedToNothing) {
  fs::resize_file(path(), 0);
  expect_refused("truncated while in use: 0 bytes");
}
TEST_P(CheckpointChanges, Grown) {
  fs::resize_file(path(), fs::file_size(path()) + 1);
  expect_refused("written to while in use");
}
TEST_P(CheckpointChanges, WrittenInPlace) {
  // Same bytes, later time.
  fs::last_write_time(path(), fs::last_write_time(path()) + std::chrono::seconds(1));
  expect_refused("written to while in use");
}
TEST_P(CheckpointChanges, ReplacedByARename) {
  dir_.write("new", SafetensorsBuilder().add("c", "F32", {1}, 4, 99).build());
  fs::rename(dir_.file("new"), path());
  expect_refused("replaced while in use");
}
TEST_P(CheckpointChanges, Removed) {
  fs::remove(path());
  expect_refused("removed while in use");
}
INSTANTIATE_TEST_SUITE_P(Descriptors, CheckpointChanges, ::testing::Values(0, 512),
                         [](const auto& p) { return p.param == 0 ? "OpenedForEachRead" : "Kept"; });

TEST(Checkpoint, TheNameIsLookedUpOncePerInterval) {
  const TempDir dir;
  write_two_shards(dir);
  const auto c = open(dir, {.path_check_interval_ms = 3'600'000});
  ASSERT_TRUE(c.ok());
  dir.write("new", SafetensorsBuilder().add("c", "F32", {1}, 4, 99).build());
  fs::rename(dir.file("new"), dir.file("s-2.safetensors"));
  // Within the interval the descriptor still leads to the old bytes, which are the right ones.
  std::vector<std::byte> bytes;
  EXPECT_TRUE(read_all(**c, "c", &bytes).ok());
  EXPECT_EQ(bytes[0], std::byte{40});
}

TEST(Checkpoint, ReadsFromManyThreads) {
  const TempDir dir;
  write_two_shards(dir);
  for (const size_t limit : {0u, 512u}) {
    const auto c = open_watchful(dir, limit);
    ASSERT_TRUE(c.ok());
    std::vector<std::thread> threads;
    std::atomic<int> failures{0};
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int n = 0; n < 200; ++n) {
          std::vector<std::byte> bytes;
          if (!read_all(**c, n % 2 ? "a" : "c", &bytes).ok() || bytes[0] != std::byte(n % 2 ? 1 : 40)) ++failures;
        }
      });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(failures, 0);
  }
}

}  // namespace
}  // namespace pointsman
