// SPDX-License-Identifier: Apache-2.0
#include "pack/plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/checked_math.h"
#include "base/hash.h"
#include "base/log.h"
#include "pack/config.h"

namespace pointsman {
namespace {

uint64_t element_bytes(const Weight& w) { return static_cast<uint64_t>(w.rows * w.cols * dtype_bits(w.dtype) / 8); }
uint64_t scale_bytes(const Weight& w) { return static_cast<uint64_t>(grid_bytes(w.format, w.rows, w.cols)); }

std::string scale_name_of(std::string stem) {
  if (stem.ends_with(".weight")) stem.resize(stem.size() - 7);
  return stem + ".weight_scale";
}

bool is_code_format(PackFormat f) { return f != PackFormat::kKeep && f != PackFormat::kBf16; }
BlockCode code_of(PackFormat f, int64_t cols) {
  switch (f) {
    // One block of 32 or fewer is both.
    case PackFormat::kInt8Wide: return cols > kCodeBlock ? BlockCode::kInt8Wide : BlockCode::kInt8;
    case PackFormat::kInt8: return BlockCode::kInt8;
    case PackFormat::kMxfp8: return BlockCode::kMxfp8;
    default: return BlockCode::kMxfp4;
  }
}

// Do numbers in rows that are so stay as they are?
bool is_kept(PackFormat format, const Weight& w) {
  return format == PackFormat::kKeep || (is_code_format(format) && w.dtype == code_dtype(code_of(format, w.cols)) && w.format == code_format(code_of(format, w.cols)));
}

// All that is said about units, once.
class Formats {
 public:
  Formats(const PackOptions& options, const PackedFormats& before) : options_(options), before_(before) {}

  PackFormat of(const std::string& unit) {
    auto [it, is_new] = of_unit_.try_emplace(unit);
    if (is_new) it->second = format_of_unit(options_, unit);
    return it->second;
  }
  // What pack coded earlier, when this matrix is so; "" otherwise.
  std::string_view coded_before(const std::string& unit, const Weight& from) const {
    for (const BlockCode code : kBlockCodes) {
      const std::string_view name = block_code_name(code);
      if (from.dtype == code_dtype(code) && from.format == code_format(code) && before_.of(unit).find(name) != std::string::npos) return name;
    }
    return "";
  }
  bool head_is_copy() const { return before_.tied_head; }
  void note_can_be_coded(const std::string& unit) { taken_.insert(unit); }
  bool is_unpacking() const { return options_.unpack; }
  void note_kept(const std::string& unit, const Weight& from) {
    const std::string_view before = coded_before(unit, from);
    stored_[unit].insert(before.empty() ? "keep" : std::string(before));
  }
  void note_stored(const std::string& unit, PackFormat format) { stored_[unit].insert(std::string(pack_format_name(format))); }

  // Every rule must have something to say.
  Status check_rules() const {
    for (const PackRule& rule : options_.rules) {
      const PackOptions only{.format = PackFormat::kKeep, .rules = {rule}};
      const PackOptions other{.format = PackFormat::kKeep, .rules = {{rule.pattern, PackFormat::kBf16}}};
      bool matched = false, applied = false;
      for (const auto& [unit, format] : of_unit_) {
        if (format_of_unit(other, unit) != PackFormat::kBf16) continue;
        matched = true;
        applied = applied || !is_code_format(rule.format) || format_of_unit(options_, unit) != rule.format || taken_.count(unit) > 0;
      }
      if (!matched) {
        std::set<std::string> kinds;
        for (const auto& [unit, format] : of_unit_) kinds.insert(unit.substr(unit.rfind('.') + 1));
        std::string known;
        for (const std::string& k : kinds) known += (known.empty() ? "" : ", ") + k;
        return error(StatusCode::kInvalidArgument, "rule {}={}: no unit is called so; this model has {} (of a layer: layers.0.{})", rule.pattern,
                     pack_format_name(rule.format), known, kinds.count("experts") > 0 ? "experts" : "attention");
      }
      if (!applied) {
        return error(StatusCode::kInvalidArgument, "rule {}={}: matrices of this unit are used row by row and cannot be coded; bf16 and keep are possible",
                     rule.pattern, pack_format_name(rule.format));
      }
    }
    return ok_status();
  }

  std::vector<std::pair<std::string, std::string>> table() const {
    // The commonest format of each kind stands for the kind, the others are named unit by unit.
    std::map<std::string, std::map<std::string, int>> counts;
    const auto joined = [](const std::set<std::string>& names) {
      std::string text;
      for (const std::string& n : names) text += (text.empty() ? "" : "+") + n;
      return text;
    };
    const auto kind_of = [](const std::string& unit) { return unit.substr(unit.rfind('.') + 1); };
    for (const auto& [unit, names] : stored_) ++counts[kind_of(unit)][joined(names)];
    std::map<std::string, std::string> common;
    for (const auto& [kind, of_kind] : counts) {
      common[kind] = std::max_element(of_kind.begin(), of_kind.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->first;
    }
    std::vector<std::pair<std::string, std::string>> out(common.begin(), common.end());
    for (const auto& [unit, names] : stored_) {
      if (common[kind_of(unit)] != joined(names)) out.emplace_back(unit, joined(names));
    }
    return out;
  }

 private:
  const PackOptions& options_;
  const PackedFormats& before_;
  std::map<std::string, PackFormat> of_unit_;
  std::set<std::string> taken_;  // units with matrices that can be coded
  std::map<std::string, std::set<std::string>> stored_;
};

// `from` in `format`, as far as it can be: matrices that are used row by row are never coded. Layout is set later.
Status choose_target(MatrixJob& job, PackFormat format, bool can_be_coded, Formats& formats, const std::string& unit) {
  job.to = job.from;
  job.to.layout = WeightLayout::kOutIn;
  job.to.row_stride = job.to.cols;
  job.to.format.transposed = false;
  if (can_be_coded) formats.note_can_be_coded(unit);
  if (formats.is_unpacking()) format = formats.coded_before(unit, job.from).empty() ? PackFormat::kKeep : PackFormat::kBf16;
  if (is_kept(format, job.to)) {
    formats.note_kept(unit, job.from);
    return ok_status();
  }
  if (is_code_format(format)) {
    if (!can_be_coded) {
      formats.note_kept(unit, job.from);
      return ok_status();
    }
    if (format == PackFormat::kMxfp4 && job.from.cols % 2 != 0) {
      return error(StatusCode::kInvalidArgument, "{}: rows of {} elements, an odd number, cannot be mxfp4; give its unit another format: --rule '{}=int8'",
                   job.name, job.from.cols, unit);
    }
    job.code = code_of(format, job.from.cols);
    job.to.dtype = code_dtype(*job.code);
    job.to.format = code_format(*job.code);
  } else {
    if (!can_be_coded && is_coded(job.from.dtype)) {  // as they are used
      formats.note_kept(unit, job.from);
      return ok_status();
    }
    job.to.dtype = DType::kBF16;
    job.to.format = {};
  }
  formats.note_stored(unit, format);
  return ok_status();
}

class Planner {
 public:
  Planner(const PackOptions& options, PackPlan& plan, const PackedFormats& before) : options_(options), plan_(plan), formats_(options, before) {
    target_.method = options.unpack ? "" : std::string(kPackedMethod);
    target_.panels = options.panels && !options.unpack;
    target_.wide_panels = true;
  }

  Status run() {
    for (const TensorEntry& entry : plan_.source->tensors()) {
      if (entry.size_bytes > 0) entry_at_[{entry.file_idx, entry.offset}] = &entry;
    }
    for (const DenseBinding& b : plan_.binding.dense) PM_RETURN_IF_ERROR(add_dense(b));
    PM_RETURN_IF_ERROR(add_tied_head());
    add_unbound();
    const ExpertCatalogue* experts = plan_.binding.experts.get();
    for (int l = 0; experts != nullptr && l < experts->num_layers(); ++l) {
      for (int e = 0; e < experts->num_experts(); ++e) PM_RETURN_IF_ERROR(add_expert(*experts, l, e));
    }
    PM_RETURN_IF_ERROR(formats_.check_rules());
    plan_.formats = formats_.table();
    place_records();
    return ok_status();
  }

 private:
  void set_sizes(MatrixJob& job) {
    job.scale_rule = options_.scale_rule;
    job.to_bytes = element_bytes(job.to);
    job.to_scale_bytes = scale_bytes(job.to);
    if (job.to_scale_bytes == 0) job.scale_name.clear();
  }

  Status add_dense(const DenseBinding& b) {
    covered_.insert(b.entry);
    if (b.scales != nullptr) return ok_status();  // comes with its matrix
    PackRecord record{.name = std::string(b.entry->name), .unit = b.unit};
    const PackFormat format = formats_.of(b.unit);
    if (formats_.head_is_copy() && b.matrix == &plan_.binding.weights->lm_head) {
      // Another format is made from the embedding, whose numbers were not rounded before.
      if (formats_.is_unpacking() || !is_kept(format, *b.weight)) return ok_status();
      plan_.has_tied_head = true;
    }
    if (b.matrix == nullptr) {
      record.copied = b.entry;
      record.source_bytes = b.entry->size_bytes;
      plan_.records.push_back(std::move(record));
      return ok_status();
    }
    MatrixJob job{.name = record.name, .scale_name = scale_name_of(record.name)};
    job.data = {b.entry->file_idx, b.entry->offset, b.entry->size_bytes};
    job.from = b.weight != nullptr ? *b.weight : Weight(*b.matrix);
    // Where its scales are; behind the Tensor of matrix_in_rows() there is a Weight, too.
    for (const DenseBinding& s : plan_.binding.dense) {
      if (s.scales == nullptr || static_cast<const Tensor*>(s.coded) != b.matrix) continue;
      job.from = *s.coded;
      job.scales = {s.entry->file_idx, s.entry->offset, s.entry->size_bytes};
      source_scale_name_ = std::string(s.entry->name);
      break;
    }
    PM_RETURN_IF_ERROR(choose_target(job, format, b.weight != nullptr, formats_, b.unit));
    if (!job.code && job.scales.size_bytes > 0) job.scale_name = source_scale_name_;
    if (b.weight != nullptr) job.to.layout = b.layout_in(target_, job.to);
    set_sizes(job);
    record.source_bytes = job.data.size_bytes + job.scales.size_bytes;
    record.matrices.push_back(std::move(job));
    plan_.records.push_back(std::move(record));
    return ok_status();
  }

  // Tied weights: decoding reads the whole head for every token and one row of the embedding. A head in codes is read in half the time; it
  // takes its own bytes, and the embedding stays as it is for looking up.
  Status add_tied_head() {
    const Binding& binding = plan_.binding;
    if (!plan_.config.tie_word_embeddings || plan_.has_tied_head) return ok_status();
    for (const DenseBinding& b : binding.dense) {
      if (b.matrix != &binding.weights->embed_tokens) continue;
      const bool serves_both = binding.is_head(b);
      if (!serves_both && !formats_.head_is_copy()) return ok_status();  // the source has a head of its own
      const PackFormat format = formats_.of("lm_head");
      if (formats_.is_unpacking() || !is_code_format(format)) return ok_status();
      MatrixJob job{.name = "lm_head.weight", .scale_name = scale_name_of("lm_head.weight")};
      job.data = {b.entry->file_idx, b.entry->offset, b.entry->size_bytes};
      job.from = *b.matrix;
      PM_RETURN_IF_ERROR(choose_target(job, format, true, formats_, "lm_head"));
      job.to.layout = packed_layout(target_, {&job.to, 1});
      set_sizes(job);
      PackRecord record{.name = job.name, .unit = "lm_head"};
      record.source_bytes = job.data.size_bytes;
      record.matrices.push_back(std::move(job));
      plan_.records.push_back(std::move(record));
      plan_.has_tied_head = true;
      return ok_status();
    }
    return ok_status();
  }

  // What the model does not use, such as layers of multi-token prediction, comes along as it is.
  void add_unbound() {
    std::set<std::pair<uint32_t, uint64_t>> of_experts;
    const ExpertCatalogue* experts = plan_.binding.experts.get();
    for (int l = 0; experts != nullptr && l < experts->num_layers(); ++l) {
      for (int e = 0; e < experts->num_experts(); ++e) {
        for (const ExpertPartInfo& part : experts->at(l, e).parts) {
          if (part.size_bytes > 0) of_experts.insert({part.file_idx, entry_of(part)->offset});
        }
      }
    }
    const bool packed = plan_.config.quantization.is_packed();
    for (const TensorEntry& entry : plan_.source->tensors()) {
      if (covered_.count(&entry) > 0 || (entry.size_bytes > 0 && of_experts.count({entry.file_idx, entry.offset}) > 0)) continue;
      if (packed && entry.name.starts_with(kPaddingPrefix)) continue;
      plan_.records.push_back({.name = std::string(entry.name), .unit = "unused", .copied = &entry, .source_bytes = entry.size_bytes});
    }
  }

  const TensorEntry* entry_of(const ExpertPartInfo& part) const {
    return std::prev(entry_at_.upper_bound({part.file_idx, part.offset}))->second;
  }

  Status add_expert(const ExpertCatalogue& experts, int l, int e) {
    constexpr const char* kNames[] = {"gate_proj", "up_proj", "down_proj"};
    const ExpertInfo& info = experts.at(l, e);
    PackRecord record{.name = experts.lock_key(l, e), .unit = format("layers.{}.experts", experts.layer_id(l)), .moe_layer = l, .expert = e};
    const PackFormat pack_format = formats_.of(record.unit);
    const bool interleaved = info.parts[static_cast<size_t>(ExpertPart::kUp)].size_bytes == 0;
    for (int p = 0; p < kNumWeightParts; ++p) {
      const ExpertPartInfo& part = info.parts[static_cast<size_t>(p)];
      if (part.size_bytes == 0) continue;
      const ExpertPartInfo& scales = info.parts[static_cast<size_t>(p + kNumWeightParts)];
      const TensorEntry* entry = entry_of(part);
      const bool own = entry->num_dims == 2;
      MatrixJob job;
      job.from = info.weight(static_cast<ExpertPart>(p), nullptr);
      job.from.data = nullptr;
      job.from.scales = nullptr;
      const std::string prefix(entry->name.substr(0, entry->name.rfind('.')));
      job.name = own ? std::string(entry->name) : format("{}.{}.{}.weight", prefix, e, interleaved && p == 0 ? "gate_up_proj" : kNames[p]);
      job.scale_name = scale_name_of(job.name);
      job.data = {part.file_idx, part.offset, part.size_bytes};
      job.scales = {scales.file_idx, scales.offset, scales.size_bytes};
      PM_RETURN_IF_ERROR(choose_target(job, pack_format, true, formats_, record.unit));
      if (own && !job.code && scales.size_bytes > 0) job.scale_name = std::string(entry_of(scales)->name);
      record.source_bytes += part.size_bytes + scales.size_bytes;
      record.matrices.push_back(std::move(job));
    }
    std::vector<Weight> together;
    for (const MatrixJob& job : record.matrices) together.push_back(job.to);
    const WeightLayout layout = packed_layout(target_, together, interleaved);
    for (MatrixJob& job : record.matrices) {
      job.to.layout = layout;
      set_sizes(job);
    }
    plan_.records.push_back(std::move(record));
    return ok_status();
  }

  // --- places ---

  void declare(ShardPlan& shard, std::string name, DType dtype, std::vector<int64_t> shape, uint64_t bytes) {
    shard.tensors.push_back({std::move(name), dtype, std::move(shape)});
    shard.data_bytes += bytes;
  }
  void pad(ShardPlan& shard, uint64_t alignment) {
    if (options_.unpack) return;  // other programs would ask what the padding is
    const uint64_t gap = align_up(shard.data_bytes, alignment) - shard.data_bytes;
    if (gap > 0) declare(shard, format("{}{}", kPaddingPrefix, num_pads_++), DType::kU8, {static_cast<int64_t>(gap)}, gap);
  }
  static uint64_t record_bytes(const PackRecord& r) {
    uint64_t bytes = r.copied != nullptr ? r.copied->size_bytes : 0;
    for (const MatrixJob& j : r.matrices) bytes += align_up(j.to_bytes, kExpertPartAlignment) + align_up(j.to_scale_bytes, kExpertPartAlignment);
    return bytes;
  }

  void place_records() {
    for (size_t i = 0; i < plan_.records.size(); ++i) {
      PackRecord& r = plan_.records[i];
      if (plan_.shards.empty() || (plan_.shards.back().num_records > 0 && plan_.shards.back().data_bytes + record_bytes(r) > options_.shard_bytes)) {
        if (!plan_.shards.empty()) pad(plan_.shards.back(), kRecordAlignment);
        plan_.shards.push_back({.first_record = i});
      }
      ShardPlan& shard = plan_.shards.back();
      ++shard.num_records;
      pad(shard, r.is_expert() ? kRecordAlignment : kExpertPartAlignment);
      r.place = shard.data_bytes;
      plan_.source_bytes += r.source_bytes;
      if (r.copied != nullptr) {
        const TensorEntry& t = *r.copied;
        declare(shard, r.name, t.dtype, {t.shape, t.shape + t.num_dims}, t.size_bytes);
        continue;
      }
      for (MatrixJob& j : r.matrices) {
        pad(shard, kExpertPartAlignment);
        j.place = shard.data_bytes;
        const bool turned = j.to.layout == WeightLayout::kInOut;
        declare(shard, j.name, j.to.dtype, {turned ? j.to.cols : j.to.rows, turned ? j.to.rows : j.to.cols}, j.to_bytes);
      }
      for (MatrixJob& j : r.matrices) {
        if (j.to_scale_bytes == 0) continue;
        pad(shard, kExpertPartAlignment);
        j.scale_place = shard.data_bytes;
        declare(shard, j.scale_name, j.to.format.scale_dtype, {j.to.format.grid_rows(j.to.rows), j.to.format.grid_cols(j.to.cols)}, j.to_scale_bytes);
      }
    }
    if (!plan_.shards.empty()) pad(plan_.shards.back(), kRecordAlignment);
    const size_t n = plan_.shards.size();
    for (size_t i = 0; i < n; ++i) {
      char number[64];
      std::snprintf(number, sizeof number, "model-%05zu-of-%05zu.safetensors", i + 1, n);
      plan_.shards[i].file_name = n == 1 ? "model.safetensors" : number;
      plan_.output_bytes += plan_.shards[i].data_bytes;
    }
  }

  const PackOptions& options_;
  PackPlan& plan_;
  Formats formats_;
  QuantizationConfig target_;
  std::map<std::pair<uint32_t, uint64_t>, const TensorEntry*> entry_at_;
  std::set<const TensorEntry*> covered_;
  std::string source_scale_name_;
  uint64_t num_pads_ = 0;
};

}  // namespace

std::string PackPlan::fingerprint() const {
  Sha256 hash;
  const auto add = [&](const std::string& text) { hash.update(std::as_bytes(std::span(text))); };
  for (const CheckpointFile& f : source->files()) add(format("{} {} {}\n", f.name, f.info.size_bytes, f.info.mtime_ns));
  for (const ShardPlan& s : shards) {
    add(s.file_name + "\n");
    for (const SafetensorsWriter::Declaration& t : s.tensors) {
      add(format("{} {}", t.name, dtype_name(t.dtype)));
      for (const int64_t d : t.shape) add(format(" {}", d));
      add("\n");
    }
  }
  for (const PackRecord& r : records) {
    for (const MatrixJob& j : r.matrices) add(format("{} {} {} {}\n", j.name, static_cast<int>(j.to.layout), j.code ? static_cast<int>(*j.code) : -1, static_cast<int>(j.scale_rule)));
  }
  return to_hex(hash.finish());
}

Result<PackPlan> make_pack_plan(FileSystem& fs, const std::string& model, const PackOptions& options) {
  PackPlan plan;
  PM_ASSIGN_OR_RETURN(plan.config, read_model_config(fs, model));
  PM_ASSIGN_OR_RETURN(plan.source, Checkpoint::open(fs, model));
  PM_ASSIGN_OR_RETURN(plan.binding, bind_model(*plan.source, plan.config));
  PM_ASSIGN_OR_RETURN(const PackedFormats before, read_packed_formats(fs, model));
  if (options.unpack && !plan.config.quantization.is_packed()) {
    return error(StatusCode::kInvalidArgument, "{}: was not made by pack (quantization_config.quant_method of its config.json is not \"{}\"); there is nothing to unpack",
                 model, kPackedMethod);
  }
  const auto is_own_head = [&](const DenseBinding& b) { return b.matrix == &plan.binding.weights->lm_head && b.weight != nullptr && !plan.binding.is_embedding(b); };
  if (before.tied_head && (!plan.config.tie_word_embeddings || std::none_of(plan.binding.dense.begin(), plan.binding.dense.end(), is_own_head))) {
    return error(StatusCode::kCorrupt, "{}: quantization_config.tied_head of its config.json is true, but the model has no embedding that is tied and a head beside it",
                 model);
  }
  Planner planner(options, plan, before);
  PM_RETURN_IF_ERROR(planner.run());
  return plan;
}

}  // namespace pointsman
