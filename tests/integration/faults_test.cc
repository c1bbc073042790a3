// SPDX-License-Identifier: Apache-2.0
//
// Wrong bytes and failing reads, at every place where they can happen: the result is the right logits or an error that names
// the place, the session stays where it was, and the engine works again as soon as the disk does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "base/log.h"
#include "support/golden.h"
#include "support/memory_model.h"
#include "support/recorder.h"

namespace pointsman {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::MemoryModel;
using testing::ReadCall;

std::vector<int32_t> some_tokens(int64_t vocab, size_t n) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  return tokens;
}

// Prefill in two calls, then three decodes of fixed tokens: the logits of the last. On a failure the status, and the session is
// left where it was.
Result<std::vector<float>> run_session(Session& session, std::span<const int32_t> tokens) {
  std::vector<float> last;
  const auto step = [&](std::span<const int32_t> part) {
    const int64_t before = session.position();
    const auto logits = session.prefill(part);
    EXPECT_EQ(session.position(), before + (logits.ok() ? static_cast<int64_t>(part.size()) : 0));
    if (!logits.ok()) return logits.status();
    last.assign(logits->begin(), logits->end());
    return ok_status();
  };
  std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(session.position()));
  const size_t prompt = tokens.size() - 3;
  while (!rest.empty()) {
    const size_t at = tokens.size() - rest.size();
    const size_t n = at < 5 ? 5 - at : at < prompt ? prompt - at : 1;
    PM_RETURN_IF_ERROR(step(rest.first(n)));
    rest = rest.subspan(n);
  }
  return last;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// Clean run: what must come out, and which experts take part.
struct Reference {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
  std::set<std::pair<int, int>> routed;  // layer, expert
};

Reference reference_of(MemoryModel& model, size_t num_tokens) {
  Reference r;
  auto engine = model.load(testing::memory_model_options());
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  r.tokens = some_tokens((*engine)->config().vocab_size, num_tokens);
  auto session = (*engine)->new_session();
  testing::Recorder recorder;
  EXPECT_TRUE((*session)->trace(r.tokens, recorder).ok());
  for (const auto& [name, ids] : recorder.i32) {
    if (!name.ends_with(".router.ids")) continue;
    const int layer = std::stoi(name.substr(std::strlen("layers.")));
    for (const int32_t id : ids) r.routed.insert({layer, id});
  }
  EXPECT_TRUE((*session)->rewind(0).ok());
  auto logits = run_session(**session, r.tokens);
  EXPECT_TRUE(logits.ok()) << logits.status().to_string();
  r.logits = *logits;
  return r;
}

std::vector<MemoryModel::Range> touched_ranges(const MemoryModel& model, const Reference& r, bool with_dense) {
  std::vector<MemoryModel::Range> all = model.ranges();
  std::erase_if(all, [&](const MemoryModel::Range& x) {
    return x.expert < 0 ? !with_dense : r.routed.count({x.layer, x.expert}) == 0;
  });
  std::shuffle(all.begin(), all.end(), std::mt19937(11));
  return all;
}

TEST(Faults, AFlippedByteIsNamedAndTheEngineRecovers) {
  MemoryModel model(testing::small_model_folder());
  const Reference reference = reference_of(model, 45);
  model.add_lock();
  const auto ranges = touched_ranges(model, reference, true);
  std::mt19937 random(13);
  size_t dense = 0, experts = 0;
  for (const auto& range : ranges) {
    // Half of each.
    if ((range.expert < 0 ? dense : experts) >= 25) continue;
    ++(range.expert < 0 ? dense : experts);
    std::byte& byte = model.byte_at(range, random() % range.size_bytes);
    const auto mask = std::byte{1} << (random() % 8);
    SCOPED_TRACE(range.expert < 0 ? range.tensor : format("layer {} expert {}", range.layer, range.expert));
    byte ^= mask;
    auto engine = model.load(testing::memory_model_options());
    if (range.expert < 0) {
      ASSERT_FALSE(engine.ok());
      EXPECT_EQ(engine.status().code(), StatusCode::kCorrupt) << engine.status().to_string();
      EXPECT_THAT(engine.status().message(), AllOf(HasSubstr(range.tensor), HasSubstr("sha256")));
      byte ^= mask;
      engine = model.load(testing::memory_model_options());
    }
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    auto session = (*engine)->new_session();
    ASSERT_TRUE(session.ok()) << session.status().to_string();
    if (range.expert >= 0) {
      const auto logits = run_session(**session, reference.tokens);
      ASSERT_FALSE(logits.ok());
      EXPECT_EQ(logits.status().code(), StatusCode::kCorrupt) << logits.status().to_string();
      EXPECT_THAT(logits.status().message(),
                  AllOf(HasSubstr(format("layer {} expert {} ", range.layer, range.expert)), HasSubstr("sha256")));
      byte ^= mask;
    }
    const auto logits = run_session(**session, reference.tokens);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    EXPECT_TRUE(same_bits(*logits, reference.logits));
  }
  EXPECT_GE(dense + experts, std::min<size_t>(ranges.size(), 40));
}

TEST(Faults, AFileThatTheLockWouldCoverButDoesNotIsRefused) {
  MemoryModel model(testing::source_path("tests/golden/qwen3_moe_base"));
  model.add_lock();
  ASSERT_TRUE(model.load(testing::memory_model_options()).ok());
  for (const char* name : kLockedFiles) {
    const std::string path = join_path(testing::kMemoryModelDir, name);
    if (model.fs.contains(path)) continue;
    model.fs.put(path, std::vector<std::byte>(2, std::byte{'x'}));
    const auto refused = model.load(testing::memory_model_options());
    EXPECT_EQ(refused.status().code(), StatusCode::kCorrupt) << name;
    EXPECT_THAT(refused.status().message(), AllOf(HasSubstr(path), HasSubstr("pointsman.lock.json")));
    model.fs.remove(path);
  }
  EXPECT_TRUE(model.load(testing::memory_model_options()).ok());
}

TEST(Faults, ASelectionBiasThatIsNotFiniteIsRefusedByName) {
  MemoryModel model(testing::source_path("tests/golden/deepseek_v4_base"));
  ASSERT_TRUE(model.load(testing::memory_model_options()).ok());
  size_t found = 0;
  for (const auto& range : model.ranges()) {
    if (!range.tensor.ends_with("gate.bias")) continue;
    ++found;
    for (const float bad : {NAN, INFINITY}) {
      float kept;
      std::memcpy(&kept, &model.byte_at(range, 4), sizeof kept);
      std::memcpy(&model.byte_at(range, 4), &bad, sizeof bad);
      const auto refused = model.load(testing::memory_model_options());
      EXPECT_EQ(refused.status().code(), StatusCode::kCorrupt) << refused.status().to_string();
      EXPECT_THAT(refused.status().message(), AllOf(HasSubstr(range.tensor), HasSubstr("element 1 "), HasSubstr("finite")));
      std::memcpy(&model.byte_at(range, 4), &kept, sizeof kept);
    }
  }
  EXPECT_GT(found, 0u);
}

TEST(Faults, WithoutALockFileAByteThatChangesAfterItsFirstReadIsCaught) {
  MemoryModel model(testing::small_model_folder());
  const Reference reference = reference_of(model, 45);
  auto engine = model.load(testing::memory_model_options());
  ASSERT_TRUE(engine.ok()) << engine.status().to_string();
  auto session = (*engine)->new_session();
  ASSERT_TRUE(session.ok());
  ASSERT_TRUE(run_session(**session, reference.tokens).ok());
  const uint64_t ledger = (*engine)->stats().ledger_bytes;
  auto ranges = touched_ranges(model, reference, false);
  ranges.resize(std::min<size_t>(ranges.size(), 50));
  std::mt19937 random(17);
  for (const auto& range : ranges) {
    SCOPED_TRACE(format("layer {} expert {}", range.layer, range.expert));
    std::byte& byte = model.byte_at(range, random() % range.size_bytes);
    (*engine)->evict_experts();
    ASSERT_TRUE((*session)->rewind(0).ok());
    byte ^= std::byte{0x40};
    auto logits = run_session(**session, reference.tokens);
    byte ^= std::byte{0x40};
    ASSERT_FALSE(logits.ok());
    EXPECT_EQ(logits.status().code(), StatusCode::kCorrupt);
    EXPECT_THAT(logits.status().message(),
                AllOf(HasSubstr(format("layer {} expert {} ", range.layer, range.expert)), HasSubstr("xxh3")));
    // From where the session stopped.
    logits = run_session(**session, reference.tokens);
    ASSERT_TRUE(logits.ok()) << logits.status().to_string();
    EXPECT_TRUE(same_bits(*logits, reference.logits));
  }
  EXPECT_EQ((*engine)->stats().ledger_bytes, ledger);
  EXPECT_GT((*engine)->stats().experts.verified_xxh3, 0u);
}

enum class Fault { kEio, kOneByte, kHalf, kInterrupted, kEndOfFile };

class EveryRead : public ::testing::TestWithParam<Fault> {};

TEST_P(EveryRead, GivesTheSameLogitsOrANamedError) {
  const Fault fault = GetParam();
  const bool is_harmless = fault != Fault::kEio && fault != Fault::kEndOfFile;
  MemoryModel model(testing::source_path("tests/golden/qwen3_moe_base"));
  EngineOptions options = testing::memory_model_options();
  options.num_readers = 2;
  const Reference reference = reference_of(model, 20);
  model.add_lock();
  options.memory_bytes = model.smallest_budget(options);

  constexpr uint64_t kNever = UINT64_MAX;
  uint64_t n = kNever;
  bool fired = false;
  model.fs.set_hook([&](const ReadCall& call) -> std::optional<Result<size_t>> {
    if (call.call != n) return std::nullopt;
    fired = true;
    if (fault == Fault::kEio) return error(StatusCode::kIo, "{}: pread: Input/output error", call.path);
    if (fault == Fault::kInterrupted) return error(StatusCode::kUnavailable, "{}: pread: Interrupted system call", call.path);
    if (fault == Fault::kEndOfFile) return size_t{0};
    const size_t bytes = fault == Fault::kOneByte ? 1 : std::max<size_t>(call.out.size() / 2, 1);
    std::memcpy(call.out.data(), model.fs.node(call.path).bytes.data() + call.offset, std::min(bytes, call.out.size()));
    return std::min(bytes, call.out.size());
  });

  uint64_t ledger = 0;
  {
    auto engine = model.load(options);
    ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    ledger = (*engine)->stats().ledger_bytes;
  }
  uint64_t failed_loads = 0, failed_steps = 0;
  for (n = 0;; ++n) {
    SCOPED_TRACE(format("read {}", n));
    fired = false;
    model.fs.reset_reads();
    auto engine = model.load(options);
    const auto expect_named = [&](const Status& status) {
      EXPECT_TRUE(fired);
      EXPECT_FALSE(is_harmless) << status.to_string();
      EXPECT_EQ(status.code(), fault == Fault::kEio ? StatusCode::kIo : StatusCode::kCorrupt) << status.to_string();
      EXPECT_THAT(status.message(), AnyOf(HasSubstr(".safetensors"), HasSubstr(".json")));
    };
    if (!engine.ok()) {
      ++failed_loads;
      expect_named(engine.status());
      engine = model.load(options);
      ASSERT_TRUE(engine.ok()) << engine.status().to_string();
    }
    EXPECT_EQ((*engine)->stats().ledger_bytes, ledger);
    {
      auto session = (*engine)->new_session();
      ASSERT_TRUE(session.ok()) << session.status().to_string();
      auto logits = run_session(**session, reference.tokens);
      if (!logits.ok()) {
        ++failed_steps;
        expect_named(logits.status());
        EXPECT_THAT(logits.status().message(), AllOf(HasSubstr("layer "), HasSubstr("expert ")));
        logits = run_session(**session, reference.tokens);
      }
      ASSERT_TRUE(logits.ok()) << logits.status().to_string();
      EXPECT_TRUE(same_bits(*logits, reference.logits));
    }
    EXPECT_EQ((*engine)->stats().ledger_bytes, ledger);
    if (!fired) break;  // beyond the last read
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(n, 100u);
  EXPECT_EQ(failed_loads > 0, !is_harmless);
  EXPECT_EQ(failed_steps > 0, !is_harmless);
}

std::string fault_name(const ::testing::TestParamInfo<Fault>& info) {
  constexpr const char* kNames[] = {"Eio", "OneByte", "Half", "Interrupted", "EndOfFile"};
  return kNames[static_cast<int>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Faults, EveryRead,
                         ::testing::Values(Fault::kEio, Fault::kOneByte, Fault::kHalf, Fault::kInterrupted, Fault::kEndOfFile),
                         fault_name);

}  // namespace
}  // namespace pointsman
