// SPDX-License-Identifier: Apache-2.0
#include "base/fs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

namespace pointsman {
namespace {

struct FsTest : ::testing::Test {
  FsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "pointsman_fs_XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    dir = pattern;
  }
  ~FsTest() override { std::filesystem::remove_all(dir); }
  std::string path(const std::string& name) const { return join_path(dir, name); }
  FileSystem& fs = FileSystem::real();
  std::string dir;
};

TEST_F(FsTest, WriteIsAllOrNothing) {
  ASSERT_TRUE(write_text_file(fs, path("a"), "first").ok());
  EXPECT_EQ(read_text_file(fs, path("a"), 100).value(), "first");
  {
    auto file = std::move(fs.create_atomic(path("a"))).value();
    ASSERT_TRUE(file->pwrite(std::as_bytes(std::span("half", 4)), 0).ok());
    EXPECT_EQ(read_text_file(fs, path("a"), 100).value(), "first");
  }
  EXPECT_EQ(fs.list(dir).value(), std::vector<std::string>{"a"}) << "the temporary file is gone";
  ASSERT_TRUE(write_text_file(fs, path("a"), "second").ok());
  EXPECT_EQ(read_text_file(fs, path("a"), 100).value(), "second");
}

TEST_F(FsTest, ReadExactSaysHowMuchIsMissing) {
  ASSERT_TRUE(write_text_file(fs, path("a"), "0123456789").ok());
  auto file = std::move(fs.open(path("a"))).value();
  char out[4];
  ASSERT_TRUE(read_exact(*file, std::as_writable_bytes(std::span(out)), 6).ok());
  EXPECT_EQ(std::memcmp(out, "6789", 4), 0);
  const Status status = read_exact(*file, std::as_writable_bytes(std::span(out)), 8);
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("2 bytes missing at offset 10"), std::string::npos) << status.message();
  file->forget(0, 10);
  EXPECT_EQ(file->path(), path("a"));
}

TEST_F(FsTest, InterruptedAndShortReadsAreRepeated) {
  struct Nervous final : File {
    std::string name = "nervous";
    int calls = 0;
    Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
      if (++calls % 2 == 1) return Status(StatusCode::kUnavailable, "interrupted");
      out[0] = static_cast<std::byte>(offset);
      return size_t{1};
    }
    Result<FileInfo> stat() override { return FileInfo{}; }
    void forget(uint64_t, uint64_t) override {}
    const std::string& path() const override { return name; }
  } file;
  std::byte out[5];
  ASSERT_TRUE(read_exact(file, out, 3).ok());
  for (int i = 0; i < 5; ++i) EXPECT_EQ(static_cast<int>(out[i]), 3 + i);
}

TEST_F(FsTest, MissingFilesAndDirectoriesAreNotFound) {
  EXPECT_EQ(fs.open(path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(fs.stat(path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(fs.list(path("none")).status().code(), StatusCode::kNotFound);
  EXPECT_NE(fs.open(path("none")).status().message().find(path("none")), std::string::npos);
  EXPECT_FALSE(fs.create_atomic(path("none/a")).ok());
}

TEST_F(FsTest, StatTellsFilesFromLinksAndOthers) {
  ASSERT_TRUE(write_text_file(fs, path("a"), "abc").ok());
  ASSERT_EQ(::symlink("a", path("link").c_str()), 0);
  ASSERT_EQ(::symlink("nowhere", path("broken").c_str()), 0);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  const FileInfo a = fs.stat(path("a")).value();
  EXPECT_TRUE(a.is_regular);
  EXPECT_FALSE(a.is_symlink);
  EXPECT_EQ(a.size_bytes, 3u);
  const FileInfo link = fs.stat(path("link")).value();
  EXPECT_TRUE(link.is_symlink);
  EXPECT_EQ(link.inode, a.inode);
  const Status broken = fs.stat(path("broken")).status();
  EXPECT_EQ(broken.code(), StatusCode::kNotFound);
  EXPECT_NE(broken.message().find("target does not exist"), std::string::npos) << broken.message();
  EXPECT_FALSE(fs.stat(path("fifo")).value().is_regular);
  // Opening a pipe that nobody writes to must not hang.
  EXPECT_EQ(read_text_file(fs, path("fifo"), 10).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(fs.list(dir).value(), (std::vector<std::string>{"a", "broken", "fifo", "link"}));
}

TEST_F(FsTest, AReplacedFileHasAnotherIdentity) {
  ASSERT_TRUE(write_text_file(fs, path("a"), "abc").ok());
  auto file = std::move(fs.open(path("a"))).value();
  const FileInfo before = file->stat().value();
  ASSERT_TRUE(write_text_file(fs, path("a"), "abd").ok());
  EXPECT_NE(fs.stat(path("a")).value().inode, before.inode);
  EXPECT_EQ(file->stat().value().inode, before.inode);
}

TEST_F(FsTest, TextFilesHaveASizeLimit) {
  ASSERT_TRUE(write_text_file(fs, path("a"), std::string(101, 'x')).ok());
  EXPECT_EQ(read_text_file(fs, path("a"), 100).status().code(), StatusCode::kUnsupported);
  EXPECT_TRUE(read_text_file(fs, path("a"), 101).ok());
}

TEST(JoinPath, OneSlashBetween) {
  EXPECT_EQ(join_path("a", "b"), "a/b");
  EXPECT_EQ(join_path("a/", "b"), "a/b");
  EXPECT_EQ(join_path("", "b"), "b");
}

}  // namespace
}  // namespace pointsman
