// SPDX-License-Identifier: Apache-2.0
//
// How fast a file can be read: in order and at random places, by size and number of requests in flight, through the page cache
// and past it (O_DIRECT). Reads only; drops the ranges that it reads from the page cache, before and after.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman::doctor {

struct DiskSample {
  bool random = false;
  bool direct = false;
  uint64_t block_bytes = 0;
  int in_flight = 1;
  double gbps = 0;                // 10^9 bytes a second
  double p50_ms = 0, max_ms = 0;  // of one request
  uint64_t requests = 0;
};

struct DiskReport {
  std::string path;
  uint64_t file_bytes = 0;
  std::string fs_type;  // "ext4", "nfs4", ...; empty: not known
  std::string mount;
  int rotational = -1;  // 0, 1; -1: not known
  int64_t read_ahead_kb = -1;
  bool has_direct = false;
  bool has_uring = false;
  std::vector<DiskSample> samples;

  // The best rate of the samples that `random` and `direct` select; 0 without.
  double best_gbps(bool random, bool direct) const;
  const DiskSample* find(bool random, bool direct, uint64_t block_bytes, int in_flight) const;
};

// `deep`: more sizes, a second each instead of an eighth. kIo, kNotFound: the file cannot be read.
Result<DiskReport> probe_disk(const std::string& path, bool deep);

Json disk_json(const DiskReport& report);
// Of a capture. kCorrupt when it is no such object.
Result<DiskReport> parse_disk_json(const Json& json);

// Mount point and type of the file system that holds `path`, from the text of /proc/self/mountinfo.
struct Mount {
  std::string point, type;
};
Mount mount_of(std::string_view mountinfo, std::string_view path);

bool io_uring_allowed();

}  // namespace pointsman::doctor
