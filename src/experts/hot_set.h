// SPDX-License-Identifier: Apache-2.0
//
// HotSet: what earlier runs of a model learned about it, in a file that the user names (--hot-set): how often each expert was asked for. The
// lfru policy starts from it. Never read or written unless asked for; it decides what stays in memory, never a result.
//
// The file is JSON: {"format": "pointsman-hot-set", "version": 1, "model_digest": "...", "runs": 3, "uses": [[...], ...]}, a row for each MoE
// layer. It belongs to the model whose lock file has that digest.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"

namespace pointsman {

struct HotSet {
  std::string model_digest;
  int num_layers = 0, num_experts = 0;
  uint64_t num_runs = 0;
  std::vector<uint32_t> uses;  // [layers * experts]; a run counts half as much after each later one

  void add_run(std::span<const uint32_t> run_uses);
};

// kCorrupt: no such file, or of another version, or numbers out of range. kInvalidArgument: of another model.
Result<HotSet> parse_hot_set(std::string_view text, std::string_view model_digest, int num_layers, int num_experts);
std::string hot_set_to_json(const HotSet& set);

// A file that is absent is a set of no runs; one larger than such a set can be is refused before it is read.
Result<HotSet> read_hot_set(FileSystem& fs, const std::string& path, std::string_view model_digest, int num_layers, int num_experts);
// All or nothing.
Status write_hot_set(FileSystem& fs, const std::string& path, const HotSet& set);

}  // namespace pointsman
