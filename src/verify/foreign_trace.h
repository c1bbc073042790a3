// SPDX-License-Identifier: Apache-2.0
//
// Dumps of other tools as traces: a folder of .npy files, and dump folders of msprobe (docs/formats/trace.md says what of its format was
// confirmed). Tolerant: what cannot be read is a note, not an error. Nothing is unpickled: .pt files are counted and left alone.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "verify/trace_file.h"

namespace pointsman {

struct ForeignTrace {
  std::vector<TraceTensor> tensors;
  std::vector<std::string> skipped, notes;
};
Result<ForeignTrace> read_foreign_trace(FileSystem& fs, const std::string& directory);

// The trace point of a dumped name, such as "Module.model.layers.3.self_attn.q_proj.Linear.forward.0.output.0" or
// "model.layers.3.self_attn.q_proj.output"; the name itself when it is none that is known.
std::string point_of_dump(std::string_view name);

// The tensors that an msprobe dump.json lists: name, file of the payload ("" in a dump of statistics), and its statistics.
struct DumpEntry {
  std::string name, file;
  std::vector<double> statistics;  // max, min, mean, norm; empty when they are not all there
};
// kCorrupt when it is no such object. At most a million entries.
Result<std::vector<DumpEntry>> parse_dump_json(const Json& json, std::vector<std::string>& notes);

}  // namespace pointsman
