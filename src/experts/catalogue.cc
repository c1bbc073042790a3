// SPDX-License-Identifier: Apache-2.0
#include "experts/catalogue.h"

#include <algorithm>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"
#include "device/device.h"

namespace pointsman {
namespace {

constexpr const char* kPartNames[kMaxExpertParts] = {"gate", "up", "down", "gate scales", "up scales", "down scales"};

}  // namespace

void ExpertInfo::place_parts() {
  uint64_t offset = 0;
  for (ExpertPartInfo& part : parts) {
    part.slot_offset = static_cast<uint32_t>(offset);
    offset = align_up(offset + part.size_bytes, kExpertPartAlignment);
  }
}

Weight ExpertInfo::weight(ExpertPart part, std::byte* slot) const {
  const ExpertPartInfo& info = parts[static_cast<size_t>(part)];
  if (info.size_bytes == 0) return {};
  Weight w(Tensor::matrix(slot + info.slot_offset, info.dtype, info.rows, info.cols));
  w.layout = info.layout;
  if (w.layout == WeightLayout::kInOut) w.row_stride = info.rows;
  w.format = info.format;
  if (w.format) w.scales = slot + parts[static_cast<size_t>(part) + kNumWeightParts].slot_offset;
  return w;
}

uint64_t ExpertInfo::record_bytes() const {
  uint64_t end = 0;
  for (const ExpertPartInfo& part : parts) {
    if (part.size_bytes > 0) end = std::max(end, part.slot_offset + part.size_bytes);
  }
  return end;
}

ExpertCatalogue::ExpertCatalogue(std::vector<int> layer_ids, int num_experts)
    : layer_ids_(std::move(layer_ids)),
      num_experts_(num_experts),
      experts_(layer_ids_.size() * static_cast<size_t>(num_experts)) {
  PM_CHECK(num_experts >= 0);
}

const ExpertInfo& ExpertCatalogue::at(int moe_layer_idx, int expert_id) const {
  PM_CHECK(moe_layer_idx >= 0 && moe_layer_idx < num_layers() && expert_id >= 0 && expert_id < num_experts_);
  return experts_[static_cast<size_t>(moe_layer_idx) * static_cast<size_t>(num_experts_) + static_cast<size_t>(expert_id)];
}
ExpertInfo& ExpertCatalogue::at(int moe_layer_idx, int expert_id) {
  return const_cast<ExpertInfo&>(std::as_const(*this).at(moe_layer_idx, expert_id));
}

uint64_t ExpertCatalogue::slot_bytes() const {
  uint64_t largest = 0;
  for (const ExpertInfo& e : experts_) largest = std::max(largest, e.record_bytes());
  return align_up(largest, kPageBytes);
}

uint64_t ExpertCatalogue::total_bytes() const {
  uint64_t total = 0;
  for (const ExpertInfo& e : experts_) total += e.size_bytes();
  return total;
}

uint64_t ExpertCatalogue::table_bytes() const {
  return layer_ids_.capacity() * sizeof(int) + experts_.capacity() * sizeof(ExpertInfo);
}

std::string ExpertCatalogue::lock_key(int moe_layer_idx, int expert_id) const {
  return format("layers.{}.experts.{}", layer_id(moe_layer_idx), expert_id);
}

std::string ExpertCatalogue::describe(int moe_layer_idx, int expert_id, const Checkpoint& checkpoint) const {
  const ExpertInfo& e = at(moe_layer_idx, expert_id);
  const auto file_name = [&](uint32_t idx) {
    return idx < checkpoint.files().size() ? checkpoint.files()[idx].name : format("file {}", idx);
  };
  std::string text = format("layer {} expert {} (", layer_id(moe_layer_idx), expert_id);
  const ExpertPartInfo& first = e.parts[0];
  const bool one_file = std::all_of(e.parts.begin(), e.parts.end(),
                                    [&](const ExpertPartInfo& p) { return p.size_bytes == 0 || p.file_idx == first.file_idx; });
  if (one_file) {
    text += format("{} @ {:#x}", file_name(first.file_idx), first.offset);
  } else {
    for (int i = 0; i < kMaxExpertParts; ++i) {
      const auto& part = e.parts[static_cast<size_t>(i)];
      if (part.size_bytes == 0) continue;
      text += format("{}{} {} @ {:#x}", i > 0 ? ", " : "", kPartNames[i], file_name(part.file_idx), part.offset);
    }
  }
  return text + ")";
}

}  // namespace pointsman
