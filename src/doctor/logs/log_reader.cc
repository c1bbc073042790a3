// SPDX-License-Identifier: Apache-2.0
#include "doctor/logs/log_reader.h"

#include <algorithm>

#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kChunkBytes = size_t{1} << 20;
constexpr int64_t kMaxRank = 10'000'000;
constexpr size_t kMaxRanksKept = 262'144;

// "rank_3.log", "rank-3", "worker_3", "node0_rank3_stderr.txt"; torchrun's "attempt_0/3/stderr.log".
int64_t rank_of_path(const std::string& path) {
  const std::string low = lower(path);
  for (const std::string_view key : {"rank_", "rank-", "rank", "worker_", "worker-"}) {
    for (size_t at = low.rfind(key); at != std::string::npos; at = at == 0 ? std::string::npos : low.rfind(key, at - 1)) {
      const int64_t n = number_after(std::string_view(low).substr(at), key);
      const bool word = at == 0 || !(low[at - 1] >= 'a' && low[at - 1] <= 'z');
      if (n >= 0 && n < kMaxRank && word) return n;
    }
  }
  const auto parts = split(low, '/');
  for (size_t i = 1; i < parts.size(); ++i) {
    if (!parts[i - 1].starts_with("attempt_")) continue;
    const auto n = parse_int(parts[i]);
    if (n && *n >= 0 && *n < kMaxRank) return *n;
  }
  return -1;
}

// "plog-1234_20251030.log", "plog-1234.log", "nccl.host.1234".
int64_t pid_of_path(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1);
  const int64_t plog = number_after(name, "plog-");
  if (plog > 0) return plog;
  if (name.starts_with("nccl")) {
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos) return parse_int(std::string_view(name).substr(dot + 1)).value_or(-1);
  }
  return -1;
}

// Takes a file's bytes in pieces, and its lines one by one.
class LineReader {
 public:
  LineReader(const std::string& path, const LogLimits& limits, LogCollection& out) : limits_(limits), out_(out) {
    file_.path = path;
    file_.rank = rank_of_path(path);
    file_.pid = pid_of_path(path);
    path_says_rank_ = file_.rank >= 0;
  }

  void take(std::string_view bytes) {
    file_.bytes += bytes.size();
    while (!bytes.empty()) {
      const size_t end = bytes.find('\n');
      const std::string_view piece = bytes.substr(0, end);
      // A line without an end must not fill the memory.
      partial_.append(piece.substr(0, limits_.max_line_bytes - std::min(limits_.max_line_bytes, partial_.size())));
      if (end == std::string_view::npos) return;
      line(partial_);
      partial_.clear();
      bytes.remove_prefix(end + 1);
    }
  }
  // Between the head and the tail of a long file.
  void skip() {
    partial_.clear();
    file_.was_cut = true;
  }

  void finish() {
    if (!partial_.empty()) line(partial_);
    // One writer only: then the file is that rank's.
    if (!path_says_rank_)
      file_.rank = ranks_.size() == 1 ? *ranks_.begin() : init_rank_ >= 0 && ranks_.empty() ? init_rank_ : -1;
    if (!file_.first && events_.empty() && file_.rank < 0) return;
    file_.is_shared = file_.is_shared || ranks_.size() > 1 || several_inits_;
    for (const int64_t rank : ranks_) remember(rank);
    if (file_.rank >= 0) remember(file_.rank);
    const size_t index = out_.files.size();
    for (LogEvent& e : events_) {
      e.file = index;
      out_.events.push_back(std::move(e));
    }
    out_.files.push_back(std::move(file_));
  }

 private:
  void remember(int64_t rank) {
    if (out_.ranks.size() < kMaxRanksKept) out_.ranks.insert(rank);
  }

  // The rank of the largest communicator wins; two ranks of one number are two hosts.
  void process_has_rank(int64_t pid, int64_t rank) {
    if (rank >= kMaxRank || out_.pid_rank.size() > kMaxRanksKept) return;
    const auto [it, fresh] = out_.pid_rank.try_emplace(pid, rank);
    if (!fresh && it->second != rank) it->second = -2;
  }

  void line(std::string_view text) {
    ++file_.lines;
    if (text.empty()) return;
    const auto time = find_time(text);
    if (time) {
      if (!file_.first) file_.first = time;
      file_.last = time;
      last_time_ = time;
    }
    const int64_t rank = rank_of_line(text);
    if (rank >= 0 && rank < kMaxRank && ranks_.size() < 4096) ranks_.insert(rank);
    const int64_t pid = pid_of_line(text);
    if (file_.pid < 0) file_.pid = pid;
    if (pid > 0 && pid != file_.pid) file_.is_shared = true;
    if (pid > 0 && rank >= 0) process_has_rank(pid, rank);
    addresses(text);
    if (const int64_t s = number_after(text, "HCCL_CONNECT_TIMEOUT is set to ["); s > 0) out_.connect_timeout_s = s;
    if (const int64_t s = number_after(text, "HCCL_CONNECT_TIMEOUT set by environment to ["); s > 0) out_.connect_timeout_s = s;
    auto what = classify_line(text);
    if (!what) return;
    if (what->kind == EventKind::kCommInit) {
      comm_init(*what, rank, pid, time);
      return;
    }
    if (what->role == Role::kProgress) {
      file_.has_operator = true;
      return;
    }
    keep(std::move(*what), rank, time, text);
  }

  void comm_init(const LineEvent& e, int64_t line_rank, int64_t pid, const std::optional<LogTime>& time) {
    file_.has_init = true;
    out_.world_size = std::max(out_.world_size, e.group_size);
    // The rank in the largest group is the rank in the world; sub-groups number anew.
    if (e.group_size < largest_group_) return;
    const bool larger = e.group_size > largest_group_;
    largest_group_ = e.group_size;
    if (init_rank_ >= 0 && init_rank_ != e.rank && !larger) {
      several_inits_ = true;  // NCCL logs of several processes in one file
    }
    init_rank_ = several_inits_ ? -1 : e.rank;
    const int64_t rank = line_rank >= 0 ? line_rank : e.rank;
    if (pid > 0) process_has_rank(pid, rank);
    if (rank >= kMaxRank || out_.inits.size() > kMaxRanksKept) return;
    remember(rank);
    int64_t& group = out_.inits[rank];
    if (e.group_size > group) group = e.group_size;
    if (time) {
      const auto [it, fresh] = out_.init_times.try_emplace(rank, *time);
      if (!fresh && time->us(2000) < it->second.us(2000)) it->second = *time;
    }
  }

  void keep(LineEvent what, int64_t rank, const std::optional<LogTime>& time, std::string_view text) {
    // The first of each kind, then what there is room for: a log can repeat one error a million times.
    size_t same = 0;
    for (const LogEvent& e : events_) same += e.what.kind == what.kind && e.what.code == what.code && e.rank == rank;
    if (same >= 4 || events_.size() >= limits_.max_events_per_file) return;
    events_.push_back({std::move(what), rank, time ? time : last_time_, 0, file_.lines, printable(trim(text), 240)});
  }

  // "rank[7]-localUserrank[7]-localIpAddr[80.5.5.39/7], remoteRank[15]-remoteUserrank[15]-remoteIpAddr[80.5.5.67/7]", and
  // device numbers of the Entry lines.
  void addresses(std::string_view text) {
    if (contains(text, "localIpAddr[")) {
      location(text, "localUserrank[", "localIpAddr[");
      location(text, "remoteUserrank[", "remoteIpAddr[");
    }
    if (contains(text, "Entry-HcclCommInit")) {
      const int64_t rank = number_after(text, ", rank["), device = number_after(text, "deviceLogicId[");
      if (rank >= 0 && device >= 0 && rank < kMaxRank && number_after(text, "ranks[") >= out_.world_size) {
        const auto [it, fresh] = out_.device_rank.try_emplace(device, rank);
        if (!fresh && it->second != rank) it->second = -2;
      }
    }
  }
  void location(std::string_view text, std::string_view rank_key, std::string_view address_key) {
    const int64_t rank = number_after(text, rank_key);
    const size_t at = text.find(address_key);
    if (rank < 0 || at == std::string_view::npos || out_.location_rank.size() > 100'000) return;
    const size_t begin = at + address_key.size(), end = text.find(']', begin);
    if (end == std::string_view::npos || end - begin > 80) return;
    out_.location_rank.try_emplace(printable(text.substr(begin, end - begin), 80), rank);
  }

  const LogLimits& limits_;
  LogCollection& out_;
  LogFile file_;
  std::string partial_;
  std::vector<LogEvent> events_;
  std::set<int64_t> ranks_;
  std::optional<LogTime> last_time_;
  int64_t init_rank_ = -1, largest_group_ = -1;
  bool path_says_rank_ = false, several_inits_ = false;
};

struct Walk {
  FileSystem& fs;
  const LogLimits& limits;
  LogCollection& out;
  std::chrono::steady_clock::time_point deadline;
  bool stopped = false;

  bool stop(const std::string& why) {
    if (!stopped) out.notes.push_back(why);
    stopped = true;
    return true;
  }

  void folder(const std::string& directory, const std::string& relative, int depth) {
    if (depth > limits.max_depth) {
      if (out.notes.size() < 32)
        out.notes.push_back(format("{}: deeper than {} folders, not read", printable(relative), limits.max_depth));
      return;
    }
    const auto names = fs.list(directory);
    if (!names.ok()) {
      if (out.notes.size() < 32) out.notes.push_back(names.status().message());
      return;
    }
    for (const std::string& name : *names) {
      if (stopped) return;
      const std::string path = join_path(directory, name), below = relative.empty() ? name : relative + "/" + name;
      const auto info = fs.stat(path);
      if (!info.ok() || info->is_symlink) continue;
      if (info->is_regular) {
        file(path, below, info->size_bytes);
      } else if (fs.list(path).ok()) {
        folder(path, below, depth + 1);
      }
    }
  }

  void file(const std::string& path, const std::string& relative, uint64_t size) {
    for (const char* suffix : {".gz", ".xz", ".bz2", ".zst", ".zip", ".tar", ".tgz"}) {
      if (!relative.ends_with(suffix)) continue;
      if (out.notes.size() < 32) out.notes.push_back(format("{}: packed, not read; unpack it first", printable(relative)));
      return;
    }
    if (out.files_seen >= limits.max_files) {
      stop(format("more than {} files: the rest was not read", limits.max_files));
      return;
    }
    ++out.files_seen;
    const auto opened = fs.open(path);
    if (!opened.ok()) {
      if (out.notes.size() < 32) out.notes.push_back(opened.status().message());
      return;
    }
    LineReader reader(relative, limits, out);
    const uint64_t half = limits.max_file_bytes / 2;
    if (size <= limits.max_file_bytes) {
      range(**opened, 0, size, reader);
    } else {
      range(**opened, 0, half, reader);
      reader.skip();
      range(**opened, size - half, half, reader);
      if (out.notes.size() < 32)
        out.notes.push_back(format("{}: {}, only the first and the last {} were read", printable(relative),
                                   human_bytes(static_cast<double>(size)), human_bytes(static_cast<double>(half))));
    }
    reader.finish();
  }

  void range(File& file, uint64_t offset, uint64_t bytes, LineReader& reader) {
    std::string chunk(std::min<uint64_t>(kChunkBytes, std::max<uint64_t>(bytes, 1)), '\0');
    while (bytes > 0 && !stopped) {
      if (std::chrono::steady_clock::now() > deadline) {
        stop(format("stopped after {} s", std::chrono::duration_cast<std::chrono::seconds>(limits.max_time).count()));
        return;
      }
      if (out.bytes >= limits.max_total_bytes) {
        stop(format("stopped after {}", human_bytes(static_cast<double>(out.bytes))));
        return;
      }
      const auto n =
          file.pread(std::as_writable_bytes(std::span(chunk)).first(std::min<uint64_t>(chunk.size(), bytes)), offset);
      if (!n.ok()) {
        if (n.status().code() == StatusCode::kUnavailable) continue;
        if (out.notes.size() < 32) out.notes.push_back(n.status().message());
        return;
      }
      if (*n == 0) return;  // it became shorter while it was read
      reader.take(std::string_view(chunk).substr(0, *n));
      offset += *n;
      bytes -= *n;
      out.bytes += *n;
    }
  }
};

}  // namespace

void read_log_text(std::string_view text, const std::string& path, const LogLimits& limits, LogCollection& out) {
  LineReader reader(path, limits, out);
  reader.take(text);
  reader.finish();
  ++out.files_seen;
  out.bytes += text.size();
}

void resolve_ranks(LogCollection& logs) {
  // A process has one rank: a file that says both lends it to those that say only the process.
  std::map<int64_t, int64_t> rank_of_pid = logs.pid_rank;
  for (const LogFile& f : logs.files) {
    if (f.pid > 0 && f.rank >= 0 && !f.is_shared) {
      const auto [it, fresh] = rank_of_pid.try_emplace(f.pid, f.rank);
      if (!fresh && it->second != f.rank) it->second = -2;  // the same number on two hosts
    }
  }
  for (LogFile& f : logs.files) {
    if (f.rank >= 0 || f.pid <= 0 || f.is_shared) continue;
    const auto it = rank_of_pid.find(f.pid);
    if (it != rank_of_pid.end() && it->second >= 0) f.rank = it->second;
  }
  for (LogEvent& e : logs.events) {
    if (e.what.kind == EventKind::kProcessDied && e.rank < 0 && logs.files[e.file].rank < 0) {
      // A launcher names the process, and the rank on its own host: that is the rank of the job when the job has one host.
      const auto it = rank_of_pid.find(pid_of_line(e.text));
      if (it != rank_of_pid.end() && it->second >= 0) {
        e.rank = it->second;
      } else if (logs.world_size <= 16) {
        e.rank = e.what.rank;
      }
    } else if (e.rank < 0) {
      e.rank = logs.files[e.file].rank;
    }
  }
}

Result<LogCollection> read_logs(FileSystem& fs, const std::string& directory, const LogLimits& limits) {
  LogCollection out;
  if (const auto names = fs.list(directory); !names.ok()) return names.status();
  Walk walk{fs, limits, out, std::chrono::steady_clock::now() + limits.max_time};
  walk.folder(directory, "", 0);
  resolve_ranks(out);
  return out;
}

}  // namespace pointsman::doctor
