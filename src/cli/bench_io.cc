// SPDX-License-Identifier: Apache-2.0
//
// pointsman bench io: what the disk gives to plain reads of blocks as large as an expert, with the same number of reads under way and
// nothing done to the bytes, as fio would; then how fast experts arrive cold - read, verified, in their slots - as a fraction of that.
// Rounds take turns; the kernel's page cache is dropped before each.
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "base/thread_pool.h"
#include "checkpoint/range_reader.h"
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/disk_bytes.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/quantiles.h"
#include "engine/engine_impl.h"
#include "experts/reader.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "bench io";
constexpr int kReadsPerThread = 3;  // as an expert reader has

using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6; };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

// Asks the kernel to drop the checkpoint's pages. They are clean, so it can; on a file system in memory it cannot.
void drop_page_cache(const Checkpoint& checkpoint) {
  for (uint32_t i = 0; i < checkpoint.files().size(); ++i) checkpoint.forget(i, 0, 0);
}

// Every expert once, through the store, a layer at a time. Bytes of the experts.
Result<uint64_t> stream_experts(ExpertStore& store, const ExpertCatalogue& experts) {
  std::vector<int32_t> all(static_cast<size_t>(experts.num_experts()));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
  uint64_t bytes = 0;
  for (int l = 0; l < experts.num_layers(); ++l) {
    PM_RETURN_IF_ERROR(store.begin(l, all));
    for (;;) {
      PM_ASSIGN_OR_RETURN(const ExpertHandle handle, store.next());
      if (!handle) break;
      bytes += experts.at(l, handle.expert_id()).size_bytes();
      if (was_interrupted()) return Status(StatusCode::kUnavailable, "interrupted");
    }
    store.end();
  }
  return bytes;
}

// The same bytes in the same order, into buffers that are thrown away.
Result<uint64_t> read_raw(const Checkpoint& checkpoint, const ExpertCatalogue& experts, ReadMethod method, bool direct, int threads) {
  const int64_t n = int64_t{experts.num_layers()} * experts.num_experts();
  std::atomic<int64_t> next{0};
  std::atomic<uint64_t> bytes{0};
  Status failures[64];
  ThreadPool pool(threads, /*pin=*/false);
  pool.parallel_for(threads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      Status& failure = failures[t];
      const RangeReaderOptions options{.method = method, .direct = direct, .depth = kReadsPerThread};
      const size_t room = options.buffer_bytes();
      std::unique_ptr<std::byte, decltype(&std::free)> buffer(static_cast<std::byte*>(std::aligned_alloc(kDirectAlignment, room)), &std::free);
      std::memset(buffer.get(), 0, room);
      auto reader = RangeReader::make(checkpoint, options, {buffer.get(), room});
      if (!reader.ok()) {
        failure = reader.status();
        continue;
      }
      for (int64_t i; failure.ok() && (i = next.fetch_add(1)) < n;) {
        const ExpertInfo& info = experts.at(static_cast<int>(i / experts.num_experts()), static_cast<int>(i % experts.num_experts()));
        std::array<ExpertRun, kMaxExpertParts> runs;
        std::array<ByteRange, kMaxExpertParts> ranges;
        const auto count = static_cast<size_t>(expert_runs(info, runs));
        for (size_t k = 0; k < count; ++k) ranges[k] = {.file_idx = runs[k].file_idx, .offset = runs[k].offset, .bytes = runs[k].bytes};
        failure = (*reader)->read(std::span(ranges).first(count), [](const RangeReader::Chunk&) { return ok_status(); });
        bytes += info.size_bytes();
        if (was_interrupted()) failure = {StatusCode::kUnavailable, "interrupted"};
      }
    }
  });
  for (int t = 0; t < threads; ++t) {
    if (!failures[t].ok()) return failures[t];
  }
  return bytes.load();
}

struct Series {
  const char* key;    // of the JSON object
  std::string label;
  std::vector<double> gbps{}, cpu_s_per_gb{}, disk_share{};
  bool is_limit = false;
};

Status measure(Engine& engine, int64_t rounds, std::vector<Series>& series, uint64_t& bytes) {
  Engine::Impl& e = engine.impl();
  if (e.binding.experts == nullptr) return error(StatusCode::kUnsupported, "a dense model has no experts to read");
  const ExpertCatalogue& experts = *e.binding.experts;
  const ReadMethod method = e.store->io();
  const int threads = engine.options().num_readers;
  const bool has_direct = e.checkpoint->open_file(0, /*direct=*/true).ok();
  const bool fast = engine.options().verify == VerifyPolicy::kFast;
  const char* const first = engine.model_digest().empty() ? "experts, first read (no lock file: remembered)"
                            : fast                        ? "experts, first read (lock's XXH3)"
                                                          : "experts, first read (SHA-256)";
  if (has_direct) series.push_back({.key = "raw_direct", .label = "plain, O_DIRECT", .is_limit = true});
  series.push_back({.key = "raw_cached", .label = "plain, page cache", .is_limit = true});
  series.push_back({.key = "first_read", .label = first});
  series.push_back({.key = "read_again", .label = "experts, read again (XXH3)"});
  const auto run = [&](const Series& s) -> Result<uint64_t> {
    if (s.is_limit) return read_raw(*e.checkpoint, experts, method, std::strcmp(s.key, "raw_direct") == 0, threads);
    return stream_experts(*e.store, experts);
  };
  const DiskCounter disk(e.checkpoint->files()[0].info.device);
  for (int64_t r = 0; r < rounds; ++r) {
    // The order rotates: caches below the kernel favour whoever comes second. A first read makes the next one a second, so these two
    // keep theirs.
    for (size_t k = 0; k < series.size(); ++k) {
      if (was_interrupted()) return {StatusCode::kUnavailable, "interrupted"};
      const size_t plain = series.size() - 2;
      Series& s = r % 2 == 0 ? series[k] : series[k < 2 ? plain + k : (k - 2 + static_cast<size_t>(r / 2)) % plain];
      e.store->evict_all(std::strcmp(s.key, "first_read") == 0);
      drop_page_cache(*e.checkpoint);
      const uint64_t disk_before = disk.bytes_read();
      const double cpu_before = cpu_seconds();
      const auto start = Clock::now();
      PM_ASSIGN_OR_RETURN(bytes, run(s));
      const double gb = static_cast<double>(bytes) * 1e-9;
      s.gbps.push_back(gb / std::chrono::duration<double>(Clock::now() - start).count());
      s.cpu_s_per_gb.push_back((cpu_seconds() - cpu_before) / gb);
      s.disk_share.push_back(static_cast<double>(disk.bytes_read() - disk_before) * 1e-9 / gb);
    }
  }
  return ok_status();
}

double limit_of(const std::vector<Series>& series) {
  double best = 0;
  for (const Series& s : series) {
    if (s.is_limit) best = std::max(best, median(s.gbps));
  }
  return std::max(best, 1e-12);
}

Json to_json(const Series& s, double limit) {
  Json j = Json::object();
  j.set("gbps", median(s.gbps));
  j.set("min", quantile(s.gbps, 0));
  j.set("max", quantile(s.gbps, 1));
  j.set("of_limit", median(s.gbps) / limit);
  j.set("cpu_s_per_gb", median(s.cpu_s_per_gb));
  j.set("disk_bytes_per_byte", median(s.disk_share));
  return j;
}

void print_table(const std::vector<Series>& series, double limit, bool markdown) {
  const char* const row = markdown ? "| %-46s | %6.2f | %5.2f .. %5.2f | %4.0f %% | %5.2f | %5.3f |\n" : "  %-46s %6.2f  [%5.2f .. %5.2f]  %4.0f %%  %5.2f  %5.3f\n";
  if (markdown) {
    std::printf("| | GB/s | range | of the limit | CPU s/GB | disk bytes per byte |\n|---|---|---|---|---|---|\n");
  } else {
    std::printf("  %-46s %6s  %-16s  %6s  %5s  %s\n", "", "GB/s", "range", "limit", "CPU*", "disk**");
  }
  for (const Series& s : series) {
    std::printf(row, s.label.c_str(), median(s.gbps), quantile(s.gbps, 0), quantile(s.gbps, 1), 100 * median(s.gbps) / limit,
                median(s.cpu_s_per_gb), median(s.disk_share));
  }
  if (!markdown) std::printf("  * seconds of CPU per GB; ** bytes that the disk read for each byte of an expert, whoever asked\n");
}

}  // namespace

int run_bench_io(int argc, char** argv) {
  ArgParser args(kName, "Cold reads of every expert through the store, against plain reads of the same blocks.",
                 "  pointsman bench io MODEL --memory 2GiB --readers 4 --repeat 5\n"
                 "  POINTSMAN_IO=pread pointsman bench io MODEL --direct on --verify fast --markdown\n"
                 "Give a budget below full residency for a model that fits, or the first experts are still resident.\n");
  EngineFlags flags;
  int64_t rounds = 5;
  bool json = false, markdown = false;
  flags.declare(args);
  args.option("--repeat", rounds, "rounds (default: 5)");
  args.flag("--json", json, "one JSON object");
  args.flag("--markdown", markdown, "a Markdown table");
  if (auto code = args.parse(argc, argv)) return *code;
  if (rounds < 1) return usage_error(kName, format("--repeat {}: expected 1 or more", rounds));
  EngineOptions options;
  if (auto code = flags.resolve(kName, options)) return *code;
  options.load_tokenizer = false;
  catch_interrupts();
  Result<std::unique_ptr<Engine>> engine = load_with_progress(options, !flags.log.no_progress);
  if (!engine.ok()) return report(kName, engine.status());
  std::vector<Series> series;
  uint64_t bytes = 0;
  if (const Status s = measure(**engine, rounds, series, bytes); !s.ok()) return report(kName, s, bytes > 0);
  const EngineStats stats = (*engine)->stats();
  const double limit = limit_of(series);
  const uint64_t block = (*engine)->memory_plan().expert_bytes;
  if (json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("model", options.model_dir);
    j.set("bytes", bytes);
    j.set("block_bytes", block);
    j.set("repeat", rounds);
    j.set("readers", (*engine)->options().num_readers);
    j.set("reads_per_reader", kReadsPerThread);
    j.set("locked", !(*engine)->model_digest().empty());
    Json io = Json::object();
    io.set("method", stats.io_method);
    io.set("direct", stats.io_direct);
    io.set("reason", stats.io_reason);
    j.set("io", std::move(io));
    j.set("limit_gbps", limit);
    j.set("first_read_gbps", median(series[series.size() - 2].gbps));
    j.set("expert_gbps", median(series.back().gbps));
    j.set("of_plain", median(series.back().gbps) / limit);
    for (const Series& s : series) j.set(s.key, to_json(s, limit));
    print_json(j);
  } else {
    std::printf("%s of experts, blocks of %s, cold; %d readers with %d reads each; medians of %lld rounds\n",
                human_bytes(static_cast<double>(bytes)).c_str(), human_bytes(static_cast<double>(block)).c_str(),
                (*engine)->options().num_readers, kReadsPerThread, static_cast<long long>(rounds));
    std::printf("the store reads with %s, %s the page cache (%s)\n%s", stats.io_method.c_str(), stats.io_direct ? "past" : "through",
                stats.io_reason.c_str(), markdown ? "\n" : "");
    print_table(series, limit, markdown);
  }
  return kExitOk;
}

}  // namespace pointsman::cli
