// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss as it was first published (the folder `original` of its repositories) has names of its own, and q, k and v in one tensor:
//
//   embedding.weight, unembedding.weight, norm.scale
//   block.N.attn.{norm.scale, qkv.{weight,bias}, sinks, out.{weight,bias}}
//   block.N.mlp.{norm.scale, gate.{weight,bias}, mlp1_weight.{blocks,scales}, mlp1_bias, mlp2_weight.{blocks,scales}, mlp2_bias}
//
// Rows of qkv are q's, then k's, then v's; everything else lies as transformers has it.
#pragma once

#include <vector>

#include "checkpoint/safetensors.h"

namespace pointsman {

// Are these such names? By block.0.attn.qkv.weight.
bool has_gpt_oss_names(const std::vector<SafetensorsEntry*>& entries);

// Gives the entries the names of transformers, and adds to `more` the entries that qkv falls apart into (with the index of the entry they were cut
// from); entries that were cut keep the first part, q. Names that are not in the list above stay. kCorrupt: a qkv that does not fit its `out`.
struct CutEntry {
  size_t from = 0;
  SafetensorsEntry entry;
};
Status rename_gpt_oss(const std::vector<SafetensorsEntry*>& entries, std::vector<CutEntry>& more);

}  // namespace pointsman
