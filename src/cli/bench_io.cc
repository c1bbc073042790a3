// SPDX-License-Identifier: Apache-2.0
//
// pointsman bench io: how fast experts arrive cold - read, verified, in their slots - against what the disk gives to plain
// reads of the same bytes. Rounds alternate between the two; the kernel's page cache is dropped before each.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/log.h"
#include "base/thread_pool.h"
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/quantiles.h"
#include "engine/engine_impl.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "bench io";
constexpr uint64_t kReadBytes = 4 << 20;

using Clock = std::chrono::steady_clock;

// Asks the kernel to drop the checkpoint's pages. The files are clean, so it can; on a file system in memory it cannot.
void drop_page_cache(const Checkpoint& checkpoint) {
  for (const CheckpointFile& f : checkpoint.files()) {
    const int fd = ::open(join_path(checkpoint.directory(), f.name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }
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

struct Piece {
  uint32_t file_idx;
  uint64_t offset, size_bytes;
};

// The experts' bytes in the order of the disk, neighbours joined, cut into large reads.
std::vector<Piece> pieces_of(const ExpertCatalogue& experts) {
  std::vector<Piece> parts;
  for (int l = 0; l < experts.num_layers(); ++l) {
    for (int e = 0; e < experts.num_experts(); ++e) {
      for (const ExpertPartInfo& p : experts.at(l, e).parts) {
        if (p.size_bytes > 0) parts.push_back({p.file_idx, p.offset, p.size_bytes});
      }
    }
  }
  std::sort(parts.begin(), parts.end(),
            [](const Piece& a, const Piece& b) { return std::tie(a.file_idx, a.offset) < std::tie(b.file_idx, b.offset); });
  std::vector<Piece> pieces;
  for (const Piece& p : parts) {
    for (uint64_t at = 0; at < p.size_bytes;) {
      Piece* last = pieces.empty() ? nullptr : &pieces.back();
      const bool joins = last != nullptr && last->file_idx == p.file_idx && last->offset + last->size_bytes == p.offset + at &&
                         last->size_bytes < kReadBytes;
      const uint64_t n = std::min(p.size_bytes - at, joins ? kReadBytes - last->size_bytes : kReadBytes);
      if (joins) {
        last->size_bytes += n;
      } else {
        pieces.push_back({p.file_idx, p.offset + at, n});
      }
      at += n;
    }
  }
  return pieces;
}

// The same bytes by plain large reads from `threads` threads, into buffers that are thrown away.
Result<uint64_t> read_plain(const Checkpoint& checkpoint, const std::vector<Piece>& pieces, int threads) {
  ThreadPool pool(threads, /*pin=*/false);
  std::atomic<uint64_t> bytes{0};
  std::atomic<bool> failed{false};
  const int64_t n = static_cast<int64_t>(pieces.size());
  // A run of neighbours per thread at a time: each thread's reads are sequential.
  pool.parallel_for(n, std::max<int64_t>(1, n / (threads * 8)), [&](int64_t begin, int64_t end) {
    std::vector<std::byte> buffer(kReadBytes);
    for (int64_t i = begin; i < end && !failed; ++i) {
      const Piece& p = pieces[static_cast<size_t>(i)];
      if (!checkpoint.read(p.file_idx, p.offset, std::span(buffer).first(p.size_bytes)).ok()) failed = true;
      bytes += p.size_bytes;
    }
  });
  if (failed) return Status(StatusCode::kIo, "a plain read of the checkpoint failed; 'pointsman lock --check' says where");
  return bytes.load();
}

struct Rates {
  double first_gbps = 0;  // cold, checked against SHA-256 for the first time
  std::vector<double> store_gbps, one_gbps, many_gbps;
  uint64_t bytes = 0;
};

Status measure(Engine& engine, int64_t rounds, Rates& out) {
  Engine::Impl& e = engine.impl();
  if (e.binding.experts == nullptr) return error(StatusCode::kUnsupported, "a dense model has no experts to read");
  const ExpertCatalogue& experts = *e.binding.experts;
  const std::vector<Piece> pieces = pieces_of(experts);
  const auto timed = [&](auto&& work) -> Result<double> {
    engine.evict_experts();
    drop_page_cache(*e.checkpoint);
    const auto start = Clock::now();
    PM_ASSIGN_OR_RETURN(out.bytes, work());
    return static_cast<double>(out.bytes) / std::chrono::duration<double>(Clock::now() - start).count() * 1e-9;
  };
  const auto store = [&] { return stream_experts(*e.store, experts); };
  PM_ASSIGN_OR_RETURN(out.first_gbps, timed(store));
  for (int64_t r = 0; r < rounds; ++r) {
    if (was_interrupted()) return {StatusCode::kUnavailable, "interrupted"};
    // The order rotates: caches below the kernel favour whoever comes second.
    for (int64_t k = 0; k < 3; ++k) {
      const int64_t which = (r + k) % 3;
      PM_ASSIGN_OR_RETURN(const double gbps,
                          which == 0 ? timed(store)
                          : which == 1
                              ? timed([&] { return read_plain(*e.checkpoint, pieces, 1); })
                              : timed([&] { return read_plain(*e.checkpoint, pieces, engine.options().num_readers); }));
      (which == 0 ? out.store_gbps : which == 1 ? out.one_gbps : out.many_gbps).push_back(gbps);
    }
  }
  return ok_status();
}

}  // namespace

int run_bench_io(int argc, char** argv) {
  ArgParser args(kName, "Cold reads of every expert through the store, against plain reads of the same bytes.",
                 "  pointsman bench io MODEL --memory 2GiB --readers 4 --repeat 5\n"
                 "Give a budget below full residency for a model that fits, or the first experts are still resident.\n");
  EngineFlags flags;
  int64_t rounds = 5;
  bool json = false;
  flags.declare(args);
  args.option("--repeat", rounds, "rounds (default: 5)");
  args.flag("--json", json, "one JSON object");
  if (auto code = args.parse(argc, argv)) return *code;
  if (rounds < 1) return usage_error(kName, format("--repeat {}: expected 1 or more", rounds));
  EngineOptions options;
  if (auto code = flags.resolve(kName, options)) return *code;
  options.load_tokenizer = false;
  catch_interrupts();
  Result<std::unique_ptr<Engine>> engine = load_with_progress(options, !flags.log.no_progress);
  if (!engine.ok()) return report(kName, engine.status());
  Rates r;
  if (const Status s = measure(**engine, rounds, r); !s.ok()) return report(kName, s, r.bytes > 0);
  const double store = median(r.store_gbps), one = median(r.one_gbps), many = median(r.many_gbps);
  const bool has_lock = !(*engine)->model_digest().empty();
  if (json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("model", options.model_dir);
    j.set("bytes", r.bytes);
    j.set("repeat", rounds);
    j.set("readers", (*engine)->options().num_readers);
    j.set("locked", has_lock);
    j.set("first_read_gbps", r.first_gbps);
    j.set("expert_gbps", store);
    j.set("plain_one_thread_gbps", one);
    j.set("plain_readers_gbps", many);
    j.set("of_plain", store / std::max({one, many, 1e-12}));
    print_json(j);
  } else {
    std::printf("%s of experts, cold, medians of %lld rounds\n", human_bytes(static_cast<double>(r.bytes)).c_str(),
                static_cast<long long>(rounds));
    std::printf("  experts, first read   %7.2f GB/s  (%s)\n", r.first_gbps,
                has_lock ? "SHA-256" : "no lock file: remembered, not verified");
    std::printf("  experts, read again   %7.2f GB/s  (XXH3)\n", store);
    std::printf("  plain, one thread     %7.2f GB/s\n", one);
    std::printf("  plain, %2d threads     %7.2f GB/s\n", (*engine)->options().num_readers, many);
    std::printf("  experts reach %.0f %% of the better plain rate\n", 100 * store / std::max({one, many, 1e-12}));
  }
  return kExitOk;
}

}  // namespace pointsman::cli
