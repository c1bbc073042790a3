// SPDX-License-Identifier: Apache-2.0
#include "verify/model_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;

constexpr auto go_on = [](uint64_t, uint64_t) { return true; };

struct Copy {
  explicit Copy(const char* folder = "tests/golden/qwen3_moe_base") {
    for (const auto& e : std::filesystem::directory_iterator(testing::source_path(folder))) {
      if (e.is_regular_file() && e.path().filename() != kLockFileName)
        std::filesystem::copy(e.path(), dir.file(e.path().filename().string()));
    }
  }
  const std::string& path() const { return dir.path(); }
  void flip(const std::string& file, uint64_t offset) const {
    std::fstream f(dir.file(file), std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(offset));
    const char c = static_cast<char>(f.get() ^ 0x10);
    f.seekp(static_cast<std::streamoff>(offset));
    f.put(c);
  }
  LockFile lock(int threads = 2) const {
    auto l = make_lock(FileSystem::real(), path(), threads, go_on);
    EXPECT_TRUE(l.ok()) << l.status().to_string();
    return std::move(*l);
  }
  LockCheck check(const LockFile& l) const {
    auto c = check_lock(FileSystem::real(), path(), l, 2, go_on);
    EXPECT_TRUE(c.ok()) << c.status().to_string();
    return std::move(*c);
  }
  testing::TempDir dir;
};

TEST(ModelLock, CoversEveryByteOfEveryTensorOnce) {
  const Copy model;
  const LockFile lock = model.lock();
  const auto checkpoint = Checkpoint::open(FileSystem::real(), model.path());
  ASSERT_TRUE(checkpoint.ok());
  uint64_t stored = 0, locked = 0;
  for (const TensorEntry& t : (*checkpoint)->tensors()) stored += t.size_bytes;
  for (const auto* entries : {&lock.tensors, &lock.experts}) {
    for (const auto& [name, e] : *entries) locked += e.size_bytes;
  }
  EXPECT_EQ(stored, locked);
  EXPECT_EQ(lock.files.count("config.json"), 1u);
  EXPECT_EQ(lock.files.count("tokenizer.json"), 1u);
  EXPECT_EQ(lock.files.count("model.safetensors"), 0u);
}

TEST(ModelLock, ExpertDigestIsOverGateUpDown) {
  const Copy model;
  const LockFile lock = model.lock();
  const auto checkpoint = Checkpoint::open(FileSystem::real(), model.path());
  ASSERT_TRUE(checkpoint.ok());
  Sha256 hash;
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    const TensorEntry* t = (*checkpoint)->find(std::string("model.layers.1.mlp.experts.2.") + part + ".weight");
    ASSERT_NE(t, nullptr);
    std::vector<std::byte> bytes(t->size_bytes);
    ASSERT_TRUE((*checkpoint)->read(t->file_idx, t->offset, bytes).ok());
    hash.update(bytes);
  }
  EXPECT_EQ(lock.experts.at("layers.1.experts.2").sha256, hash.finish());
}

TEST(ModelLock, ThreadsChangeNothing) {
  const Copy model;
  EXPECT_EQ(model.lock(1).model_digest(), model.lock(4).model_digest());
}

TEST(ModelLock, FusedAndPerExpertLayoutsLockTheSameExperts) {
  const Copy fused("tests/golden/qwen3_moe_layout_fused"), separate("tests/golden/qwen3_moe_layout_per_expert");
  EXPECT_EQ(fused.lock().experts, separate.lock().experts);
}

TEST(ModelLock, IntactModelPasses) {
  const Copy model;
  const LockCheck c = model.check(model.lock());
  EXPECT_TRUE(c.mismatches.empty());
  EXPECT_GT(c.files, 0u);
  EXPECT_GT(c.tensors, 0u);
  EXPECT_GT(c.experts, 0u);
  EXPECT_GT(c.bytes, 0u);
}

TEST(ModelLock, EveryFlippedByteIsNamed) {
  const Copy model;
  const LockFile lock = model.lock();
  const auto checkpoint = Checkpoint::open(FileSystem::real(), model.path());
  ASSERT_TRUE(checkpoint.ok());
  const TensorEntry* dense = (*checkpoint)->find("model.norm.weight");
  const TensorEntry* expert = (*checkpoint)->find("model.layers.0.mlp.experts.3.down_proj.weight");
  ASSERT_TRUE(dense != nullptr && expert != nullptr);
  model.flip("model.safetensors", dense->offset);
  model.flip("model.safetensors", expert->offset + expert->size_bytes - 1);
  model.flip("tokenizer.json", 100);
  const LockCheck c = model.check(lock);
  ASSERT_EQ(c.mismatches.size(), 3u);
  EXPECT_EQ(c.mismatches[0].kind, "file");
  EXPECT_EQ(c.mismatches[0].name, "tokenizer.json");
  EXPECT_EQ(c.mismatches[1].kind, "tensor");
  EXPECT_EQ(c.mismatches[1].name, "model.norm.weight");
  EXPECT_THAT(c.mismatches[1].what, HasSubstr("model.safetensors @ 0x"));
  EXPECT_EQ(c.mismatches[2].kind, "expert");
  EXPECT_EQ(c.mismatches[2].name, "layers.0.experts.3");
}

TEST(ModelLock, AWrongXxh3IsTheLocksOwnDamage) {
  const Copy model;
  LockFile lock = model.lock();
  ASSERT_TRUE(lock.experts.begin()->second.xxh3.has_value());
  EXPECT_TRUE(model.check(lock).mismatches.empty());
  lock.experts.begin()->second.xxh3->low ^= 1;
  const LockCheck c = model.check(lock);
  ASSERT_EQ(c.mismatches.size(), 1u);
  EXPECT_EQ(c.mismatches[0].name, lock.experts.begin()->first);
  EXPECT_THAT(c.mismatches[0].what, HasSubstr("the lock file is damaged"));
}

TEST(ModelLock, FilesThatCameOrWentAreNamed) {
  const Copy model;
  const LockFile lock = model.lock();
  model.dir.write("chat_template.jinja", "{{ messages }}");
  std::filesystem::remove(model.dir.file("generation_config.json"));
  const LockCheck c = model.check(lock);
  ASSERT_EQ(c.mismatches.size(), 2u);
  EXPECT_EQ(c.mismatches[0].name, "generation_config.json");
  EXPECT_EQ(c.mismatches[0].what, "absent from the folder");
  EXPECT_EQ(c.mismatches[1].name, "chat_template.jinja");
  EXPECT_EQ(c.mismatches[1].what, "absent from the lock file");
}

TEST(ModelLock, EntriesThatOneSideLacksAreNamed) {
  const Copy model;
  LockFile lock = model.lock();
  lock.experts.erase("layers.0.experts.0");
  lock.tensors.emplace("model.ghost.weight", LockFile::Entry{});
  const LockCheck c = model.check(lock);
  ASSERT_EQ(c.mismatches.size(), 2u);
  EXPECT_EQ(c.mismatches[0].name, "model.ghost.weight");
  EXPECT_EQ(c.mismatches[0].what, "absent from the checkpoint");
  EXPECT_EQ(c.mismatches[1].name, "layers.0.experts.0");
}

TEST(ModelLock, ATruncatedCheckpointIsAMismatchNotAFailure) {
  const Copy model;
  const LockFile lock = model.lock();
  std::filesystem::resize_file(model.dir.file("model.safetensors"), 1000);
  const LockCheck c = model.check(lock);
  ASSERT_EQ(c.mismatches.size(), 1u);
  EXPECT_EQ(c.mismatches[0].kind, "checkpoint");
}

TEST(ModelLock, StopsWhenAsked) {
  const Copy model;
  EXPECT_EQ(make_lock(FileSystem::real(), model.path(), 2, [](uint64_t, uint64_t) { return false; }).status().code(),
            StatusCode::kUnavailable);
}

TEST(ModelLock, ProgressReachesTheTotal) {
  const Copy model;
  std::atomic<uint64_t> most{0}, total{0};
  ASSERT_TRUE(make_lock(FileSystem::real(), model.path(), 2, [&](uint64_t done, uint64_t all) {
                uint64_t seen = most;
                while (done > seen && !most.compare_exchange_weak(seen, done)) {
                }
                total = all;
                return true;
              }).ok());
  EXPECT_EQ(most, total);
  EXPECT_GT(total, 0u);
}

}  // namespace
}  // namespace pointsman
