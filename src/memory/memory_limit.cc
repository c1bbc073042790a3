// SPDX-License-Identifier: Apache-2.0
#include "memory/memory_limit.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

namespace pointsman {
namespace {

// Files of /proc and cgroupfs say size 0 or 4096 whatever they hold: read until the end.
std::optional<std::string> read_kernel_file(FileSystem& fs, const std::string& path) {
  constexpr size_t kMaxBytes = size_t{4} << 20;  // mountinfo of a host with thousands of containers
  const auto file = fs.open(path);
  if (!file.ok()) return std::nullopt;
  std::string text;
  char chunk[4096];
  while (text.size() < kMaxBytes) {
    const auto n = (*file)->pread(std::as_writable_bytes(std::span(chunk)), text.size());
    if (!n.ok()) {
      if (n.status().code() == StatusCode::kUnavailable) continue;  // interrupted
      return std::nullopt;
    }
    if (*n == 0) break;
    text.append(chunk, *n);
  }
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

bool contains(std::string_view comma_separated, std::string_view word) {
  const auto words = split(comma_separated, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::optional<uint64_t> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc()) return std::nullopt;  // "max"
  return value;
}
std::optional<uint64_t> read_number(FileSystem& fs, const std::string& path) {
  const auto text = read_kernel_file(fs, path);
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
  const auto text = read_kernel_file(fs, root + "/proc/self/status");
  return text ? field(*text, key).value_or(0) * 1024 : 0;
}

// mountinfo writes blanks and backslashes as three octal digits.
std::string unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto octal = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
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
  if (const auto stat = read_kernel_file(fs, join_path(directory, "memory.stat"))) {
    used -= std::min(used, field(*stat, h.inactive_file_key).value_or(0) + field(*stat, h.active_file_key).value_or(0));
  }
  const uint64_t room = limit > used ? limit - used : 0;
  if (limits.container_limit_bytes && *limits.container_room_bytes() <= room) return;
  limits.container_limit_bytes = limit;
  limits.container_used_bytes = used;
  limits.container_path = directory;
}

// From the process's cgroup up to the mount. A container often sees only its own part of the tree, mounted with the path of
// that part as its root; what is above cannot be read from inside.
void walk_up(FileSystem& fs, const Hierarchy& h, const std::string& root, std::string_view mount_root, std::string mount_point,
             std::string_view cgroup, MemoryLimits& limits) {
  if (mount_root != "/") {
    const bool below =
        cgroup.starts_with(mount_root) && (cgroup.size() == mount_root.size() || cgroup[mount_root.size()] == '/');
    cgroup = below ? cgroup.substr(mount_root.size()) : "";
  }
  std::string path(cgroup == "/" ? "" : cgroup);
  while (true) {
    look_at_level(fs, h, root + mount_point + path, limits);
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

std::optional<uint64_t> MemoryLimits::container_room_bytes() const {
  if (!container_limit_bytes) return std::nullopt;
  return *container_limit_bytes > container_used_bytes ? *container_limit_bytes - container_used_bytes : 0;
}

MemoryLimits read_memory_limits(FileSystem& fs, const std::string& root) {
  MemoryLimits limits;
  if (const auto meminfo = read_kernel_file(fs, root + "/proc/meminfo")) {
    if (const auto kib = field(*meminfo, "MemAvailable:")) limits.available_bytes = *kib * 1024;
  }
  const auto cgroups = read_kernel_file(fs, root + "/proc/self/cgroup");
  const auto mounts = read_kernel_file(fs, root + "/proc/self/mountinfo");
  if (!cgroups || !mounts) return limits;
  std::optional<std::string> v1_path, v2_path;
  for (const std::string_view line : split(*cgroups, '\n')) {
    // "4:memory:/a/b", "0::/a/b"
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() && line.substr(0, first) == "0") v2_path = line.substr(second + 1);
    if (contains(controllers, "memory")) v1_path = line.substr(second + 1);
  }
  for (const std::string_view line : split(*mounts, '\n')) {
    // "35 31 0:32 /root /mount/point rw,... optional... - cgroup source rw,memory"
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 2) continue;
    const std::string mount_root = unescape(left[3]);
    if (right[0] == "cgroup2" && v2_path) walk_up(fs, kV2, root, mount_root, unescape(left[4]), *v2_path, limits);
    if (right[0] == "cgroup" && v1_path && contains(right.back(), "memory")) {
      walk_up(fs, kV1, root, mount_root, unescape(left[4]), *v1_path, limits);
    }
  }
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
