// SPDX-License-Identifier: Apache-2.0
//
// PackPlan: what becomes of every tensor of a checkpoint, and where in which file it goes, before a byte of a weight is read. The same source
// and options give the same plan: that is how an interrupted run goes on.
//
// A file of the packed folder is a row of records, each from a multiple of 4096 bytes of the file for an expert and of 64 for anything else.
// An expert's record is what ExpertCatalogue says a slot holds: gate, up, down, then the scales of each, each at a multiple of 64. What lies
// between is declared as U8 tensors under kPaddingPrefix, so that the file has no holes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors_writer.h"
#include "model/binding.h"
#include "pack/options.h"

namespace pointsman {

inline constexpr uint64_t kRecordAlignment = 4096;

// Where bytes lie in the source.
struct SourceRange {
  uint32_t file_idx = 0;
  uint64_t offset = 0, size_bytes = 0;
};

// One matrix. `from` and `to` have shape, dtype, format and layout, and no data. `code` says that elements are made anew; without it, dtype
// and format are the same on both sides, or `to` is BF16.
struct MatrixJob {
  std::string name, scale_name;
  Weight from, to;
  SourceRange data, scales;
  std::optional<BlockCode> code;
  ScaleRule scale_rule = ScaleRule::kUp;
  uint64_t to_bytes = 0, to_scale_bytes = 0;
  uint64_t place = 0, scale_place = 0;  // from the first byte of the shard's data
  bool is_permutation() const { return !code && from.dtype == to.dtype; }
};

// One record: an expert, a dense matrix with its scales, or (without matrices) a tensor that is copied byte for byte.
struct PackRecord {
  std::string name;  // "layers.3.experts.17", or the tensor's name
  std::string unit;
  int moe_layer = -1, expert = -1;  // of an expert
  std::vector<MatrixJob> matrices;
  const TensorEntry* copied = nullptr;
  uint64_t place = 0;
  uint64_t source_bytes = 0;
  bool is_expert() const { return expert >= 0; }
};

struct ShardPlan {
  std::string file_name;
  size_t first_record = 0, num_records = 0;
  uint64_t data_bytes = 0;
  std::vector<SafetensorsWriter::Declaration> tensors;  // in the order of their places, padding included
};

struct PackPlan {
  ModelConfig config;
  std::unique_ptr<Checkpoint> source;
  Binding binding;  // of the source
  std::vector<PackRecord> records;
  std::vector<ShardPlan> shards;
  uint64_t source_bytes = 0, output_bytes = 0;
  // By unit kind ("experts", "attention", ...): the format, or several joined by "+".
  std::vector<std::pair<std::string, std::string>> formats;
  // A head that the source does not have: the embedding of a model whose weights are tied, coded for the kernels. --unpack leaves it out again.
  bool has_tied_head = false;
  // Identifies source files and everything above.
  std::string fingerprint() const;
};

// Opens and binds `model`. Errors as of opening a model; kInvalidArgument: a rule that matches nothing or asks for what cannot be
// ("embed_tokens=int8"), rows too short for a format.
Result<PackPlan> make_pack_plan(FileSystem& fs, const std::string& model, const PackOptions& options);

}  // namespace pointsman
