// SPDX-License-Identifier: Apache-2.0
#include "memory/budget.h"

#include <charconv>

#include "base/check.h"
#include "base/log.h"

namespace pointsman {

const char* memory_class_name(MemoryClass c) {
  switch (c) {
    case MemoryClass::kWeights: return "weights";
    case MemoryClass::kExpertSlots: return "expert slots";
    case MemoryClass::kKvCache: return "KV cache";
    case MemoryClass::kScratch: return "scratch";
    case MemoryClass::kReadBuffers: return "read buffers";
    case MemoryClass::kTokenizer: return "tokenizer";
    case MemoryClass::kCatalogue: return "catalogue";
    case MemoryClass::kThreadStacks: return "thread stacks";
    case MemoryClass::kOutput: return "output";
    case MemoryClass::kCount: break;
  }
  return "unknown";
}

Status MemoryBudget::charge(MemoryClass c, uint64_t bytes) {
  uint64_t used = used_.load(std::memory_order_relaxed);
  do {
    if (bytes > limit_ || used > limit_ - bytes) {
      std::string by_class;
      for (int i = 0; i < kNumMemoryClasses; ++i) {
        const auto k = static_cast<MemoryClass>(i);
        if (used_bytes(k) > 0) by_class += format(", {} {}", memory_class_name(k), used_bytes(k));
      }
      const uint64_t short_by = bytes - (limit_ > used ? limit_ - used : 0);
      return error(StatusCode::kBudgetExceeded, "{} needs {} bytes, {} short of the budget of {} ({} in use{})",
                   memory_class_name(c), bytes, short_by, limit_, used, by_class);
    }
  } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  by_class_[static_cast<size_t>(c)].fetch_add(bytes, std::memory_order_relaxed);
  uint64_t peak = peak_.load(std::memory_order_relaxed);
  while (used + bytes > peak && !peak_.compare_exchange_weak(peak, used + bytes, std::memory_order_relaxed)) {
  }
  return ok_status();
}

void MemoryBudget::credit(MemoryClass c, uint64_t bytes) {
  const uint64_t before = by_class_[static_cast<size_t>(c)].fetch_sub(bytes, std::memory_order_relaxed);
  PM_CHECK(before >= bytes, "credit of more than was charged to %s", memory_class_name(c));
  used_.fetch_sub(bytes, std::memory_order_relaxed);
}

Result<Charge> Charge::make(MemoryBudget& budget, MemoryClass c, uint64_t bytes) {
  PM_RETURN_IF_ERROR(budget.charge(c, bytes));
  Charge charge;
  charge.budget_ = &budget;
  charge.class_ = c;
  charge.bytes_ = bytes;
  return charge;
}

Result<uint64_t> parse_bytes(const std::string& text) {
  const auto bad = [&] {
    return error(StatusCode::kInvalidArgument, "'{}' is not a memory size: expected a positive number of bytes, or a number with KiB, MiB, GiB or TiB", text);
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (ec != std::errc() || !(number > 0)) return bad();
  const std::string_view unit(rest, static_cast<size_t>(end - rest));
  double scale = 1;
  if (unit == "KiB" || unit == "K") scale = 0x1p10;
  else if (unit == "MiB" || unit == "M") scale = 0x1p20;
  else if (unit == "GiB" || unit == "G") scale = 0x1p30;
  else if (unit == "TiB" || unit == "T") scale = 0x1p40;
  else if (unit == "KB") scale = 1e3;
  else if (unit == "MB") scale = 1e6;
  else if (unit == "GB") scale = 1e9;
  else if (unit == "TB") scale = 1e12;
  else if (!unit.empty() && unit != "B") return bad();
  const double bytes = number * scale;
  if (!(bytes < 0x1p62) || bytes < 1) return bad();
  return static_cast<uint64_t>(bytes);
}

}  // namespace pointsman
