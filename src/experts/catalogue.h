// SPDX-License-Identifier: Apache-2.0
//
// ExpertCatalogue: every routed expert of a model as a placeholder - where its bytes lie, how large they are, what their digest
// must be - without one byte of its weights. What the practitioner's guide calls ExpertPlaceholder (§2.1).
//
// An expert's record is its parts one after the other, gate, up, down, then the scales of each where the format has any, each at a
// multiple of 64 bytes: that is how a slot holds it, as stored, never expanded. Digests cover the parts' bytes without the padding.
// A part that an expert does not have (scales of BF16 weights; up, when gate holds both interleaved) has no bytes.
//
// Immutable after it is built; shared by all threads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/lockfile.h"
#include "pointsman/status.h"
#include "tensor/block_format.h"

namespace pointsman {

inline constexpr int kMaxExpertParts = 6;
inline constexpr uint64_t kExpertPartAlignment = 64;  // a cache line, and the widest vector
enum class ExpertPart { kGate = 0, kUp = 1, kDown = 2, kGateScales = 3, kUpScales = 4, kDownScales = 5 };
inline constexpr int kNumWeightParts = 3;  // the scales of part p are part p + 3

struct ExpertPartInfo {
  DType dtype = DType::kBF16;
  uint32_t file_idx = 0;
  uint64_t offset = 0;  // in the file
  uint64_t size_bytes = 0;
  uint32_t slot_offset = 0;  // in the slot
  int32_t rows = 0;          // out_features; 0 for scales
  int32_t cols = 0;          // in_features
  BlockFormat format;        // of the part's scales
  WeightLayout layout = WeightLayout::kOutIn;
};

struct ExpertInfo {
  std::array<ExpertPartInfo, kMaxExpertParts> parts;
  std::optional<Sha256Digest> sha256;  // absent without a lock file
  std::optional<Xxh3Digest> xxh3;      // of the same bytes; absent where the lock file has none
  uint64_t size_bytes() const {
    uint64_t total = 0;
    for (const ExpertPartInfo& p : parts) total += p.size_bytes;
    return total;
  }
  // Sets every slot_offset from the sizes.
  void place_parts();
  // A weight part of the record that lies at `slot`; empty when the expert has no such part.
  Weight weight(ExpertPart part, std::byte* slot) const;
  uint64_t record_bytes() const;  // as a slot holds it: to the end of the last part, padding included
};

class ExpertCatalogue {
 public:
  // `layer_ids`: model layer numbers that have routed experts, ascending.
  ExpertCatalogue(std::vector<int> layer_ids, int num_experts);

  int num_layers() const { return static_cast<int>(layer_ids_.size()); }  // MoE layers
  int num_experts() const { return num_experts_; }
  int layer_id(int moe_layer_idx) const { return layer_ids_[static_cast<size_t>(moe_layer_idx)]; }
  ExpertInfo& at(int moe_layer_idx, int expert_id);
  const ExpertInfo& at(int moe_layer_idx, int expert_id) const;
  // Asks memory for the entry, which is long out of the caches when its layer comes again: asked for here, it is there when the expert is computed.
  void ask(int moe_layer_idx, int expert_id) const {
    const auto* entry = reinterpret_cast<const char*>(&at(moe_layer_idx, expert_id));
    for (size_t i = 0; i < sizeof(ExpertInfo); i += 64) __builtin_prefetch(entry + i);
  }

  // Bytes of the largest record, padding included, rounded up to a page: the size of a slot.
  uint64_t slot_bytes() const;
  uint64_t total_bytes() const;  // all records as stored
  uint64_t table_bytes() const;  // heap of this object
  // "layers.3.experts.17": the key in the lock file.
  std::string lock_key(int moe_layer_idx, int expert_id) const;
  // "layer 3 expert 17 (model-00002-of-00003.safetensors @ 0x1a4000)"; every part's place when they lie in several files.
  std::string describe(int moe_layer_idx, int expert_id, const Checkpoint& checkpoint) const;

 private:
  std::vector<int> layer_ids_;
  int num_experts_;
  std::vector<ExpertInfo> experts_;
};

}  // namespace pointsman
