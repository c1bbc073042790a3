// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/cgroup.h"

namespace pointsman {
namespace {

std::optional<std::string> read_file(FileSystem& fs, const std::string& path) {
  std::string text;
  if (!read_kernel_file(fs, path, text)) return std::nullopt;
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    if (end > 0) parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::optional<uint64_t> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc()) return std::nullopt;  // "max"
  return value;
}
std::optional<uint64_t> read_number(FileSystem& fs, const std::string& path) {
  const auto text = read_file(fs, path);
  return text ? parse_number(*text) : std::nullopt;
}

// The number after `key` at the start of a line.
std::optional<uint64_t> field(std::string_view text, std::string_view key) {
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(key) && line.size() > key.size() && (line[key.size()] == ' ' || line[key.size()] == '\t')) {
      return parse_number(line.substr(key.size()));
    }
  }
  return std::nullopt;
}
uint64_t status_kib(FileSystem& fs, const std::string& root, std::string_view key) {
  const auto text = read_file(fs, root + "/proc/self/status");
  return text ? field(*text, key).value_or(0) * 1024 : 0;
}

struct Hierarchy {
  std::vector<std::string_view> limit_files;
  std::string_view usage_file;
  std::string_view inactive_file_key, active_file_key;  // of memory.stat, subtree included
};
const Hierarchy kV1 = {{"memory.limit_in_bytes"}, "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
const Hierarchy kV2 = {{"memory.max", "memory.high"}, "memory.current", "inactive_file", "active_file"};
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

void look_at_level(FileSystem& fs, const Hierarchy& h, const std::string& directory, MemoryLimits& limits) {
  uint64_t limit = kNoLimit;
  for (const std::string_view name : h.limit_files) {
    limit = std::min(limit, read_number(fs, join_path(directory, std::string(name))).value_or(kNoLimit));
  }
  if (limit >= kNoLimit) return;
  uint64_t used = read_number(fs, join_path(directory, std::string(h.usage_file))).value_or(0);
  if (const auto stat = read_file(fs, join_path(directory, "memory.stat"))) {
    used -= std::min(used, field(*stat, h.inactive_file_key).value_or(0) + field(*stat, h.active_file_key).value_or(0));
  }
  const uint64_t room = limit > used ? limit - used : 0;
  if (limits.container_limit_bytes && *limits.container_room_bytes() <= room) return;
  limits.container_limit_bytes = limit;
  limits.container_used_bytes = used;
  limits.container_path = directory;
}

}  // namespace

std::optional<uint64_t> MemoryLimits::container_room_bytes() const {
  if (!container_limit_bytes) return std::nullopt;
  return *container_limit_bytes > container_used_bytes ? *container_limit_bytes - container_used_bytes : 0;
}

MemoryLimits read_memory_limits(FileSystem& fs, const std::string& root) {
  MemoryLimits limits;
  if (const auto meminfo = read_file(fs, root + "/proc/meminfo")) {
    if (const auto kib = field(*meminfo, "MemAvailable:")) limits.available_bytes = *kib * 1024;
  }
  for (const CgroupFolder& folder : cgroup_folders(fs, root, "memory"))
    look_at_level(fs, folder.is_v2 ? kV2 : kV1, folder.path, limits);
  return limits;
}

uint64_t default_budget_bytes(const MemoryLimits& limits) {
  std::optional<uint64_t> bytes = limits.available_bytes;
  if (const auto room = limits.container_room_bytes()) bytes = std::min(*room, bytes.value_or(*room));
  if (!bytes) return uint64_t{1} << 30;
  return *bytes / 5 * 4;
}

uint64_t default_budget_bytes() {
  return default_budget_bytes(read_memory_limits());
}

uint64_t current_rss_bytes(FileSystem& fs, const std::string& root) {
  return status_kib(fs, root, "VmRSS:");
}
uint64_t peak_rss_bytes(FileSystem& fs, const std::string& root) {
  return status_kib(fs, root, "VmHWM:");
}

}  // namespace pointsman
