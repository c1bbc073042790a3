// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/range_reader.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"

namespace pointsman {
namespace {

// A block device that keeps giving less than a block is at the end of its file, or broken: the page cache then says which.
constexpr int kMaxStalls = 8;

constexpr uint64_t block_floor(uint64_t v) {
  return v / kDirectAlignment * kDirectAlignment;
}

bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % kDirectAlignment == 0;
}

}  // namespace

RangeReader::RangeReader(const Checkpoint& checkpoint, RangeReaderOptions options, std::span<std::byte> buffer)
    : checkpoint_(checkpoint), options_(options), buffer_(buffer), pieces_(static_cast<size_t>(options.depth)) {}

Result<std::unique_ptr<RangeReader>> RangeReader::make(const Checkpoint& checkpoint, RangeReaderOptions options,
                                                       std::span<std::byte> buffer) {
  PM_CHECK(options.depth >= 1 && options.depth <= kMaxReadQueueDepth && options.chunk_bytes > 0 &&
           options.chunk_bytes % kDirectAlignment == 0);
  PM_CHECK(buffer.empty() || (buffer.size() >= options.buffer_bytes() && is_aligned(buffer.data())));
  auto reader = std::unique_ptr<RangeReader>(new RangeReader(checkpoint, options, buffer));
  PM_ASSIGN_OR_RETURN(reader->queue_, checkpoint.fs().make_read_queue(options.method, options.depth));
  return reader;
}

Status RangeReader::open_files(std::span<const ByteRange> ranges) {
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (i > 0 && ranges[i].file_idx == ranges[i - 1].file_idx) {
      files_[i] = files_[i - 1];
      continue;
    }
    PM_ASSIGN_OR_RETURN(files_[i], checkpoint_.open_file(ranges[i].file_idx, options_.direct));
  }
  return ok_status();
}

void RangeReader::submit(uint32_t tag) {
  Piece& p = pieces_[tag];
  ++under_way_;
  queue_->submit(*files_[p.chunk.range_idx], {p.to + p.got, p.bytes - p.got}, p.file_offset + p.got, tag);
}

ReadQueue::Completion RangeReader::wait() {
  state_.store(State::kWaiting, std::memory_order_release);
  ReadQueue::Completion c = queue_->wait();
  State expected = State::kWaiting;
  state_.compare_exchange_strong(expected, State::kWorking, std::memory_order_acq_rel);
  return c;
}

bool RangeReader::try_give_up() {
  State expected = State::kWaiting;
  return state_.compare_exchange_strong(expected, State::kGivenUp, std::memory_order_acq_rel);
}

Status RangeReader::take_completion(std::span<const ByteRange> ranges) {
  const ReadQueue::Completion c = wait();
  if (is_given_up()) return {StatusCode::kUnavailable, "the reader was given up"};
  --under_way_;
  Piece& p = pieces_[c.tag];
  const ByteRange& range = ranges[p.chunk.range_idx];
  const size_t wanted = p.skip + p.chunk.bytes.size();
  const auto at = [&](const Status& status) {
    return error(status.code(), "{} (reading {} bytes at {:#x})", status.message(), p.chunk.bytes.size(), range.offset + p.chunk.at);
  };
  if (!c.bytes.ok()) {
    if (c.bytes.status().code() != StatusCode::kUnavailable) return at(c.bytes.status());
    submit(c.tag);
    return ok_status();
  }
  size_t n = *c.bytes;
  if (n == 0) {
    return at(error(StatusCode::kCorrupt, "{}: truncated: {} bytes missing at offset {}; fetch the file again",
                    files_[p.chunk.range_idx]->path(), wanted - p.got, p.file_offset + p.got));
  }
  if (p.got + n < wanted) {
    if (options_.direct) n = block_floor(n);
    p.got += n;
    if (n == 0 && ++p.stalls == kMaxStalls) {
      if (Status s = checkpoint_.read(range.file_idx, range.offset + p.chunk.at, p.chunk.bytes); !s.ok()) return s;
      p.is_done = true;
      return ok_status();
    }
    submit(c.tag);
    return ok_status();
  }
  p.is_done = true;
  return ok_status();
}

Status RangeReader::finish(std::span<const ByteRange> ranges, Status status) {
  while (under_way_ > 0) {
    static_cast<void>(wait());
    if (is_given_up()) return {StatusCode::kUnavailable, "the reader was given up"};
    --under_way_;
  }
  // After the reads: bytes that came from a file whose mtime has not moved since it was opened are the file's. A failed read is
  // explained by a changed file, if that is what happened.
  for (size_t i = 0; i < ranges.size() && files_[i] != nullptr; ++i) {
    if (i > 0 && files_[i] == files_[i - 1]) continue;
    const Status unchanged = checkpoint_.check_unchanged(ranges[i].file_idx, *files_[i]);
    if (unchanged.ok()) continue;
    status = error(unchanged.code(), "{} (reading {} bytes at {:#x})", unchanged.message(), ranges[i].bytes, ranges[i].offset);
    break;
  }
  for (size_t i = 0; i < ranges.size(); ++i) files_[i].reset();
  return status;
}

Status RangeReader::read(std::span<const ByteRange> ranges, FunctionRef<Status(const Chunk&)> consume) {
  PM_CHECK(ranges.size() <= kMaxRanges);
  if (Status s = open_files(ranges); !s.ok()) return finish(ranges, std::move(s));
  const size_t depth = pieces_.size();
  size_t range_idx = 0;        // of the next chunk to submit
  uint64_t at = 0;
  size_t head = 0, count = 0;  // of the ring
  for (;;) {
    while (count < depth && range_idx < ranges.size()) {
      const ByteRange& r = ranges[range_idx];
      const auto tag = static_cast<uint32_t>((head + count) % depth);
      const uint64_t from = r.offset + at;
      const uint64_t begin = options_.direct ? block_floor(from) : from;
      const uint64_t n = std::min<uint64_t>(begin + options_.chunk_bytes, r.offset + r.bytes) - from;
      Piece& p = pieces_[tag];
      p = {.chunk = {.range_idx = range_idx, .at = at}, .file_offset = begin, .skip = static_cast<size_t>(from - begin)};
      p.bytes = static_cast<size_t>(options_.direct ? align_up(p.skip + n, kDirectAlignment) : n);
      p.chunk.is_in_place = r.target != nullptr &&
                            (!options_.direct || (p.skip == 0 && is_aligned(r.target + at) && at + p.bytes <= r.target_room));
      if (p.chunk.is_in_place) {
        p.to = r.target + at;
      } else {
        PM_CHECK(!buffer_.empty(), "this reader was made without a buffer");
        p.to = buffer_.data() + tag * options_.chunk_bytes;
      }
      p.chunk.bytes = {p.to + p.skip, static_cast<size_t>(n)};
      submit(tag);
      ++count;
      at += n;
      if (at == r.bytes) {
        ++range_idx;
        at = 0;
      }
    }
    if (count == 0) break;
    while (!pieces_[head].is_done) {
      if (Status s = take_completion(ranges); !s.ok()) {
        if (is_given_up()) return s;
        return finish(ranges, std::move(s));
      }
    }
    if (Status s = consume(pieces_[head].chunk); !s.ok()) return finish(ranges, std::move(s));
    head = (head + 1) % depth;
    --count;
  }
  return finish(ranges, ok_status());
}

}  // namespace pointsman
