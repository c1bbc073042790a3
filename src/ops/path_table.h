// SPDX-License-Identifier: Apache-2.0
//
// The table that `bench ops --tune` makes: for the shapes of mixtures it measured, the fastest path (panel_paths.h) by format and rows of an expert.
// One JSON file per machine in a folder of the user's; the engine reads it when it starts, and a bad one is a warning and the built-in rule.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "ops/panel_paths.h"
#include "pointsman/status.h"

namespace pointsman::ops {

// A mixture: what decides how many rows an expert has and how large its matrices are.
struct MoeShape {
  int64_t experts = 1, top_k = 1, hidden = 0, width = 0;
  friend bool operator==(const MoeShape&, const MoeShape&) = default;
};
struct TunedShape {
  MoeShape shape;
  PanelPaths paths;
};

// Whose table it is: choices of another processor, instruction set or number of threads say nothing here.
struct MachineKey {
  std::string cpu, isa;
  int threads = 0;
  friend bool operator==(const MachineKey&, const MachineKey&) = default;
};
struct PathTable {
  MachineKey key;
  std::vector<TunedShape> shapes;
};

// The measured choices for the shape nearest to this one: by ratios of experts, top-k, hidden size and width. Null: the table is empty.
const PanelPaths* nearest_paths(const PathTable& table, const MoeShape& shape);

// "kernel-paths-avx512-2-0123456789abcdef.json": one file per machine in a folder.
std::string path_table_file_name(const MachineKey& key);
std::string path_table_json(const PathTable& table);
// kCorrupt: not such a table, with what and where. Bounded: 64 KiB, 256 shapes.
Result<PathTable> parse_path_table(std::string_view text);
// From `folder`, for `key`. kNotFound: none was made. kCorrupt also when it is another machine's.
Result<PathTable> read_path_table(FileSystem& fs, const std::string& folder, const MachineKey& key);
// Writes or replaces it, whole or not at all; makes `folder` when it is missing.
Status write_path_table(FileSystem& fs, const std::string& folder, const PathTable& table);

}  // namespace pointsman::ops
