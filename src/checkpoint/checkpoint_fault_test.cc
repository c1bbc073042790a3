// SPDX-License-Identifier: Apache-2.0
//
// Counting loops: every call to the file system fails once, in each way it can.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "checkpoint/model_config.h"
#include "support/faulty_fs.h"
#include "support/golden.h"
#include "support/memory_fs.h"
#include "support/safetensors_builder.h"

namespace pointsman {
namespace {

using testing::FaultyFs;
using ::testing::HasSubstr;
using testing::SafetensorsBuilder;
using Fault = FaultyFs::Fault;
using Op = FaultyFs::Op;

constexpr Fault kReadFaults[] = {Fault::kIoError, Fault::kInterrupted, Fault::kShortOne, Fault::kShortHalf, Fault::kEndOfFile};

std::vector<std::byte> to_bytes(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

void put_checkpoint(testing::MemoryFs& fs) {
  fs.put("m/s-1.safetensors", to_bytes(SafetensorsBuilder().add("a", "F32", {2, 2}, 16, 1).add("b", "U8", {3}, 3, 20).build()));
  fs.put("m/s-2.safetensors", to_bytes(SafetensorsBuilder().add("c", "F32", {1}, 4, 40).build()));
  fs.put(
      "m/model.safetensors.index.json",
      to_bytes(testing::shard_index_json({{"a", "s-1.safetensors"}, {"b", "s-1.safetensors"}, {"c", "s-2.safetensors"}}, 23)));
  fs.put(
      "m/config.json",
      to_bytes(R"({"model_type":"qwen3","hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2,
    "head_dim":4,"vocab_size":16,"intermediate_size":8})"));
  fs.put("m/generation_config.json", to_bytes(R"({"eos_token_id":[2,3]})"));
}

// Opens, then reads every tensor.
Status open_and_read(FileSystem& fs) {
  PM_ASSIGN_OR_RETURN(auto c, Checkpoint::open(fs, "m", {.path_check_interval_ms = 0}));
  for (const TensorEntry& t : c->tensors()) {
    std::vector<std::byte> bytes(t.size_bytes);
    PM_RETURN_IF_ERROR(c->read(t.file_idx, t.offset, bytes));
    const auto first = static_cast<std::byte>(t.name == "a" ? 1 : t.name == "b" ? 20 : 40);
    EXPECT_EQ(bytes[0], first) << "wrong bytes without an error";
  }
  PM_ASSIGN_OR_RETURN(const ModelConfig config, read_model_config(fs, "m"));
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{2, 3}));
  return ok_status();
}

void walk(Op op, Fault fault) {
  for (uint64_t n = 0;; ++n) {
    SCOPED_TRACE(::testing::Message() << "op " << static_cast<int>(op) << " fault " << static_cast<int>(fault) << " call "
                                      << n);
    testing::MemoryFs memory;
    put_checkpoint(memory);
    FaultyFs fs(memory);
    fs.fail(op, n, fault);
    const Status s = open_and_read(fs);
    if (fs.calls(op) <= n) {
      EXPECT_TRUE(s.ok()) << s.to_string();
      EXPECT_GT(n, 0u);
      return;
    }
    const bool is_transient =
        op == Op::kRead && (fault == Fault::kInterrupted || fault == Fault::kShortOne || fault == Fault::kShortHalf);
    if (is_transient) {
      EXPECT_TRUE(s.ok()) << s.to_string();
      continue;
    }
    ASSERT_FALSE(s.ok());
    EXPECT_THAT(s.message(), HasSubstr("m"));
    if (fault == Fault::kEndOfFile) {
      EXPECT_EQ(s.code(), StatusCode::kCorrupt) << s.to_string();
      EXPECT_THAT(s.message(), HasSubstr("truncated"));
    } else {
      EXPECT_THAT(s.message(), HasSubstr("injected"));
    }
  }
}

TEST(CheckpointFaults, EveryReadFailsOnce) {
  for (const Fault fault : kReadFaults) walk(Op::kRead, fault);
}

TEST(CheckpointFaults, EveryOtherCallFailsOnce) {
  for (const Op op : {Op::kOpen, Op::kStat, Op::kList, Op::kFileStat}) walk(op, Fault::kIoError);
}

TEST(CheckpointFaults, ReadsThatArriveByteByByteAreTheSame) {
  testing::MemoryFs memory;
  put_checkpoint(memory);
  FaultyFs fs(memory);
  fs.fail(Op::kRead, 0, Fault::kShortOne, ~uint64_t{0});
  EXPECT_TRUE(open_and_read(fs).ok());
}

// Every size between nothing and one byte less, for each file: named, never accepted.
TEST(CheckpointFaults, EveryTruncationIsNamed) {
  for (const std::string name : {"s-1.safetensors", "s-2.safetensors", "model.safetensors.index.json", "config.json"}) {
    testing::MemoryFs memory;
    put_checkpoint(memory);
    const size_t full = memory.node("m/" + name).bytes.size();
    for (size_t n = 0; n < full; ++n) {
      FaultyFs fs(memory);
      fs.truncate("m/" + name, n);
      const Status s = open_and_read(fs);
      ASSERT_EQ(s.code(), StatusCode::kCorrupt) << name << " " << n << " " << s.to_string();
      EXPECT_THAT(s.message(), HasSubstr(name == "config.json" ? "m" : "m/" + name));
    }
  }
}

TEST(CheckpointFaults, TruncationAfterOpeningIsNamedByTheRead) {
  testing::MemoryFs memory;
  put_checkpoint(memory);
  FaultyFs fs(memory);
  const auto c = Checkpoint::open(fs, "m");
  ASSERT_TRUE(c.ok());
  const TensorEntry* t = (*c)->find("c");
  fs.truncate("m/s-2.safetensors", t->offset + 2);
  std::vector<std::byte> bytes(4);
  const Status s = (*c)->read(t->file_idx, t->offset, bytes);
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), HasSubstr("m/s-2.safetensors: the file was truncated while in use"));
}

TEST(CheckpointFaults, AFlippedByteInAHeaderIsRefusedOrChangesNothingElse) {
  testing::MemoryFs memory;
  put_checkpoint(memory);
  const size_t header_end = memory.node("m/s-2.safetensors").bytes.size() - 4;
  for (uint64_t i = 0; i < header_end; ++i) {
    for (const int mask : {1, 0x10, 0x80}) {
      FaultyFs fs(memory);
      fs.flip("m/s-2.safetensors", i, static_cast<uint8_t>(mask));
      const auto c = Checkpoint::open(fs, "m");
      if (!c.ok()) {
        EXPECT_THAT(c.status().message(), HasSubstr("m/")) << i;
        continue;
      }
      // Only padding, or a dtype or shape of the same size.
      ASSERT_NE((*c)->find("c"), nullptr) << i;
      EXPECT_EQ((*c)->find("c")->size_bytes, 4u) << i;
    }
  }
}

TEST(CheckpointFaults, LockFileIsWrittenWholeOrNotAtAll) {
  LockFile lock{.tool_version = "t", .created = "2026-01-01T00:00:00Z"};
  lock.tensors["w"] = {.sha256 = {}, .size_bytes = 3};
  for (const Op op : {Op::kCreate, Op::kWrite, Op::kCommit}) {
    for (uint64_t n = 0;; ++n) {
      testing::MemoryFs memory;
      FaultyFs fs(memory);
      fs.fail(op, n, Fault::kNoSpace);
      const Status s = write_lock_file(fs, "m", lock);
      EXPECT_EQ(s.ok(), fs.calls(op) <= n);
      EXPECT_EQ(memory.contains("m/pointsman.lock.json"), s.ok());
      if (s.ok()) break;
    }
  }
}

}  // namespace
}  // namespace pointsman
