// SPDX-License-Identifier: Apache-2.0
//
// MemoryBudget: the ledger that makes `--memory` a contract. Whoever owns bytes charges them here first; a charge that does not
// fit is refused and nothing is allocated. What the ledger says and what the operating system says (RSS) must agree within a
// stated slack, and a test holds that.
//
// Thread-safe; charging and crediting take no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "pointsman/status.h"

namespace pointsman {

// What the bytes are for: the lines of the plan.
enum class MemoryClass : int {
  kWeights = 0,   // dense tensors held for the life of the engine
  kExpertSlots,   // places for experts
  kKvCache,
  kScratch,       // activations and per-step working memory
  kReadBuffers,   // staging for reads and hashing
  kTokenizer,     // vocabulary, merges, template
  kCatalogue,     // tensor and expert tables, digests
  kThreadStacks,
  kOutput,        // traces on their way out, the sampler
  kCount,
};
inline constexpr int kNumMemoryClasses = static_cast<int>(MemoryClass::kCount);
const char* memory_class_name(MemoryClass c);  // "weights", "expert slots", ...

class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_(limit_bytes) {}
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  // kBudgetExceeded names the class, the request, what is in use by class, and how many bytes are short.
  Status charge(MemoryClass c, uint64_t bytes);
  void credit(MemoryClass c, uint64_t bytes);

  uint64_t limit_bytes() const { return limit_; }
  uint64_t used_bytes() const { return used_.load(std::memory_order_relaxed); }
  uint64_t peak_bytes() const { return peak_.load(std::memory_order_relaxed); }
  uint64_t used_bytes(MemoryClass c) const { return by_class_[static_cast<size_t>(c)].load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
  std::atomic<uint64_t> peak_{0};
  std::array<std::atomic<uint64_t>, kNumMemoryClasses> by_class_{};
};

// A charge that is credited back when it goes out of scope: for memory that somebody else allocates (containers, thread stacks).
class Charge {
 public:
  Charge() = default;
  static Result<Charge> make(MemoryBudget& budget, MemoryClass c, uint64_t bytes);
  ~Charge() { reset(); }
  Charge(Charge&& o) noexcept : budget_(std::exchange(o.budget_, nullptr)), class_(o.class_), bytes_(o.bytes_) {}
  Charge& operator=(Charge&& o) noexcept {
    if (this != &o) {
      reset();
      budget_ = std::exchange(o.budget_, nullptr);
      class_ = o.class_;
      bytes_ = o.bytes_;
    }
    return *this;
  }
  void reset() {
    if (budget_ != nullptr) std::exchange(budget_, nullptr)->credit(class_, bytes_);
  }
  uint64_t bytes() const { return budget_ != nullptr ? bytes_ : 0; }

 private:
  MemoryBudget* budget_ = nullptr;
  MemoryClass class_ = MemoryClass::kScratch;
  uint64_t bytes_ = 0;
};

// Parses "12GiB", "700MiB", "64KiB", "1.5GiB" or plain bytes. Decimal units (GB, MB, KB) are powers of ten.
Result<uint64_t> parse_bytes(const std::string& text);

}  // namespace pointsman
