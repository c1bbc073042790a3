// SPDX-License-Identifier: Apache-2.0
//
// Matrices that stay on disk, on a host-visible device and on one that computes late: right rows, each checked, nothing
// allocated; flipped bytes and failing reads are errors that name rows and file.
#include "model/streamed_matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>
#include <random>

#include "base/log.h"
#include "device/fake/fake_device.h"
#include "support/counting_new.h"
#include "support/memory_fs.h"
#include "support/safetensors_builder.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MemoryFs;
using testing::ReadCall;

constexpr const char* kDir = "/model";
constexpr const char* kFile = "/model/model.safetensors";
constexpr const char* kName = "lm_head.weight";

struct Shape {
  int64_t rows, cols;
};
// One row; fewer rows than a sixteenth makes blocks; a last block and a last window that are shorter; blocks of 64 KiB and
// windows of several.
constexpr Shape kShapes[] = {{1, 1}, {7, 3}, {100, 33}, {1000, 40}, {33000, 65}};

struct Fixture {
  explicit Fixture(const Shape& of, bool is_fake = false) : shape(of) {
    testing::SafetensorsBuilder builder;
    builder.add("a.weight", "BF16", {5}, 10, 77);
    builder.add(kName, "BF16", {shape.rows, shape.cols}, static_cast<uint64_t>(shape.rows * shape.cols) * 2, 3);
    const std::string text = builder.build();
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    fs.put(kFile, std::vector<std::byte>(bytes, bytes + text.size()));
    auto opened = Checkpoint::open(fs, kDir);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    checkpoint = std::move(*opened);
    entry = checkpoint->find(kName);
    if (is_fake) device = make_fake_device({.max_delay_us = 30});
    stream = device->make_stream().value();
  }
  std::unique_ptr<StreamedMatrix> open(bool whole, const LockFile* lock = nullptr, int64_t rows_together = 1) {
    auto m = StreamedMatrix::open(*device, budget, *checkpoint, *entry, lock, whole, [this](uint64_t n) { progress += n; }, rows_together);
    EXPECT_TRUE(m.ok()) << m.status().to_string();
    return m.ok() ? std::move(*m) : nullptr;
  }
  size_t row_bytes() const { return static_cast<size_t>(shape.cols) * 2; }
  std::byte* on_disk(int64_t row) {
    return fs.node(kFile).bytes.data() + entry->offset + static_cast<size_t>(row) * row_bytes();
  }

  // gather() and a look at every row.
  Status gather(StreamedMatrix& m, const std::vector<int32_t>& rows) {
    std::vector<int32_t> order(rows.size());
    auto buffer = Buffer::make(*device, budget, MemoryClass::kScratch, rows.size() * row_bytes());
    EXPECT_TRUE(buffer.ok());
    const Tensor out = Tensor::matrix(buffer->data(), DType::kBF16, static_cast<int64_t>(rows.size()), shape.cols);
    PM_RETURN_IF_ERROR(m.gather(*stream, rows, order, out));
    std::vector<std::byte> found(rows.size() * row_bytes());
    PM_RETURN_IF_ERROR(stream->copy_to_host(found.data(), out.data, found.size()));
    PM_RETURN_IF_ERROR(stream->synchronize());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(std::memcmp(found.data() + i * row_bytes(), on_disk(rows[i]), row_bytes()), 0) << "row " << rows[i];
    }
    return ok_status();
  }
  // for_each_window() into one matrix, compared with the disk.
  Status stream_all(StreamedMatrix& m, int64_t* num_windows = nullptr, int64_t rows_together = 1) {
    std::vector<std::byte> found(static_cast<size_t>(shape.rows) * row_bytes());
    int64_t next = 0, windows = 0;
    PM_RETURN_IF_ERROR(m.for_each_window(*stream, [&](int64_t first_row, const Tensor& w) {
      EXPECT_EQ(first_row, next);
      EXPECT_EQ(w.rows % rows_together, 0);
      EXPECT_EQ(w.cols, shape.cols);
      next += w.rows;
      ++windows;
      // Runs later on the fake device: what the window holds then must still be these rows.
      return stream->copy_to_host(found.data() + static_cast<size_t>(first_row) * row_bytes(), w.data,
                                  static_cast<size_t>(w.rows) * row_bytes());
    }));
    EXPECT_EQ(next, shape.rows);
    EXPECT_EQ(std::memcmp(found.data(), on_disk(0), found.size()), 0);
    if (num_windows != nullptr) *num_windows = windows;
    return ok_status();
  }
  LockFile lock() {
    LockFile l;
    l.tensors[kName] = {.sha256 = sha256({on_disk(0), entry->size_bytes}), .size_bytes = entry->size_bytes};
    return l;
  }

  Shape shape;
  MemoryFs fs;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream;
  MemoryBudget budget{uint64_t{1} << 30};
  std::unique_ptr<Checkpoint> checkpoint;
  const TensorEntry* entry = nullptr;
  uint64_t progress = 0;
};

class Streamed : public ::testing::TestWithParam<bool> {};

TEST_P(Streamed, GivesEveryRowInAnyOrderAndNumber) {
  std::mt19937 random(3);
  for (const Shape shape : kShapes) {
    SCOPED_TRACE(format("{} x {}", shape.rows, shape.cols));
    Fixture f(shape, GetParam());
    for (const bool whole : {false, true}) {
      const LockFile lock = f.lock();
      f.progress = 0;
      const auto m = f.open(whole, &lock);
      ASSERT_NE(m, nullptr);
      EXPECT_EQ(f.progress, f.entry->size_bytes);
      std::vector<int32_t> rows = {0, static_cast<int32_t>(shape.rows - 1), 0};
      for (int i = 0; i < 40; ++i) rows.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(shape.rows)));
      for (const size_t n : {size_t{1}, size_t{2}, rows.size()}) {
        const Status s = f.gather(*m, {rows.begin(), rows.begin() + static_cast<ptrdiff_t>(n)});
        ASSERT_TRUE(s.ok()) << s.to_string();
      }
      if (!whole) continue;
      int64_t windows = 0;
      for (int i = 0; i < 3; ++i) {
        const Status s = f.stream_all(*m, &windows);
        ASSERT_TRUE(s.ok()) << s.to_string();
        ASSERT_TRUE(f.gather(*m, rows).ok());
      }
      if (shape.rows > 16) {
        EXPECT_GE(windows, 16);
      }
    }
    EXPECT_EQ(f.budget.used_bytes(), 0u);
  }
}

// Panels of a packed head are not cut, also where a block of fewer rows would be small enough.
TEST_P(Streamed, RowsThatGoTogetherStayTogether) {
  for (const Shape shape : {Shape{32, 3}, {320, 33}, {4096, 40}, {33024, 65}, {128, 4096}}) {
    SCOPED_TRACE(format("{} x {}", shape.rows, shape.cols));
    Fixture f(shape, GetParam());
    const auto m = f.open(true, nullptr, 32);
    ASSERT_NE(m, nullptr);
    const StreamedMatrix::Cost cost = StreamedMatrix::cost(*f.entry, true, f.device->host_visible(), 32);
    EXPECT_EQ(f.budget.used_bytes(), cost.read_buffer_bytes + cost.table_bytes + cost.stack_bytes);
    int64_t windows = 0;
    for (int i = 0; i < 2; ++i) {
      const Status s = f.stream_all(*m, &windows, 32);
      ASSERT_TRUE(s.ok()) << s.to_string();
    }
    EXPECT_GE(windows, std::min<int64_t>(16, shape.rows / 32));
  }
}

TEST_P(Streamed, ChargesWhatCostSays) {
  for (const Shape shape : kShapes) {
    Fixture f(shape, GetParam());
    for (const bool whole : {false, true}) {
      const auto m = f.open(whole);
      const StreamedMatrix::Cost cost = StreamedMatrix::cost(*f.entry, whole, f.device->host_visible());
      EXPECT_EQ(f.budget.used_bytes(MemoryClass::kReadBuffers), cost.read_buffer_bytes);
      EXPECT_EQ(f.budget.used_bytes(MemoryClass::kCatalogue), cost.table_bytes);
      EXPECT_EQ(f.budget.used_bytes(MemoryClass::kThreadStacks), cost.stack_bytes);
      EXPECT_EQ(f.budget.used_bytes(), cost.read_buffer_bytes + cost.table_bytes + cost.stack_bytes);
      if (whole && f.entry->size_bytes > (1 << 20)) {
        EXPECT_LE(cost.read_buffer_bytes, f.entry->size_bytes / (f.device->host_visible() ? 8 : 4) + 2 * kPageBytes);
      }
    }
  }
}

// On the fake device its own queue allocates.
TEST(StreamedOnTheCpu, AllocatesNothingOnceItIsOpen) {
  Fixture f({1000, 40});
  const auto m = f.open(true);
  const std::vector<int32_t> rows = {5, 900, 17, 5, 333};
  std::vector<int32_t> order(rows.size());
  std::vector<std::byte> memory(rows.size() * f.row_bytes());
  const Tensor out = Tensor::matrix(memory.data(), DType::kBF16, static_cast<int64_t>(rows.size()), 40);
  const auto step = [&] {
    EXPECT_TRUE(m->gather(*f.stream, rows, order, out).ok());
    EXPECT_TRUE(m->for_each_window(*f.stream, [](int64_t, const Tensor&) { return ok_status(); }).ok());
  };
  step();
  const uint64_t before = num_news.load();
  for (int i = 0; i < 20; ++i) step();
  EXPECT_EQ(num_news.load(), before);
}

TEST_P(Streamed, ReadsEachBlockOnceAndCountsIt) {
  Fixture f({1000, 40}, GetParam());  // 62 rows per block
  const auto m = f.open(true);
  f.fs.reset_reads();
  ASSERT_TRUE(f.gather(*m, {61, 0, 62, 30, 123, 1, 61}).ok());
  EXPECT_EQ(f.fs.num_reads(), 2u);
  EXPECT_EQ(m->stats().verified_xxh3, 2u);
  EXPECT_EQ(m->stats().bytes_read, 2u * 62 * 80);
  m->reset_stats();
  ASSERT_TRUE(f.stream_all(*m).ok());
  EXPECT_EQ(m->stats().bytes_read, f.entry->size_bytes);
  EXPECT_EQ(m->stats().verified_xxh3, 17u);
}

TEST_P(Streamed, AFlippedByteIsNamedAndPassesWhenItIsMended) {
  Fixture f({1000, 40}, GetParam());
  const LockFile lock = f.lock();
  const auto m = f.open(true, &lock);
  for (const int64_t row : {0, 61, 62, 500, 999}) {
    SCOPED_TRACE(row);
    const int64_t first = row / 62 * 62;
    std::byte& byte = f.on_disk(row)[row % 80];
    byte ^= std::byte{0x10};
    const auto named =
        AllOf(HasSubstr(format("{} rows {} to {} (model.safetensors @ {:#x})", kName, first, std::min<int64_t>(first + 61, 999),
                               f.entry->offset + static_cast<uint64_t>(first) * 80)),
              HasSubstr("xxh3"));
    const Status gathered = f.gather(*m, {1, 100, static_cast<int32_t>(row)});
    EXPECT_EQ(gathered.code(), StatusCode::kCorrupt);
    EXPECT_THAT(gathered.message(), named);
    const Status streamed = f.stream_all(*m);
    EXPECT_EQ(streamed.code(), StatusCode::kCorrupt);
    EXPECT_THAT(streamed.message(), named);
    byte ^= std::byte{0x10};
    EXPECT_TRUE(f.gather(*m, {static_cast<int32_t>(row)}).ok());
    EXPECT_TRUE(f.stream_all(*m).ok());
  }
}

TEST_P(Streamed, AFailingReadIsNamedAndShortOnesAreRepeated) {
  Fixture f({1000, 40}, GetParam());
  const auto m = f.open(true);
  for (uint64_t n = 0; n < 18; ++n) {
    SCOPED_TRACE(format("read {}", n));
    bool fail = true;
    f.fs.set_hook([&](const ReadCall& call) -> std::optional<Result<size_t>> {
      if (call.call != n) return std::nullopt;
      if (fail) return error(StatusCode::kIo, "{}: pread: Input/output error", call.path);
      call.out[0] = f.fs.node(call.path).bytes[call.offset];
      return size_t{1};
    });
    f.fs.reset_reads();
    Status s = f.gather(*m, {100});
    if (s.ok()) s = f.stream_all(*m);
    ASSERT_EQ(s.code(), StatusCode::kIo);
    EXPECT_THAT(s.message(), AllOf(HasSubstr(kName), HasSubstr("rows "), HasSubstr("model.safetensors @ ")));
    fail = false;
    f.fs.reset_reads();
    EXPECT_TRUE(f.gather(*m, {100}).ok());
    EXPECT_TRUE(f.stream_all(*m).ok());
  }
  f.fs.set_hook([](const ReadCall&) -> std::optional<Result<size_t>> { return size_t{0}; });
  EXPECT_EQ(f.gather(*m, {100}).code(), StatusCode::kCorrupt);
  EXPECT_EQ(f.stream_all(*m).code(), StatusCode::kCorrupt);
}

TEST_P(Streamed, AFailureOfTheUserEndsItAndTheNextRunIsWhole) {
  Fixture f({1000, 40}, GetParam());
  const auto m = f.open(true);
  for (int n = 0; n < 17; ++n) {
    int call = 0;
    const Status s = m->for_each_window(*f.stream, [&](int64_t, const Tensor&) {
      return call++ == n ? error(StatusCode::kUnavailable, "window {}", n) : ok_status();
    });
    EXPECT_EQ(s.code(), StatusCode::kUnavailable);
    EXPECT_EQ(call, n + 1);
    ASSERT_TRUE(f.stream_all(*m).ok());
  }
}

TEST_P(Streamed, OtherBytesThanTheLockFilesAreNotOpened) {
  Fixture f({100, 33}, GetParam());
  const LockFile lock = f.lock();
  const auto open = [&](const LockFile& l, bool whole) {
    return StreamedMatrix::open(*f.device, f.budget, *f.checkpoint, *f.entry, &l, whole, [](uint64_t) {}).status();
  };
  for (const bool whole : {false, true}) {
    *f.on_disk(57) ^= std::byte{1};
    EXPECT_EQ(open(lock, whole).code(), StatusCode::kCorrupt);
    EXPECT_THAT(open(lock, whole).message(), AllOf(HasSubstr(kName), HasSubstr("sha256")));
    *f.on_disk(57) ^= std::byte{1};
    EXPECT_TRUE(open(lock, whole).ok());
    EXPECT_THAT(open(LockFile(), whole).message(), AllOf(HasSubstr(kName), HasSubstr("no entry")));
    MemoryBudget small(1000);
    EXPECT_EQ(StreamedMatrix::open(*f.device, small, *f.checkpoint, *f.entry, &lock, whole, [](uint64_t) {}).status().code(),
              StatusCode::kBudgetExceeded);
    EXPECT_EQ(small.used_bytes(), 0u);
  }
  EXPECT_EQ(f.budget.used_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Devices, Streamed, ::testing::Bool(),
                         [](const auto& param_info) { return param_info.param ? "Fake" : "Cpu"; });

}  // namespace
}  // namespace pointsman
