// SPDX-License-Identifier: Apache-2.0
//
// Reads a folder of logs of a distributed job, one or many ranks, one or many hosts: every regular file below it, in a fixed
// order, a line at a time. Symbolic links are not followed. Bounded in files, depth, bytes, line length and time; what was left
// out is said.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/fs.h"
#include "doctor/logs/log_event.h"
#include "doctor/logs/log_time.h"
#include "pointsman/status.h"

namespace pointsman::doctor {

struct LogLimits {
  size_t max_files = 20'000;
  int max_depth = 8;
  uint64_t max_file_bytes = uint64_t{64} << 20;  // of a longer file, the first and the last half of this
  uint64_t max_total_bytes = uint64_t{4} << 30;
  size_t max_line_bytes = 16384;  // the rest of a longer line is passed over
  size_t max_events_per_file = 64;
  std::chrono::milliseconds max_time{60'000};
};

// An event with who, when and where.
struct LogEvent {
  LineEvent what;
  int64_t rank = -1;  // of the writer; -1: not known
  std::optional<LogTime> time;
  size_t file = 0;
  uint64_t line = 0;
  std::string text;  // printable, shortened
};

struct LogFile {
  std::string path;   // relative to the folder
  int64_t rank = -1;  // when all of the file is one rank's
  int64_t pid = -1;
  uint64_t bytes = 0, lines = 0;
  std::optional<LogTime> first, last;
  bool has_init = false, has_operator = false;
  bool was_cut = false;
  bool is_shared = false;  // several ranks or processes write it
};

struct LogCollection {
  std::vector<LogFile> files;                    // those with a time, an event or a rank
  std::vector<LogEvent> events;                  // causes, victims and pointers, in file order
  std::map<int64_t, int64_t> inits;              // rank -> largest communicator it has entered
  std::map<int64_t, LogTime> init_times;         // of the first entry
  std::map<std::string, int64_t> location_rank;  // "127.10.0.1/1" -> rank
  std::map<int64_t, int64_t> device_rank;        // logical device -> rank, -2 when several ranks have it (several hosts)
  std::map<int64_t, int64_t> pid_rank;           // process -> rank, -2 when one number has several (several hosts)
  std::set<int64_t> ranks;                       // every rank that a line or a file names
  int64_t connect_timeout_s = -1;                // as a log says it was set
  int64_t world_size = -1;                       // largest communicator
  uint64_t bytes = 0, files_seen = 0;
  std::vector<std::string> notes;  // what was left out, and why
};

// kNotFound, kIo: the folder itself cannot be listed. A file that cannot be read is a note.
Result<LogCollection> read_logs(FileSystem& fs, const std::string& directory, const LogLimits& limits = {});

// The same for one text (tests, fuzzing).
void read_log_text(std::string_view text, const std::string& path, const LogLimits& limits, LogCollection& out);

// Ranks of events whose files name only a process; called by read_logs at the end.
void resolve_ranks(LogCollection& logs);

}  // namespace pointsman::doctor
