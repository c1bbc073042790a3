// SPDX-License-Identifier: Apache-2.0
#include "experts/direct_reads.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>

#include "base/log.h"
#include "checkpoint/range_reader.h"
#include "experts/reader.h"

namespace pointsman {
namespace {

using Clock = std::chrono::steady_clock;

// A virtual disk's rate varies by half from read to read: eight of a few MiB tell more than one long one.
constexpr int kSamples = 8;
constexpr uint64_t kSampleBytes = 4 << 20;
constexpr double kMostSeconds = 0.25;
// Past the page cache unless it costs more than this: it saves a copy, and memory.
constexpr double kWorth = 0.95;

RangeReaderOptions options_for(ReadMethod method, bool direct) {
  return {.method = method, .direct = direct, .depth = 3};
}

// Seconds for one expert, or the error.
Result<double> time_read(RangeReader& reader, const ByteRange& range) {
  const auto start = Clock::now();
  PM_RETURN_IF_ERROR(reader.read({&range, 1}, [](const RangeReader::Chunk&) { return ok_status(); }));
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Result<DirectChoice> measure(const Checkpoint& checkpoint, const ExpertCatalogue& catalogue, ReadMethod method, Device& host,
                             MemoryBudget& budget) {
  const uint64_t buffer_bytes = options_for(method, true).buffer_bytes();
  PM_ASSIGN_OR_RETURN(const Buffer buffer, Buffer::make(host, budget, MemoryClass::kReadBuffers, buffer_bytes));
  const std::span<std::byte> bytes(buffer.bytes(), buffer.size_bytes());
  std::unique_ptr<RangeReader> readers[2];
  PM_ASSIGN_OR_RETURN(readers[0], RangeReader::make(checkpoint, options_for(method, false), bytes));
  PM_ASSIGN_OR_RETURN(readers[1], RangeReader::make(checkpoint, options_for(method, true), bytes));

  const int64_t total = int64_t{catalogue.num_layers()} * catalogue.num_experts();
  double seconds[2] = {0, 0};
  uint64_t read[2] = {0, 0};
  const auto start = Clock::now();
  for (int i = 0; i < 2 * kSamples; ++i) {
    // Spread over the file, each expert once.
    const int64_t e = total * i / (2 * kSamples);
    std::array<ExpertRun, kMaxExpertParts> runs;
    if (expert_runs(catalogue.at(static_cast<int>(e / catalogue.num_experts()), static_cast<int>(e % catalogue.num_experts())), runs) == 0) continue;
    const ByteRange range{.file_idx = runs[0].file_idx, .offset = runs[0].offset, .bytes = std::min(runs[0].bytes, kSampleBytes)};
    const int which = i % 2;
    // Cold: what is cached now will not be later, when memory is short.
    checkpoint.forget(range.file_idx, range.offset, range.bytes);
    PM_ASSIGN_OR_RETURN(const double s, time_read(*readers[which], range));
    checkpoint.forget(range.file_idx, range.offset, range.bytes);
    seconds[which] += s;
    read[which] += range.bytes;
    if (which == 1 && std::chrono::duration<double>(Clock::now() - start).count() > kMostSeconds) break;
  }
  if (read[0] == 0 || read[1] == 0) return error(StatusCode::kInternal, "no expert has bytes");
  DirectChoice choice;
  choice.cached_rate = static_cast<double>(read[0]) / std::max(seconds[0], 1e-9);
  choice.direct_rate = static_cast<double>(read[1]) / std::max(seconds[1], 1e-9);
  choice.direct = choice.direct_rate >= kWorth * choice.cached_rate;
  choice.why = format("measured: {:.2f} GB/s past the page cache, {:.2f} through it", choice.direct_rate * 1e-9, choice.cached_rate * 1e-9);
  return choice;
}

}  // namespace

bool page_cache_holds(const ExpertCatalogue& catalogue, uint64_t process_bytes, const MemoryLimits& limits) {
  std::optional<uint64_t> left = limits.available_bytes;
  if (const auto room = limits.container_room_bytes()) left = std::min(*room, left.value_or(*room));
  const uint64_t experts = catalogue.total_bytes();
  return left && experts <= *left && process_bytes <= *left - experts;
}

DirectChoice measure_direct_reads(const Checkpoint& checkpoint, const ExpertCatalogue& catalogue, ReadMethod method, Device& host,
                                  MemoryBudget& budget) {
  // Loading a second model from the same disk need not measure again. Guarded by its mutex; never grows beyond the disks there are.
  static std::mutex mutex;
  static std::map<std::pair<uint64_t, ReadMethod>, DirectChoice> known;
  const std::pair<uint64_t, ReadMethod> key(checkpoint.files().empty() ? 0 : checkpoint.files()[0].info.device, method);
  std::lock_guard lock(mutex);
  if (const auto it = known.find(key); it != known.end()) return it->second;
  Result<DirectChoice> measured = measure(checkpoint, catalogue, method, host, budget);
  if (!measured.ok()) return {.why = measured.status().message()};
  return known.emplace(key, std::move(*measured)).first->second;
}

}  // namespace pointsman
