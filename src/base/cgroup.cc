// SPDX-License-Identifier: Apache-2.0
#include "base/cgroup.h"

#include <algorithm>
#include <optional>

namespace pointsman {
namespace {

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

// From the process's cgroup up to the mount. A container often sees only its own part of the tree, mounted with the path of
// that part as its root; what is above cannot be read from inside.
void walk_up(bool is_v2, const std::string& root, std::string_view mount_root, std::string mount_point, std::string_view cgroup,
             std::vector<CgroupFolder>& out) {
  if (mount_root != "/") {
    const bool below =
        cgroup.starts_with(mount_root) && (cgroup.size() == mount_root.size() || cgroup[mount_root.size()] == '/');
    cgroup = below ? cgroup.substr(mount_root.size()) : "";
  }
  std::string path(cgroup == "/" ? "" : cgroup);
  while (true) {
    out.push_back({root + mount_point + path, is_v2});
    if (path.empty()) return;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

bool read_kernel_file(FileSystem& fs, const std::string& path, std::string& text) {
  constexpr size_t kMaxBytes = size_t{4} << 20;  // mountinfo of a host with thousands of containers
  text.clear();
  const auto file = fs.open(path);
  if (!file.ok()) return false;
  char chunk[4096];
  while (text.size() < kMaxBytes) {
    const auto n = (*file)->pread(std::as_writable_bytes(std::span(chunk)), text.size());
    if (!n.ok()) {
      if (n.status().code() == StatusCode::kUnavailable) continue;  // interrupted
      return false;
    }
    if (*n == 0) break;
    text.append(chunk, *n);
  }
  return true;
}

std::vector<CgroupFolder> cgroup_folders(FileSystem& fs, const std::string& root, std::string_view controller) {
  std::vector<CgroupFolder> folders;
  std::string cgroups, mounts;
  if (!read_kernel_file(fs, root + "/proc/self/cgroup", cgroups) ||
      !read_kernel_file(fs, root + "/proc/self/mountinfo", mounts)) {
    return folders;
  }
  std::optional<std::string> v1_path, v2_path;
  for (const std::string_view line : split(cgroups, '\n')) {
    // "4:memory:/a/b", "0::/a/b"
    const size_t first = line.find(':');
    const size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty() && line.substr(0, first) == "0") v2_path = line.substr(second + 1);
    if (contains(controllers, controller)) v1_path = line.substr(second + 1);
  }
  for (const std::string_view line : split(mounts, '\n')) {
    // "35 31 0:32 /root /mount/point rw,... optional... - cgroup source rw,memory"
    const size_t dash = line.find(" - ");
    if (dash == std::string_view::npos) continue;
    const auto left = split(line.substr(0, dash), ' ');
    const auto right = split(line.substr(dash + 3), ' ');
    if (left.size() < 5 || right.size() < 2) continue;
    const std::string mount_root = unescape(left[3]);
    if (right[0] == "cgroup2" && v2_path) walk_up(true, root, mount_root, unescape(left[4]), *v2_path, folders);
    if (right[0] == "cgroup" && v1_path && contains(right.back(), controller)) {
      walk_up(false, root, mount_root, unescape(left[4]), *v1_path, folders);
    }
  }
  return folders;
}

}  // namespace pointsman
