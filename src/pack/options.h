// SPDX-License-Identifier: Apache-2.0
//
// What `pack` is asked to do.
//
// A unit is what weights are placed by: "layers.3.attention", "layers.3.experts", "layers.3.shared_expert", "layers.3.mlp", "lm_head",
// "embed_tokens", ... (docs/formats/packed.md has the list). A rule chooses the format of all units whose name, or last component, matches a
// pattern; * stands for any text and ? for one character. The last rule that matches decides, and the default format when none does.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"
#include "tensor/quantise.h"

namespace pointsman {

// kKeep: the numbers and codes of the source, only arranged anew. kBf16: matrices in BF16 (exact when they are BF16 already).
// kInt8Wide: INT8 with a scale for every 128 inputs.
enum class PackFormat : uint8_t { kKeep, kBf16, kInt8, kInt8Wide, kMxfp8, kMxfp4 };
std::string_view pack_format_name(PackFormat format);
Result<PackFormat> parse_pack_format(std::string_view name);  // kInvalidArgument lists the names

struct PackRule {
  std::string pattern;
  PackFormat format = PackFormat::kKeep;
};
// "experts=mxfp4".
Result<PackRule> parse_pack_rule(std::string_view text);

struct PackOptions {
  PackFormat format = PackFormat::kKeep;
  std::vector<PackRule> rules;
  bool panels = true;  // false: everything in rows
  ScaleRule scale_rule = ScaleRule::kUp;
  uint64_t shard_bytes = 4ull << 30;
  int threads = 0;     // 0: two for every CPU, at most 16
  bool resume = false;
  // The folder becomes an ordinary checkpoint again: rows, no quantization_config of pack's. What pack had coded becomes BF16.
  bool unpack = false;
};

// The format of a unit. Without a rule: experts as the default format says; attention, MLPs and shared experts too, but INT8 where the
// default is MXFP4 (four bits cost most quality there and save little), and so the LM head; embed_tokens BF16 when that is the default, else as
// they are; everything else stays as it is.
PackFormat format_of_unit(const PackOptions& options, std::string_view unit);

}  // namespace pointsman
