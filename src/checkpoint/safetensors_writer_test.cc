// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "checkpoint/checkpoint.h"
#include "checkpoint/safetensors.h"
#include "support/faulty_fs.h"
#include "support/memory_fs.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using testing::FaultyFs;
using ::testing::HasSubstr;
using Declaration = SafetensorsWriter::Declaration;

std::vector<std::byte> bytes(size_t n, int seed = 1) {
  std::vector<std::byte> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = static_cast<std::byte>(i * 7 + static_cast<size_t>(seed));
  return v;
}

TEST(SafetensorsWriter, WritesRowsInAnyOrderAndTheReaderAgrees) {
  testing::MemoryFs fs;
  auto w = SafetensorsWriter::create(
      fs, "m/model.safetensors",
      {{"rows", DType::kF32, {3, 2}}, {"scalar", DType::kI64, {}}, {"none", DType::kBF16, {0, 4}}, {"packed", DType::kF4, {6}}},
      {{"made \"by\"", "a\ntest"}});
  ASSERT_TRUE(w.ok()) << w.status().to_string();
  const auto data = bytes(24), eight = bytes(8, 3), three = bytes(3, 5);
  const std::span<const std::byte> rows(data);
  EXPECT_TRUE((*w)->write("packed", 0, three).ok());
  EXPECT_TRUE((*w)->write("rows", 16, rows.subspan(16, 8)).ok());
  EXPECT_TRUE((*w)->write("rows", 0, rows.subspan(0, 8)).ok());
  EXPECT_TRUE((*w)->write("scalar", 0, eight).ok());
  EXPECT_TRUE((*w)->write("rows", 8, rows.subspan(8, 8)).ok());
  EXPECT_TRUE((*w)->write("none", 0, {}).ok());
  EXPECT_FALSE(fs.contains("m/model.safetensors"));  // only commit() gives the name
  ASSERT_TRUE((*w)->commit().ok());

  auto c = Checkpoint::open(fs, "m");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  const auto read = [&](const char* name) {
    const TensorEntry* t = (*c)->find(name);
    std::vector<std::byte> v(t->size_bytes);
    EXPECT_TRUE((*c)->read(t->file_idx, t->offset, v).ok());
    return v;
  };
  EXPECT_EQ(read("rows"), data);
  EXPECT_EQ(read("scalar"), eight);
  EXPECT_EQ(read("packed"), three);
  EXPECT_EQ(shape_string(*(*c)->find("none")), "[0, 4]");
  EXPECT_EQ((*c)->find("rows")->offset % 8, 0u);  // the header is padded
  const auto& file = fs.node("m/model.safetensors").bytes;
  auto opened = fs.open("m/model.safetensors");
  const auto header = read_safetensors_header(**opened, file.size());
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->metadata[0].second, "a\ntest");
}

TEST(SafetensorsWriter, AHoleReadsAsZerosAndOtherTensorsKeepTheirBytes) {
  testing::MemoryFs fs;
  auto w = SafetensorsWriter::create(fs, "m/model.safetensors", {{"a", DType::kU8, {3}}, {"hole", DType::kF32, {5}}, {"none", DType::kF32, {0}}, {"z", DType::kU8, {2}}}, {});
  ASSERT_TRUE(w.ok()) << w.status().to_string();
  EXPECT_TRUE((*w)->write("z", 0, bytes(2, 9)).ok());
  EXPECT_TRUE((*w)->leave_hole("hole").ok());
  EXPECT_TRUE((*w)->leave_hole("none").ok());
  EXPECT_EQ((*w)->leave_hole("absent").code(), StatusCode::kInvalidArgument);
  const Status early = (*w)->commit();
  EXPECT_THAT(early.message(), HasSubstr("tensor a "));
  EXPECT_TRUE((*w)->write("a", 0, bytes(3)).ok());
  ASSERT_TRUE((*w)->commit().ok());
  const auto file = fs.open("m/model.safetensors");
  ASSERT_TRUE(file.ok());
  std::vector<std::byte> tail(25);
  ASSERT_TRUE(read_exact(**file, tail, fs.stat("m/model.safetensors")->size_bytes - tail.size()).ok());
  std::vector<std::byte> expected = bytes(3);
  expected.resize(23, std::byte{0});
  for (const std::byte b : bytes(2, 9)) expected.push_back(b);
  EXPECT_EQ(tail, expected);
}

TEST(SafetensorsWriter, DeclarationsThatCannotBeAreRefusedBeforeAnythingIsCreated) {
  const int64_t huge = std::numeric_limits<int64_t>::max();
  const std::pair<std::vector<Declaration>, const char*> cases[] = {
      {{{"a", DType::kF32, {1}}, {"a", DType::kF32, {1}}}, "declared twice"},
      {{{"", DType::kF32, {1}}}, "cannot be written"},
      {{{"a\nb", DType::kF32, {1}}}, "cannot be written"},
      {{{"__metadata__", DType::kF32, {1}}}, "cannot be written"},
      {{{"a", DType::kF32, {-1}}}, "dimension -1 is negative"},
      {{{"a", DType::kF32, {huge, 2}}}, "overflows"},
      {{{"a", DType::kU8, {huge}}, {"b", DType::kU8, {huge}}}, "overflows"},
      {{{"a", DType::kF4, {3}}}, "whole number of bytes"},
      {{{"a", DType::kF32, {1, 1, 1, 1, 1}}}, "more than 4 dimensions"},
  };
  for (const auto& [tensors, says] : cases) {
    testing::MemoryFs memory;
    FaultyFs fs(memory);
    const auto w = SafetensorsWriter::create(fs, "m/f.safetensors", tensors, {});
    ASSERT_FALSE(w.ok()) << says;
    EXPECT_EQ(w.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(w.status().message(), HasSubstr(says));
    EXPECT_EQ(fs.calls(FaultyFs::Op::kCreate), 0u);
  }
}

TEST(SafetensorsWriter, WritesBeyondATensorAreRefused) {
  testing::MemoryFs fs;
  auto w = SafetensorsWriter::create(fs, "m/f.safetensors", {{"a", DType::kU8, {4}}, {"b", DType::kU8, {4}}}, {});
  ASSERT_TRUE(w.ok());
  EXPECT_THAT((*w)->write("c", 0, bytes(1)).message(), HasSubstr("tensor c was not declared"));
  EXPECT_THAT((*w)->write("a", 1, bytes(4)).message(), HasSubstr("4 bytes at 1 go beyond its 4"));
  EXPECT_EQ((*w)->write("a", ~uint64_t{0}, bytes(2)).code(), StatusCode::kInvalidArgument);
}

TEST(SafetensorsWriter, CommitNamesATensorWithAGap) {
  testing::MemoryFs fs;
  auto w = SafetensorsWriter::create(fs, "m/f.safetensors", {{"a", DType::kU8, {4}}, {"b", DType::kU8, {4}}}, {});
  ASSERT_TRUE(w.ok());
  // Eight bytes in all, but not the eight that were declared.
  ASSERT_TRUE((*w)->write("a", 0, bytes(4)).ok());
  ASSERT_TRUE((*w)->write("a", 0, bytes(4)).ok());
  EXPECT_THAT((*w)->commit().message(), HasSubstr("tensor b was not written from byte 0"));
  ASSERT_TRUE((*w)->write("b", 0, bytes(2)).ok());
  ASSERT_TRUE((*w)->write("b", 3, bytes(1)).ok());
  EXPECT_THAT((*w)->commit().message(), HasSubstr("tensor b was not written from byte 2"));
  EXPECT_FALSE(fs.contains("m/f.safetensors"));
  ASSERT_TRUE((*w)->write("b", 1, bytes(3)).ok());
  EXPECT_TRUE((*w)->commit().ok());
}

TEST(SafetensorsWriter, AFailureAtAnyStepLeavesTheOldFile) {
  const testing::TempDir dir;
  const std::string path = dir.file("f.safetensors");
  const auto write_all = [&](FileSystem& fs) -> Status {
    PM_ASSIGN_OR_RETURN(auto w, SafetensorsWriter::create(fs, path, {{"a", DType::kU8, {4}}, {"b", DType::kU8, {4}}}, {}));
    PM_RETURN_IF_ERROR(w->write("a", 0, bytes(4)));
    PM_RETURN_IF_ERROR(w->write("b", 0, bytes(4)));
    return w->commit();
  };
  dir.write("f.safetensors", "old");
  for (const auto op : {FaultyFs::Op::kCreate, FaultyFs::Op::kWrite, FaultyFs::Op::kCommit}) {
    for (uint64_t n = 0;; ++n) {
      FaultyFs fs(FileSystem::real());
      fs.fail(op, n, FaultyFs::Fault::kNoSpace);
      const Status s = write_all(fs);
      if (fs.calls(op) <= n) {
        EXPECT_TRUE(s.ok()) << s.to_string();
        dir.write("f.safetensors", "old");
        break;
      }
      EXPECT_EQ(s.code(), StatusCode::kIo);
      EXPECT_THAT(s.message(), HasSubstr(path));
      EXPECT_EQ(std::filesystem::file_size(path), 3u);
      // No temporary file stays behind.
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
    }
  }
}

}  // namespace
}  // namespace pointsman
