// SPDX-License-Identifier: Apache-2.0
//
// What the store does when bytes are wrong, missing, late or refused: a named error, no slot made visible, and a store that
// works again afterwards.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "experts/store.h"
#include "support/expert_fixture.h"

namespace pointsman {
namespace {

using testing::ExpertFixture;
using testing::ExpertFixtureShape;
using testing::ReadCall;

struct StoreFaultTest : ::testing::Test {
  std::unique_ptr<ExpertStore> make(const ExpertFixture& f, ExpertStoreOptions options) {
    auto store = ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, std::move(options));
    EXPECT_TRUE(store.ok()) << store.status().to_string();
    return store.ok() ? std::move(store).value() : nullptr;
  }
  // The first error of the batch, or ok. Bytes of every expert handed out are checked.
  static Status run(const ExpertFixture& f, ExpertStore& store, int layer, const std::vector<int32_t>& ids) {
    PM_RETURN_IF_ERROR(store.begin(layer, ids));
    size_t n = 0;
    for (;; ++n) {
      auto handle = store.next();
      if (!handle.ok()) {
        EXPECT_EQ(store.next().status().message(), handle.status().message()) << "the batch has failed, and says so again";
        store.end();
        return handle.status();
      }
      if (!*handle) break;
      for (const ExpertPart p : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
        const auto expected = f.expected(layer, handle->expert_id(), p);
        EXPECT_EQ(std::memcmp(handle->part(p).data, expected.data(), expected.size()), 0) << "wrong bytes were handed out";
      }
    }
    EXPECT_EQ(n, ids.size());
    store.end();
    return ok_status();
  }
  static bool contains(const Status& s, std::string_view text) { return s.message().find(text) != std::string::npos; }

  std::unique_ptr<Device> device = make_cpu_device();
  MemoryBudget budget{uint64_t{1} << 30};
};

TEST_F(StoreFaultTest, AFlippedBitInAnyPartIsNamedAndTheStoreGoesOn) {
  for (const bool record_order : {true, false}) {
    ExpertFixture f({.record_order = record_order});
    auto store = make(f, {.num_slots = 4});
    const uint64_t part_bytes = f.catalogue.at(1, 3).parts[0].size_bytes;
    for (const ExpertPart part : {ExpertPart::kGate, ExpertPart::kUp, ExpertPart::kDown}) {
      for (const uint64_t offset : {uint64_t{0}, part_bytes / 2, part_bytes - 1}) {
        std::byte& victim = f.byte_on_disk(1, 3, part, offset);
        victim ^= std::byte{0x10};
        const Status status = run(f, *store, 1, {2, 3, 4});
        EXPECT_EQ(status.code(), StatusCode::kCorrupt);
        EXPECT_TRUE(contains(status, "layer 2 expert 3 (model-0000")) << status.message();
        EXPECT_TRUE(contains(status, ".safetensors @ 0x")) << status.message();
        EXPECT_TRUE(contains(status, "sha256 ")) << status.message();
        EXPECT_TRUE(contains(status, " expected " + to_hex(*f.catalogue.at(1, 3).sha256))) << status.message();
        EXPECT_TRUE(contains(status, "pointsman lock --check")) << status.message();
        victim ^= std::byte{0x10};
        EXPECT_TRUE(run(f, *store, 1, {2, 4}).ok());
      }
    }
    EXPECT_TRUE(run(f, *store, 1, {0, 1, 2, 3, 4, 5, 6, 7}).ok());
  }
}

TEST_F(StoreFaultTest, BytesThatChangeAfterTheyWereVerifiedAreNamed) {
  ExpertFixture f;
  for (const VerifyMode mode : {VerifyMode::kLockRequired, VerifyMode::kFirstRead}) {
    auto store = make(f, {.num_slots = 4, .verify = mode});
    EXPECT_TRUE(run(f, *store, 0, {1}).ok());
    store->evict_all();
    std::byte& victim = f.byte_on_disk(0, 1, ExpertPart::kDown, 77);
    victim ^= std::byte{1};
    const Status status = run(f, *store, 0, {1});
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_TRUE(contains(status, "layer 1 expert 1")) << status.message();
    EXPECT_TRUE(contains(status, "xxh3")) << status.message();
    victim ^= std::byte{1};
    EXPECT_TRUE(run(f, *store, 0, {1}).ok());
  }
}

TEST_F(StoreFaultTest, FastVerificationHoldsTheFirstReadAgainstTheLocksXxh3) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 4, .verify = VerifyMode::kLockFast});
  std::byte& victim = f.byte_on_disk(0, 1, ExpertPart::kUp, 5);
  victim ^= std::byte{4};
  const Status status = run(f, *store, 0, {1});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_TRUE(contains(status, "layer 1 expert 1")) << status.message();
  EXPECT_TRUE(contains(status, " expected " + to_hex(*f.catalogue.at(0, 1).xxh3) + "; fetch")) << status.message();
  victim ^= std::byte{4};
  store->reset_stats();
  EXPECT_TRUE(run(f, *store, 0, {0, 1}).ok());
  store->evict_all();
  EXPECT_TRUE(run(f, *store, 0, {0, 1}).ok());
  EXPECT_EQ(store->stats()[0].verified_sha256, 0u);
  EXPECT_EQ(store->stats()[0].verified_lock_xxh3, 2u);
  EXPECT_EQ(store->stats()[0].verified_xxh3, 2u);
  // Later reads are still held against the first.
  store->evict_all();
  victim ^= std::byte{4};
  EXPECT_TRUE(contains(run(f, *store, 0, {1}), "verified before in this process"));
}

TEST_F(StoreFaultTest, FastVerificationNeedsALockWithXxh3) {
  ExpertFixture f;
  f.catalogue.at(2, 7).xxh3.reset();
  const auto store = ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, {.num_slots = 4, .verify = VerifyMode::kLockFast});
  EXPECT_EQ(store.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(contains(store.status(), "expert 7")) << store.status().message();
  EXPECT_TRUE(contains(store.status(), "pointsman lock")) << store.status().message();
}

TEST_F(StoreFaultTest, TwoExpertsSwappedOnDiskAreNoticed) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 4});
  ExpertInfo& a = f.catalogue.at(0, 0);
  ExpertInfo& b = f.catalogue.at(0, 2);
  for (size_t p = 0; p < 3; ++p) {
    std::swap(a.parts[p].offset, b.parts[p].offset);
    std::swap(a.parts[p].file_idx, b.parts[p].file_idx);
  }
  EXPECT_EQ(run(f, *store, 0, {0}).code(), StatusCode::kCorrupt);
}

TEST_F(StoreFaultTest, EveryReadInTurnFails) {
  const std::vector<int32_t> ids = {0, 1, 2, 3, 4, 5, 6, 7};
  ExpertFixture f({.hidden = 20, .intermediate = 41, .record_order = false});  // three reads each
  uint64_t num_reads = 0;
  {
    auto store = make(f, {.num_slots = 3});
    f.fs.reset_reads();
    ASSERT_TRUE(run(f, *store, 2, ids).ok());
    num_reads = f.fs.num_reads();
    EXPECT_EQ(num_reads, 24u);
  }
  auto store = make(f, {.num_slots = 3, .num_readers = 2});
  for (uint64_t n = 0; n < num_reads; ++n) {
    store->evict_all();
    f.fs.reset_reads();
    f.fs.set_hook([n](const ReadCall& c) -> std::optional<Result<size_t>> {
      if (c.call != n) return std::nullopt;
      return Result<size_t>(Status(StatusCode::kIo, c.path + ": pread: Input/output error"));
    });
    const Status status = run(f, *store, 2, ids);
    EXPECT_EQ(status.code(), StatusCode::kIo) << n;
    EXPECT_TRUE(contains(status, "layer 3 expert ")) << status.message();
    EXPECT_TRUE(contains(status, "Input/output error")) << status.message();
    f.fs.set_hook(nullptr);
    EXPECT_TRUE(run(f, *store, 2, ids).ok()) << n;
  }
}

TEST_F(StoreFaultTest, ShortAndInterruptedReadsAreRepeated) {
  ExpertFixture f({.hidden = 20, .intermediate = 41});
  f.fs.set_hook([&f](const ReadCall& c) -> std::optional<Result<size_t>> {
    if (c.call % 3 == 0) return Result<size_t>(Status(StatusCode::kUnavailable, "interrupted"));
    const auto& bytes = f.fs.node(c.path).bytes;
    const size_t n = std::min<size_t>({c.out.size(), 97, bytes.size() - c.offset});
    std::memcpy(c.out.data(), bytes.data() + c.offset, n);
    return Result<size_t>(n);
  });
  auto store = make(f, {.num_slots = 4});
  EXPECT_TRUE(run(f, *store, 0, {0, 1, 2, 3, 4, 5, 6, 7}).ok());
}

TEST_F(StoreFaultTest, EndOfFileInsideAnExpertIsTruncation) {
  ExpertFixture f;
  f.fs.set_hook([](const ReadCall& c) -> std::optional<Result<size_t>> {
    if (c.out.size() < 2) return std::nullopt;
    return Result<size_t>(size_t{0});
  });
  auto store = make(f, {.num_slots = 4});
  const Status status = run(f, *store, 0, {6});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_TRUE(contains(status, "layer 1 expert 6")) << status.message();
  EXPECT_TRUE(contains(status, "missing") || contains(status, "truncated")) << status.message();
}

TEST_F(StoreFaultTest, AReplacedFileIsNamed) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 4});
  EXPECT_TRUE(run(f, *store, 0, {0}).ok());
  store->evict_all();
  testing::MemoryFs::Node& node = f.fs.node(f.shard_path(f.catalogue.at(0, 0).parts[0].file_idx));
  const FileInfo before = node.info;
  ++node.info.mtime_ns;
  const Status status = run(f, *store, 0, {0});
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_TRUE(contains(status, "layer 1 expert 0")) << status.message();
  node.info = before;
  EXPECT_TRUE(run(f, *store, 0, {0}).ok());
}

TEST_F(StoreFaultTest, AMissingDigestIsRefusedBeforeAnythingIsRead) {
  ExpertFixture f;
  f.catalogue.at(1, 4).sha256.reset();
  const auto refused = ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, {.num_slots = 4});
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(contains(refused.status(), "layer 2 expert 4")) << refused.status().message();
  EXPECT_TRUE(contains(refused.status(), "layers.2.experts.4")) << refused.status().message();
  EXPECT_EQ(f.fs.num_reads(), 0u);

  auto store = make(f, {.num_slots = 4, .verify = VerifyMode::kFirstRead});
  EXPECT_TRUE(run(f, *store, 1, {4, 5}).ok());
  EXPECT_EQ(store->stats()[1].verified_sha256, 1u) << "a digest that is there is used";
}

TEST_F(StoreFaultTest, ACatalogueEntryOutsideItsFileIsRefused) {
  const auto refused = [&](auto&& spoil) {
    ExpertFixture f;
    spoil(f.catalogue.at(2, 7).parts[2]);
    const Status status = ExpertStore::make(*device, budget, *f.checkpoint, f.catalogue, {.num_slots = 4}).status();
    EXPECT_TRUE(contains(status, "layer 3 expert 7")) << status.message();
    return status.code() == StatusCode::kInternal;
  };
  EXPECT_TRUE(refused([](ExpertPartInfo& p) { p.offset = ~uint64_t{0} - 10; }));
  EXPECT_TRUE(refused([](ExpertPartInfo& p) { p.size_bytes = ~uint64_t{0} - 10; }));
  EXPECT_TRUE(refused([](ExpertPartInfo& p) { p.file_idx = 2; }));
  EXPECT_TRUE(refused([](ExpertPartInfo& p) { p.slot_offset = 0; }));
}

TEST_F(StoreFaultTest, HandlesGivenOutBeforeAFailureStayValid) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 4, .num_readers = 1});
  f.byte_on_disk(0, 5, ExpertPart::kUp, 3) ^= std::byte{1};
  ASSERT_TRUE(run(f, *store, 0, {1}).ok());
  ASSERT_TRUE(store->begin(0, std::vector<int32_t>{1, 5}).ok());
  auto first = store->next();
  // The hit is there at once; the failure of the other may or may not be known yet.
  if (first.ok()) {
    EXPECT_EQ(first->expert_id(), 1);
    EXPECT_FALSE(store->next().ok());
    store->end();
    const auto expected = f.expected(0, 1, ExpertPart::kGate);
    EXPECT_EQ(std::memcmp(first->part(ExpertPart::kGate).data, expected.data(), expected.size()), 0);
  }
}

// Reads of the file wait at the gate while it is shut.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = true;
  int waiting = 0;
  void set(bool open) {
    std::lock_guard lock(mutex);
    is_open = open;
    changed.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.wait(lock, [this] { return is_open; });
    --waiting;
    changed.notify_all();
  }
  bool has_waiting() {
    std::lock_guard lock(mutex);
    return waiting > 0;
  }
  void wait_until_empty() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return waiting == 0; });
  }
};

TEST_F(StoreFaultTest, AReadThatDoesNotComeBackIsNamedAndTheStoreWaitsForIt) {
  Gate gate;
  ExpertFixture f;
  f.fs.set_hook([&gate](const ReadCall&) -> std::optional<Result<size_t>> {
    gate.pass();
    return std::nullopt;
  });
  auto store = make(f, {.num_slots = 4, .num_readers = 2, .read_timeout_ms = 50});
  EXPECT_TRUE(run(f, *store, 0, {1}).ok());
  gate.set(false);
  const Status status = run(f, *store, 1, {3, 4, 5});
  EXPECT_EQ(status.code(), StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(contains(status, "layer 2 expert 3 (model-0000")) << status.message();
  EXPECT_TRUE(contains(status, "for 0.1 s")) << status.message();
  // Its slots are not given to anybody else meanwhile.
  EXPECT_EQ(store->begin(0, std::vector<int32_t>{1}).code(), StatusCode::kDeadlineExceeded);
  gate.set(true);
  gate.wait_until_empty();
  // The readers have yet to say so to the store.
  for (int i = 0; i < 1000 && !store->begin(0, std::vector<int32_t>{1}).ok(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(run(f, *store, 1, {2, 3, 4, 5}).ok());
  EXPECT_TRUE(run(f, *store, 0, {0, 1, 2, 3, 4, 5, 6, 7}).ok());
}

TEST_F(StoreFaultTest, SlowReadsAreNoHang) {
  ExpertFixture f;
  f.fs.set_hook([](const ReadCall&) -> std::optional<Result<size_t>> {
    std::this_thread::sleep_for(std::chrono::milliseconds(40));
    return std::nullopt;
  });
  auto store = make(f, {.num_slots = 4, .num_readers = 1, .read_timeout_ms = 400});
  EXPECT_TRUE(run(f, *store, 0, {0, 1, 2, 3, 4, 5, 6, 7}).ok()) << "longer than the time-out in all, but there is progress";
}

TEST_F(StoreFaultTest, AStoreMayBeDestroyedWhileAReadHangs) {
  Gate gate;
  auto f = std::make_unique<ExpertFixture>();
  f->fs.set_hook([&gate](const ReadCall&) -> std::optional<Result<size_t>> {
    gate.pass();
    return std::nullopt;
  });
  gate.set(false);
  for (const bool ahead : {false, true}) {
    auto store = make(*f, {.num_slots = 6, .num_readers = 2, .read_timeout_ms = 50});
    if (ahead) {
      EXPECT_TRUE(store->prefetch(1, std::vector<int32_t>{3, 4}).ok());
      for (int i = 0; i < 1000 && !gate.has_waiting(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } else {
      EXPECT_EQ(run(*f, *store, 1, {3, 4, 5}).code(), StatusCode::kDeadlineExceeded);
    }
    store.reset();
  }
  // The checkpoint goes as well; the reads come back to files that are still there.
  f->checkpoint.reset();
  gate.set(true);
  gate.wait_until_empty();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST_F(StoreFaultTest, AFailureLeavesNoSlotBehind) {
  ExpertFixture f;
  auto store = make(f, {.num_slots = 2});
  f.byte_on_disk(0, 5, ExpertPart::kUp, 3) ^= std::byte{1};
  for (int i = 0; i < 20; ++i) EXPECT_EQ(run(f, *store, 0, {5}).code(), StatusCode::kCorrupt);
  EXPECT_TRUE(run(f, *store, 0, {0, 1, 2, 3}).ok()) << "both slots are usable";
  EXPECT_EQ(store->stats()[0].verified_sha256, 4u);
}

}  // namespace
}  // namespace pointsman
