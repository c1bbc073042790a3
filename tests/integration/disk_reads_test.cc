// SPDX-License-Identifier: Apache-2.0
//
// What is read from the disk, counted at the file door rather than believed: every dense weight once, at load; afterwards the bytes of
// the experts that were missed and nothing else.
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <random>

#include "experts/policy.h"
#include "pointsman/session.h"
#include "support/memory_model.h"

namespace pointsman {
namespace {

using testing::MemoryModel;

// Bytes that reads took from each range of a model.
class DoorCounter {
 public:
  explicit DoorCounter(MemoryModel& model) : ranges_(model.ranges()), bytes_(ranges_.size()) {
    model.fs.set_hook([this](const testing::ReadCall& c) -> std::optional<Result<size_t>> {
      std::lock_guard lock(mutex_);
      for (size_t i = 0; i < ranges_.size(); ++i) {
        const MemoryModel::Range& r = ranges_[i];
        if (r.file != c.path) continue;
        const uint64_t begin = std::max(r.offset, c.offset), end = std::min(r.offset + r.size_bytes, c.offset + c.out.size());
        if (begin < end) bytes_[i] += end - begin;
      }
      total_ += c.out.size();
      return std::nullopt;
    });
  }
  void reset() {
    std::lock_guard lock(mutex_);
    std::fill(bytes_.begin(), bytes_.end(), 0);
    total_ = 0;
  }
  // How often the dense weight that was read most was read; by bytes.
  double most_dense_reads() const {
    double most = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (!ranges_[i].tensor.empty()) most = std::max(most, static_cast<double>(bytes_[i]) / static_cast<double>(ranges_[i].size_bytes));
    }
    return most;
  }
  double least_dense_reads() const {
    double least = 1e9;
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (!ranges_[i].tensor.empty()) least = std::min(least, static_cast<double>(bytes_[i]) / static_cast<double>(ranges_[i].size_bytes));
    }
    return least;
  }
  uint64_t expert_bytes() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < ranges_.size(); ++i) sum += ranges_[i].expert >= 0 ? bytes_[i] : 0;
    return sum;
  }
  uint64_t total_bytes() const { return total_; }

 private:
  const std::vector<MemoryModel::Range> ranges_;
  std::mutex mutex_;
  std::vector<uint64_t> bytes_;
  uint64_t total_ = 0;
};

TEST(DiskReads, AreTheMissedExpertsAndNoDenseWeightTwice) {
  for (const bool locked : {false, true}) {
    for (const std::string_view policy : policy_names()) {
      SCOPED_TRACE(std::string(policy) + (locked ? ", locked" : ""));
      MemoryModel model(testing::small_model_folder());
      if (locked) model.add_lock();
      EngineOptions options = testing::memory_model_options();
      options.policy = policy;
      options.num_readers = 4;
      options.max_sessions = 4;
      options.context_length = 128;
      const uint64_t smallest = model.smallest_budget(options);
      options.memory_bytes = uint64_t{1} << 30;
      auto roomy = model.load(options);
      ASSERT_TRUE(roomy.ok()) << roomy.status().to_string();
      options.memory_bytes = smallest + ((*roomy)->memory_plan().full_residency_bytes - smallest) / 4;
      roomy->reset();

      DoorCounter door(model);
      auto engine = model.load(options);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
      ASSERT_LT((*engine)->memory_plan().num_slots, (*engine)->memory_plan().num_experts_total / 2);
      EXPECT_EQ(door.most_dense_reads(), 1);
      EXPECT_EQ(door.least_dense_reads(), 1);
      EXPECT_EQ(door.expert_bytes(), 0u);

      // A prompt, tokens one by one, and steps of four sessions.
      std::vector<std::unique_ptr<Session>> sessions;
      std::vector<BatchStep> step;
      std::mt19937 random(7);
      for (int s = 0; s < 4; ++s) {
        auto session = (*engine)->new_session();
        ASSERT_TRUE(session.ok()) << session.status().to_string();
        sessions.push_back(std::move(*session));
      }
      const auto token = [&] { return static_cast<int32_t>(random() % 90); };
      const auto measure = [&](int64_t tokens, auto run) {
        (*engine)->reset_stats();
        door.reset();
        run();
        const EngineStats s = (*engine)->stats();
        ASSERT_GT(s.experts.misses, 0u);
        const double miss_rate = static_cast<double>(s.experts.misses) / static_cast<double>(s.experts.hits + s.experts.misses);
        const double asked_per_token = static_cast<double>(s.experts.hits + s.experts.misses) / static_cast<double>(tokens);
        const double expected = miss_rate * asked_per_token * static_cast<double>((*engine)->memory_plan().expert_bytes);
        EXPECT_NEAR(static_cast<double>(door.total_bytes()) / static_cast<double>(tokens), expected, 0.05 * expected);
        EXPECT_EQ(door.expert_bytes(), s.experts.bytes_read);
        EXPECT_EQ(door.most_dense_reads(), 0) << "dense weights are in memory";
      };
      for (auto& session : sessions) {
        measure(12, [&] {
          std::vector<int32_t> prompt(12);
          std::generate(prompt.begin(), prompt.end(), token);
          ASSERT_TRUE(session->prefill(prompt).ok());
        });
      }
      measure(40, [&] {
        for (int i = 0; i < 40; ++i) ASSERT_TRUE(sessions[0]->decode(token()).ok());
      });
      measure(4 * 20, [&] {
        for (int i = 0; i < 20; ++i) {
          step.clear();
          for (auto& session : sessions) step.push_back({session.get(), token()});
          ASSERT_TRUE((*engine)->decode_batch(step).ok());
        }
      });
    }
  }
}

}  // namespace
}  // namespace pointsman
