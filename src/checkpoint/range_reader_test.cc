// SPDX-License-Identifier: Apache-2.0
//
// Every way of reading - pread or io_uring, through the page cache or past it - gives the same bytes and the same errors.
#include "checkpoint/range_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "support/faulty_fs.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::FaultyFs;
using Op = FaultyFs::Op;
using Fault = FaultyFs::Fault;

struct Way {
  ReadMethod method;
  bool direct;
};

class AlignedBytes {
 public:
  explicit AlignedBytes(size_t n) : data_(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, n))), size_(n) {}
  ~AlignedBytes() { std::free(data_); }
  AlignedBytes(const AlignedBytes&) = delete;
  AlignedBytes& operator=(const AlignedBytes&) = delete;
  std::byte* bytes() const { return data_; }
  size_t size_bytes() const { return size_; }
  std::span<std::byte> span() const { return {data_, size_}; }

 private:
  std::byte* data_;
  size_t size_;
};

class RangeReaderTest : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    // No multiple of a block, so that the file ends inside one.
    const std::string file = testing::SafetensorsBuilder().add("a", "U8", {150'000}, 150'000).build();
    dir.write("model.safetensors", file);
    const auto bytes = std::as_bytes(std::span(file));
    content.assign(bytes.begin(), bytes.end());
    auto opened = Checkpoint::open(fs, dir.path());
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    checkpoint = std::move(*opened);
    if (GetParam().direct && !checkpoint->open_file(0, true).ok()) GTEST_SKIP() << "no O_DIRECT in the folder for temporary files";
    if (!fs.make_read_queue(GetParam().method, 1).ok()) GTEST_SKIP() << "no io_uring here";
  }
  std::unique_ptr<RangeReader> make(int depth) {
    const RangeReaderOptions options{.method = GetParam().method, .direct = GetParam().direct, .depth = depth, .chunk_bytes = 8192};
    auto reader = RangeReader::make(*checkpoint, options, buffer.span());
    EXPECT_TRUE(reader.ok()) << reader.status().to_string();
    return std::move(*reader);
  }
  ByteRange range(uint64_t offset, uint64_t bytes, std::byte* target) {
    return {.offset = offset, .bytes = bytes, .target = target, .target_room = bytes};
  }
  // The ranges' bytes as they came; the chunks must come in order, and what lies in place must be right there.
  Status read(RangeReader& reader, std::span<const ByteRange> ranges, std::vector<std::byte>& out) {
    out.clear();
    size_t range_idx = 0;
    uint64_t at = 0;
    return reader.read(ranges, [&](const RangeReader::Chunk& c) {
      if (at == ranges[range_idx].bytes) {
        ++range_idx;
        at = 0;
      }
      EXPECT_EQ(c.range_idx, range_idx);
      EXPECT_EQ(c.at, at);
      if (c.is_in_place) {
        EXPECT_EQ(c.bytes.data(), ranges[range_idx].target + at);
      }
      at += c.bytes.size();
      out.insert(out.end(), c.bytes.begin(), c.bytes.end());
      return ok_status();
    });
  }
  std::vector<std::byte> expected(std::span<const ByteRange> ranges) const {
    std::vector<std::byte> all;
    for (const ByteRange& r : ranges) {
      const auto from = content.begin() + static_cast<std::ptrdiff_t>(r.offset);
      all.insert(all.end(), from, from + static_cast<std::ptrdiff_t>(r.bytes));
    }
    return all;
  }

  testing::TempDir dir;
  FaultyFs fs{FileSystem::real()};
  std::vector<std::byte> content;
  std::unique_ptr<Checkpoint> checkpoint;
  AlignedBytes buffer{64 * 8192}, targets{1 << 20};
};

TEST_P(RangeReaderTest, BringsTheBytesWhereverTheyLieAndBelong) {
  const uint64_t end = content.size();
  std::byte* const t = targets.bytes();
  for (const int depth : {1, 2, 3, 7}) {
    auto reader = make(depth);
    std::vector<std::byte> out;
    const std::vector<std::vector<ByteRange>> cases = {
        {range(0, end, t)},
        {range(0, end, nullptr)},
        {range(4096, 40'960, t)},                      // blocks, to an aligned place
        {range(4096, 40'961, t)},                      // no room for the rest of the last block
        {range(8192, 8192, t + 64), range(0, 1, t)},   // a place that is not aligned
        {range(5000, 20'000, t), range(5000, 20'000, nullptr), range(100, 7, t + 30'000)},
        {range(end - 1, 1, t)},
        {range(end - 10'000, 10'000, t)},
        {},
    };
    for (const auto& ranges : cases) {
      std::memset(t, 0xee, targets.size_bytes());
      ASSERT_TRUE(read(*reader, ranges, out).ok());
      EXPECT_EQ(out, expected(ranges));
    }
    // Room beyond the range lets its last block land in place, and nothing else is touched.
    std::memset(t, 0xee, targets.size_bytes());
    ByteRange roomy = range(4096, 40'000, t);
    roomy.target_room = 40'960;
    ASSERT_TRUE(read(*reader, {&roomy, 1}, out).ok());
    EXPECT_EQ(std::memcmp(t, content.data() + 4096, 40'000), 0);
    EXPECT_EQ(t[40'960], std::byte{0xee});
  }
}

TEST_P(RangeReaderTest, NothingOutsideATargetIsWritten) {
  auto reader = make(3);
  std::byte* const t = targets.bytes();
  std::memset(t, 0xee, targets.size_bytes());
  std::vector<std::byte> out;
  const ByteRange r = range(4096, 20'000, t + 4096);
  ASSERT_TRUE(read(*reader, {&r, 1}, out).ok());
  EXPECT_EQ(t[4095], std::byte{0xee});
  for (size_t i = 4096 + 20'000; i < 40'000; ++i) ASSERT_EQ(t[i], std::byte{0xee}) << i;
}

TEST_P(RangeReaderTest, EveryReadInTurnMeetsEveryFault) {
  auto reader = make(3);
  std::vector<std::byte> out;
  const ByteRange ranges[] = {range(1000, 30'000, targets.bytes()), range(65'536, 32'768, targets.bytes() + 65'536)};
  const auto good = expected(ranges);
  for (const Fault fault : {Fault::kIoError, Fault::kInterrupted, Fault::kShortOne, Fault::kShortHalf, Fault::kEndOfFile}) {
    uint64_t n = 0;
    for (;; ++n) {
      const uint64_t before = fs.calls(Op::kRead);
      fs.fail(Op::kRead, before + n, fault);
      const Status s = read(*reader, ranges, out);
      if (fs.calls(Op::kRead) <= before + n) break;
      if (fault == Fault::kIoError) {
        EXPECT_EQ(s.code(), StatusCode::kIo) << n;
        EXPECT_THAT(s.message(), HasSubstr("model.safetensors: Input/output error (injected) (reading "));
      } else if (fault == Fault::kEndOfFile) {
        EXPECT_EQ(s.code(), StatusCode::kCorrupt) << n;
        EXPECT_THAT(s.message(), HasSubstr("truncated: "));
      } else {
        ASSERT_TRUE(s.ok()) << s.to_string();
        EXPECT_EQ(out, good);
      }
    }
    EXPECT_GE(n, 8u) << "the chunks of both ranges";
    fs.fail(Op::kRead, 0, fault, 0);
    ASSERT_TRUE(read(*reader, ranges, out).ok()) << "the reader goes on after a failure";
    EXPECT_EQ(out, good);
  }
}

TEST_P(RangeReaderTest, ADeviceThatOnlyGivesPiecesOfBlocksIsReadAllTheSame) {
  auto reader = make(2);
  std::vector<std::byte> out;
  const ByteRange r = range(12'288, 20'000, targets.bytes());
  fs.fail(Op::kRead, fs.calls(Op::kRead), Fault::kShortHalf, 40);
  ASSERT_TRUE(read(*reader, {&r, 1}, out).ok());
  EXPECT_EQ(out, expected({&r, 1}));
}

TEST_P(RangeReaderTest, ATruncatedFileIsNamed) {
  auto reader = make(2);
  std::vector<std::byte> out;
  const ByteRange r = range(100'000, 40'000, targets.bytes());
  fs.truncate(dir.file("model.safetensors"), 120'000);
  const Status s = read(*reader, {&r, 1}, out);
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), HasSubstr("truncated"));
}

TEST_P(RangeReaderTest, AFileThatIsWrittenToIsNamedThoughEveryReadWorked) {
  auto reader = make(2);
  std::vector<std::byte> out;
  dir.write("model.safetensors", std::string(content.size(), 'x'));
  const ByteRange r = range(100'000, 40'000, targets.bytes());
  const Status s = read(*reader, {&r, 1}, out);
  EXPECT_EQ(s.code(), StatusCode::kCorrupt);
  EXPECT_THAT(s.message(), HasSubstr("written to while in use"));
}

TEST_P(RangeReaderTest, TheConsumersErrorEndsTheReading) {
  auto reader = make(3);
  const ByteRange r = range(0, 100'000, targets.bytes());
  int chunks = 0;
  const Status s = reader->read({&r, 1}, [&](const RangeReader::Chunk&) -> Status {
    return ++chunks == 2 ? Status(StatusCode::kInternal, "enough") : ok_status();
  });
  EXPECT_EQ(s.code(), StatusCode::kInternal);
  EXPECT_EQ(chunks, 2);
}

INSTANTIATE_TEST_SUITE_P(Ways, RangeReaderTest,
                         ::testing::Values(Way{ReadMethod::kPread, false}, Way{ReadMethod::kPread, true},
                                           Way{ReadMethod::kUring, false}, Way{ReadMethod::kUring, true}),
                         [](const auto& p) {
                           return std::string(read_method_name(p.param.method)) + (p.param.direct ? "_direct" : "_cached");
                         });

}  // namespace
}  // namespace pointsman
