// SPDX-License-Identifier: Apache-2.0
//
// The section quantization_config that pack writes into config.json, and reads back for unpacking. Format: docs/formats/packed.md.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "base/json.h"
#include "pack/options.h"

namespace pointsman {

// Of a folder that pack made; empty otherwise.
struct PackedFormats {
  std::map<std::string, std::string, std::less<>> formats;  // by unit, or kind of unit
  Json source;                                              // quantization_config of what was packed; null: it had none
  bool tied_head = false;                                   // lm_head.weight was made from the embedding
  // "int8", ...; "keep" where nothing is said.
  std::string of(std::string_view unit) const;
};
// kCorrupt: the section is there and is not what pack writes.
Result<PackedFormats> read_packed_formats(FileSystem& fs, const std::string& model);
Result<PackedFormats> parse_packed_formats(const Json& config);

// config.json of the packed folder: everything of `model`'s, in its order, and the section. `formats` and `tied_head` as in PackPlan.
Result<std::string> make_packed_config(FileSystem& fs, const std::string& model, const PackOptions& options,
                                       const std::vector<std::pair<std::string, std::string>>& formats, bool tied_head);

}  // namespace pointsman
