// SPDX-License-Identifier: Apache-2.0
//
// pack.progress.json in a partial folder: which files are complete, with the digests and errors of their records, for `pack --resume`.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "base/hash.h"
#include "pointsman/status.h"
#include "tensor/quantise.h"

namespace pointsman {

inline constexpr const char* kPackProgressName = "pack.progress.json";

struct PackedRecord {
  // Of an expert: one digest over its parts. Of a matrix: of its elements, then of its scales when there are any. Of another tensor: one.
  std::vector<Sha256Digest> digests;
  std::optional<Xxh3Digest> xxh3;         // of an expert
  std::vector<QuantisationError> errors;  // one per matrix
};

struct PackProgressFile {
  std::string fingerprint;                                          // PackPlan::fingerprint()
  std::map<std::string, uint64_t, std::less<>> files;               // complete ones, and their sizes
  std::map<std::string, PackedRecord, std::less<>> records;         // of those files
};

std::string progress_to_json(const PackProgressFile& progress);
Result<PackProgressFile> parse_progress_json(std::string_view text);  // kCorrupt

}  // namespace pointsman
