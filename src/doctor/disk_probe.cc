// SPDX-License-Identifier: Apache-2.0
#include "doctor/disk_probe.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/fs.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/thread.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

using Clock = std::chrono::steady_clock;
constexpr uint64_t kPage = 4096;
constexpr size_t kMaxSamples = 256;

struct CloseFd {
  int fd = -1;
  ~CloseFd() {
    if (fd >= 0) ::close(fd);
  }
};

struct FreeBuffer {
  void operator()(std::byte* p) const { std::free(p); }
};
using AlignedBuffer = std::unique_ptr<std::byte, FreeBuffer>;

struct Cell {
  bool random, direct;
  uint64_t block_bytes;
  int in_flight;
};

std::vector<Cell> cells_of(bool deep) {
  constexpr uint64_t kKi = 1024, kMi = 1024 * 1024;
  std::vector<Cell> cells;
  for (const bool direct : {false, true}) {
    cells.push_back({false, direct, 4 * kMi, 1});
    if (deep) cells.push_back({false, direct, 1 * kMi, 4});
    const std::vector<uint64_t> sizes = deep ? std::vector<uint64_t>{4 * kKi, 64 * kKi, 256 * kKi, 1 * kMi, 4 * kMi}
                                             : std::vector<uint64_t>{64 * kKi, 1 * kMi, 4 * kMi};
    const std::vector<int> depths = deep ? std::vector<int>{1, 4, 16} : std::vector<int>{1, 4};
    for (const uint64_t size : sizes) {
      for (const int depth : depths) cells.push_back({true, direct, size, depth});
    }
  }
  return cells;
}

// One cell: `in_flight` threads, each with one request at a time. Blocks come from a fixed pseudo-random order of the whole
// file, so that two threads or two moments do not read the same block until all have been read.
std::optional<DiskSample> measure(int fd, uint64_t file_bytes, const Cell& cell, uint64_t seed,
                                  std::chrono::milliseconds time) {
  const uint64_t blocks = file_bytes / cell.block_bytes;
  if (blocks == 0) return std::nullopt;
  // A stride that shares no factor with the number of blocks visits each once.
  uint64_t stride = 1, start = 0;
  if (cell.random && blocks > 2) {
    const PhiloxCounter words =
        philox4x32_10({static_cast<uint32_t>(cell.block_bytes), static_cast<uint32_t>(cell.in_flight), 0, 0},
                      {static_cast<uint32_t>(seed), 0});
    start = words[0] % blocks;
    stride = (words[1] % (blocks - 1)) + 1;
    const auto shares_factor = [&](uint64_t s) {
      uint64_t a = blocks, b = s;
      while (b != 0) a = std::exchange(b, a % b);
      return a != 1;
    };
    // Neither neighbours nor a regular walk that read-ahead could follow.
    if (blocks > 16) stride = std::max<uint64_t>(stride, blocks / 3 + 1);
    while (shares_factor(stride)) ++stride;
  }
  std::atomic<uint64_t> next{0}, bytes{0};
  std::atomic<bool> failed{false};
  std::vector<std::vector<float>> latencies(static_cast<size_t>(cell.in_flight));
  const auto begin = Clock::now();
  const auto deadline = begin + time;
  {
    std::vector<Thread> threads;
    for (int t = 0; t < cell.in_flight; ++t) {
      threads.emplace_back([&, t] {
        AlignedBuffer buffer(static_cast<std::byte*>(std::aligned_alloc(kPage, cell.block_bytes)));
        if (buffer == nullptr) {
          failed = true;
          return;
        }
        while (!failed && Clock::now() < deadline) {
          const uint64_t i = next.fetch_add(1);
          if (i >= blocks * 64) return;
          const uint64_t offset =
              static_cast<uint64_t>((static_cast<unsigned __int128>(i) * stride + start) % blocks) * cell.block_bytes;
          // Cold: neither another program nor an earlier round may have left the range in memory.
          if (!cell.direct)
            ::posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(cell.block_bytes), POSIX_FADV_DONTNEED);
          const auto from = Clock::now();
          uint64_t done = 0;
          while (done < cell.block_bytes) {
            const ssize_t n = ::pread(fd, buffer.get() + done, cell.block_bytes - done, static_cast<off_t>(offset + done));
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) {
              failed = true;
              return;
            }
            done += static_cast<uint64_t>(n);
          }
          latencies[static_cast<size_t>(t)].push_back(std::chrono::duration<float, std::milli>(Clock::now() - from).count());
          bytes += done;
        }
      });
    }
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  if (failed || bytes == 0) return std::nullopt;
  std::vector<float> all;
  for (const auto& l : latencies) all.insert(all.end(), l.begin(), l.end());
  std::sort(all.begin(), all.end());
  return DiskSample{cell.random,
                    cell.direct,
                    cell.block_bytes,
                    cell.in_flight,
                    static_cast<double>(bytes.load()) / seconds * 1e-9,
                    static_cast<double>(all[all.size() / 2]),
                    static_cast<double>(all.back()),
                    all.size()};
}

// Attributes of the block device below a file; partitions have them one folder up.
void look_at_queue(const struct stat& st, DiskReport& report) {
  const std::string device = format("/sys/dev/block/{}:{}", major(st.st_dev), minor(st.st_dev));
  for (const char* queue : {"/queue/", "/../queue/"}) {
    const auto number = [&](const char* name) -> int64_t {
      const auto file = FileSystem::real().open(device + queue + name);
      std::array<std::byte, 32> buffer;
      const auto n = file.ok() ? (*file)->pread(buffer, 0) : Result<size_t>(file.status());
      return n.ok() ? leading_int(std::string_view(reinterpret_cast<const char*>(buffer.data()), *n)).value_or(-1) : -1;
    };
    report.rotational = static_cast<int>(number("rotational"));
    report.read_ahead_kb = number("read_ahead_kb");
    if (report.rotational >= 0) return;
  }
}

const char* order_name(bool random) {
  return random ? "random" : "sequential";
}

}  // namespace

double DiskReport::best_gbps(bool random, bool direct) const {
  double best = 0;
  for (const DiskSample& s : samples) {
    if (s.random == random && s.direct == direct) best = std::max(best, s.gbps);
  }
  return best;
}

const DiskSample* DiskReport::find(bool random, bool direct, uint64_t block_bytes, int in_flight) const {
  for (const DiskSample& s : samples) {
    if (s.random == random && s.direct == direct && s.block_bytes == block_bytes && s.in_flight == in_flight) return &s;
  }
  return nullptr;
}

bool io_uring_allowed() {
#ifdef __NR_io_uring_setup
  // The kernel's struct io_uring_params is 120 bytes; zero asks for nothing special.
  std::array<std::byte, 120> params{};
  const long fd = ::syscall(__NR_io_uring_setup, 1u, params.data());
  if (fd < 0) return false;
  ::close(static_cast<int>(fd));
  return true;
#else
  return false;
#endif
}

Mount mount_of(std::string_view mountinfo, std::string_view path) {
  Mount best;
  for (const std::string_view line : lines_of(mountinfo)) {
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = words_of(line.substr(0, dash)), right = words_of(line.substr(dash + 3));
    if (left.size() < 5 || right.empty()) continue;
    const std::string_view point = left[4];
    const bool below = point == "/" || (path.starts_with(point) && (path.size() == point.size() || path[point.size()] == '/'));
    // The later of two mounts at one place hides the earlier.
    if (below && point.size() >= best.point.size()) best = {printable(point, 400), printable(right[0], 40)};
  }
  return best;
}

Result<DiskReport> probe_disk(const std::string& path, bool deep) {
  DiskReport report{.path = path};
  CloseFd buffered{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (buffered.fd < 0) return error(StatusCode::kIo, "{}: open failed ({})", path, errno);
  struct stat st;
  if (::fstat(buffered.fd, &st) != 0 || !S_ISREG(st.st_mode)) return error(StatusCode::kIo, "{}: not a regular file", path);
  report.file_bytes = static_cast<uint64_t>(st.st_size);
  look_at_queue(st, report);
  report.has_uring = io_uring_allowed();
  CloseFd direct{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT)};
  report.has_direct = direct.fd >= 0;
  const auto time = std::chrono::milliseconds(deep ? 1000 : 125);
  uint64_t seed = 1;
  for (const Cell& cell : cells_of(deep)) {
    if (cell.direct && !report.has_direct) continue;
    if (auto sample = measure(cell.direct ? direct.fd : buffered.fd, report.file_bytes, cell, seed++, time)) {
      report.samples.push_back(*sample);
    } else if (cell.direct && report.file_bytes >= cell.block_bytes) {
      report.has_direct = false;  // opened, and refused at the first read
    }
  }
  ::posix_fadvise(buffered.fd, 0, 0, POSIX_FADV_DONTNEED);
  return report;
}

Json disk_json(const DiskReport& r) {
  Json j = Json::object();
  j.set("path", printable(r.path, 4096));
  j.set("file_bytes", r.file_bytes);
  j.set("fs_type", r.fs_type);
  j.set("mount", r.mount);
  j.set("rotational", r.rotational);
  j.set("read_ahead_kb", r.read_ahead_kb);
  j.set("has_direct", r.has_direct);
  j.set("has_uring", r.has_uring);
  Json samples = Json::array();
  for (const DiskSample& s : r.samples) {
    Json x = Json::object();
    x.set("order", order_name(s.random));
    x.set("direct", s.direct);
    x.set("block_bytes", s.block_bytes);
    x.set("in_flight", s.in_flight);
    x.set("gbps", s.gbps);
    x.set("p50_ms", s.p50_ms);
    x.set("max_ms", s.max_ms);
    x.set("requests", s.requests);
    samples.push_back(std::move(x));
  }
  j.set("samples", std::move(samples));
  return j;
}

Result<DiskReport> parse_disk_json(const Json& json) {
  DiskReport r;
  const auto text = [&](const Json& o, const char* key) {
    const Json* v = o.find(key);
    return v != nullptr && v->is_string() ? printable(v->as_string(), 4096) : std::string();
  };
  const auto number = [&](const Json& o, const char* key, double otherwise) {
    const Json* v = o.find(key);
    const double d = v != nullptr && v->is_number() ? v->as_double() : otherwise;
    return d >= -1 && d < 1e18 ? d : otherwise;
  };
  const auto flag = [&](const Json& o, const char* key) {
    const Json* v = o.find(key);
    return v != nullptr && v->is_bool() && v->as_bool();
  };
  const Json* samples = json.find("samples");
  if (samples == nullptr || !samples->is_array()) return error(StatusCode::kCorrupt, "\"disk\" has no list \"samples\"");
  r.path = text(json, "path");
  r.fs_type = text(json, "fs_type");
  r.mount = text(json, "mount");
  r.file_bytes = static_cast<uint64_t>(std::max(0.0, number(json, "file_bytes", 0)));
  r.rotational = static_cast<int>(std::clamp(number(json, "rotational", -1), -1.0, 1.0));
  r.read_ahead_kb = static_cast<int64_t>(number(json, "read_ahead_kb", -1));
  r.has_direct = flag(json, "has_direct");
  r.has_uring = flag(json, "has_uring");
  for (const Json& s : samples->as_array()) {
    if (r.samples.size() >= kMaxSamples) break;
    r.samples.push_back({text(s, "order") == "random", flag(s, "direct"),
                         static_cast<uint64_t>(std::max(0.0, number(s, "block_bytes", 0))),
                         static_cast<int>(std::clamp(number(s, "in_flight", 1), 1.0, 1e6)), std::max(0.0, number(s, "gbps", 0)),
                         std::max(0.0, number(s, "p50_ms", 0)), std::max(0.0, number(s, "max_ms", 0)),
                         static_cast<uint64_t>(std::max(0.0, number(s, "requests", 0)))});
  }
  return r;
}

}  // namespace pointsman::doctor
