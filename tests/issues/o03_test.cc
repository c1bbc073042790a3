// SPDX-License-Identifier: Apache-2.0
//
// O3 (sglang#32279, PersuGPT#2): the index lists a shard that is absent, and the model starts with uninitialised weights. A
// tiny MoE in three shards: one missing, one cut, one a Git LFS pointer. Refused, with three different messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kShard2 = "model-00002-of-00003.safetensors";
constexpr const char* kShard3 = "model-00003-of-00003.safetensors";

class O3 : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& entry : fs::directory_iterator(testing::source_path("tests/golden/qwen3_moe_shards3"))) {
      if (entry.is_regular_file() && entry.path().filename() != "expected.safetensors") fs::copy(entry.path(), dir_.path());
    }
    ASSERT_TRUE(open().ok()) << open().status().to_string();
  }
  Result<std::unique_ptr<Checkpoint>> open() const { return Checkpoint::open(FileSystem::real(), dir_.path()); }
  testing::TempDir dir_;
};

TEST_F(O3, MissingShard) {
  fs::remove(dir_.file(kShard2));
  const Status s = open().status();
  EXPECT_EQ(s.code(), StatusCode::kNotFound);
  EXPECT_THAT(s.message(),
              AllOf(HasSubstr("model.safetensors.index.json"), HasSubstr(std::string("1 of 3 shards is missing: ") + kShard2)));
}

TEST_F(O3, CutShard) {
  const std::string path = dir_.file(kShard3);
  fs::resize_file(path, fs::file_size(path) - 4096);
  const Status s = open().status();
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), AllOf(HasSubstr(path), HasSubstr("truncated"), HasSubstr("fetch the file again")));
}

TEST_F(O3, ShardIsALfsPointer) {
  dir_.write(kShard3,
             "version https://git-lfs.github.com/spec/v1\noid "
             "sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 229744\n");
  const Status s = open().status();
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), AllOf(HasSubstr(dir_.file(kShard3)), HasSubstr("Git LFS pointer"), HasSubstr("git lfs pull"),
                                 Not(HasSubstr("truncated"))));
}

TEST_F(O3, ShardIsEmpty) {
  dir_.write(kShard2, "");
  EXPECT_THAT(open().status().message(), AllOf(HasSubstr(dir_.file(kShard2)), HasSubstr("the file is empty")));
}

TEST_F(O3, ShardIsADanglingLink) {
  fs::remove(dir_.file(kShard2));
  fs::create_symlink("../../blobs/0123", dir_.file(kShard2));
  EXPECT_EQ(open().status().code(), StatusCode::kNotFound);
  EXPECT_THAT(open().status().message(), AllOf(HasSubstr(kShard2), HasSubstr("target does not exist")));
}

TEST_F(O3, ShardsAreSwapped) {
  fs::rename(dir_.file(kShard2), dir_.file("x"));
  fs::rename(dir_.file(kShard3), dir_.file(kShard2));
  fs::rename(dir_.file("x"), dir_.file(kShard3));
  EXPECT_EQ(open().status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(open().status().message(), HasSubstr("tensors are in another shard than the index says"));
}

}  // namespace
}  // namespace pointsman
