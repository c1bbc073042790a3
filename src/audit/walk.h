// SPDX-License-Identifier: Apache-2.0
//
// The files of a tree, in sorted order. Symbolic links are never followed (so there are no loops and nothing outside the tree
// is read); version-control, build and vendored folders are left out unless asked for; everything left out is counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "audit/source.h"
#include "base/fs.h"

namespace pointsman::audit {

struct WalkOptions {
  uint64_t max_file_bytes = 4u << 20;
  uint64_t max_files = 200'000;
  int max_depth = 64;
  bool include_vendored = false;      // third_party/, vendor/, build/, site-packages/, ...
  std::vector<std::string> excludes;  // paths relative to the root; a folder leaves out what is in it
};

struct WalkEntry {
  std::string path;       // relative to the root
  std::string full_path;  // to open
  FileKind kind = FileKind::kUnknown;  // kUnknown: a file without ending, whose first bytes decide
  uint64_t size_bytes = 0;
};

struct SkippedPath {
  std::string path;
  std::string reason;
};

struct WalkResult {
  std::vector<WalkEntry> files;
  std::vector<SkippedPath> skipped;  // files that a rule could have looked at; folders end with '/'
};

// `root` may be one file. kNotFound, kIo: the root itself could not be read; below it, what cannot be read is skipped.
Result<WalkResult> walk(FileSystem& fs, const std::string& root, const WalkOptions& options);

}  // namespace pointsman::audit
