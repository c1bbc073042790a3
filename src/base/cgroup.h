// SPDX-License-Identifier: Apache-2.0
//
// The control groups of this process: the folders of one controller, from the process's own up to the root of the mount, in
// cgroup v1 and v2. A container often sees its own part of the tree only; what is above cannot be read from inside.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"

namespace pointsman {

struct CgroupFolder {
  std::string path;  // with `root` in front
  bool is_v2 = false;
};

// Innermost first, hierarchy by hierarchy. `controller`: "memory", "cpu". `root`: prefix of /proc and the mounts (tests).
std::vector<CgroupFolder> cgroup_folders(FileSystem& fs, const std::string& root, std::string_view controller);

// Files of /proc, /sys and cgroupfs say size 0 or 4096 whatever they hold: read until the end, at most 4 MiB. False: cannot be
// read.
bool read_kernel_file(FileSystem& fs, const std::string& path, std::string& text);

}  // namespace pointsman
