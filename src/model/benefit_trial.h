// SPDX-License-Identifier: Apache-2.0
//
// Is something worth doing on this machine, with this model, now? Measured: passes with it and passes without it take turns, and whichever
// has the lower median time goes on; without, unless the gain is two per cent. A trial is 64 passes in blocks of four; a result holds for 512 passes, and for twice as many every time
// that "without" wins again, up to 8192. No clock, no allocation.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace pointsman {

class BenefitTrial {
 public:
  static constexpr size_t kBlock = 4, kPasses = 64, kHold = 512, kLongestHold = 8192;

  // Whether the next pass does it.
  bool on() const { return is_trial_ ? step_ / kBlock % 2 == 0 : with_wins_; }
  // The time that the pass took.
  void record(uint64_t ns) {
    if (!is_trial_) {
      if (++step_ == hold_) restart();
      return;
    }
    (on() ? with_ : without_)[counts_[on()]] = ns;
    ++counts_[on()];
    if (++step_ == kPasses) decide();
  }
  // Passes became another kind of work: times of before compare no longer. What was decided stays until the next trial.
  void restart() {
    is_trial_ = true;
    step_ = 0;
    counts_ = {0, 0};
  }

  uint64_t num_trials() const { return num_trials_; }
  uint64_t num_lost() const { return num_lost_; }
  // Medians of the last trial that ended, 0 before.
  uint64_t with_ns() const { return with_ns_; }
  uint64_t without_ns() const { return without_ns_; }

 private:
  using Times = std::array<uint64_t, kPasses / 2>;
  static uint64_t median(Times& t) {
    std::nth_element(t.begin(), t.begin() + t.size() / 2, t.end());
    return t[t.size() / 2];
  }
  void decide() {
    with_ns_ = median(with_);
    without_ns_ = median(without_);
    with_wins_ = with_ns_ < without_ns_ - without_ns_ / 50;
    ++num_trials_;
    num_lost_ += with_wins_ ? 0 : 1;
    hold_ = with_wins_ ? kHold : std::min(kLongestHold, hold_lost_);
    hold_lost_ = with_wins_ ? kHold : std::min(kLongestHold, 2 * hold_lost_);
    is_trial_ = false;
    step_ = 0;
  }

  bool is_trial_ = true, with_wins_ = false;
  size_t step_ = 0;
  size_t hold_ = kHold, hold_lost_ = kHold;
  std::array<size_t, 2> counts_ = {0, 0};  // without, with
  Times with_{}, without_{};
  uint64_t num_trials_ = 0, num_lost_ = 0, with_ns_ = 0, without_ns_ = 0;
};

}  // namespace pointsman
