// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_sessions.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "base/philox.h"
#include "checkpoint/model_config.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/quantiles.h"
#include "ops/sequences.h"
#include "pointsman/session.h"

namespace pointsman::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point t) { return std::chrono::duration<double>(Clock::now() - t).count(); }

// Of all rounds of one size.
struct Counters {
  uint64_t hits = 0, misses = 0, bytes_read = 0;
  int64_t steps = 0;
};

class Bench {
 public:
  Bench(const SessionsBench& bench, Engine& engine) : b_(bench), engine_(engine), vocab_(num_token_ids(engine)) {}

  Status prepare() {
    const int64_t most = *std::max_element(b_.sizes.begin(), b_.sizes.end());
    for (int64_t i = 0; i < most; ++i) {
      PM_ASSIGN_OR_RETURN(std::unique_ptr<Session> s, engine_.new_session());
      prompt_ = std::min(b_.prompt, s->context_length() - 2);
      if (prompt_ < 1) return error(StatusCode::kInvalidArgument, "a context of {}: expected room for a prompt and two tokens", s->context_length());
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < prompt_; ++t) ids.push_back(token(i, t));
      PM_RETURN_IF_ERROR(s->prefill(ids).status());
      sessions_.push_back(std::move(s));
    }
    steps_ = std::min(b_.tokens, sessions_[0]->context_length() - prompt_ - 1);
    return ok_status();
  }

  Status round(int64_t repetition, SessionsRow* row, Counters* counters) {
    const size_t n = static_cast<size_t>(row->sessions);
    std::vector<BatchStep> step(n);
    const auto feed = [&](int64_t at) {
      for (size_t i = 0; i < n; ++i) step[i] = {sessions_[i].get(), token(static_cast<int64_t>(i), prompt_ + repetition * (steps_ + 1) + at)};
    };
    for (size_t i = 0; i < n; ++i) PM_RETURN_IF_ERROR(sessions_[i]->rewind(prompt_));
    // Not measured: a model that keeps only a window of its past computes the end of the prompt again.
    feed(0);
    PM_RETURN_IF_ERROR(engine_.decode_batch(step).status());
    engine_.reset_stats();
    const auto start = Clock::now();
    for (int64_t s = 1; s <= steps_; ++s) {
      if (was_interrupted()) return {StatusCode::kUnavailable, "interrupted"};
      feed(s);
      const auto before = Clock::now();
      PM_RETURN_IF_ERROR(engine_.decode_batch(step).status());
      if (counters != nullptr) row->step_ms.push_back(1e3 * seconds_since(before));
    }
    if (counters == nullptr) return ok_status();
    row->tokens_per_s.push_back(static_cast<double>(row->sessions * steps_) / seconds_since(start));
    const EngineStats stats = engine_.stats();
    counters->hits += stats.experts.hits, counters->misses += stats.experts.misses;
    counters->bytes_read += stats.experts.bytes_read + stats.dense_on_demand.bytes_read;
    counters->steps += steps_;
    return ok_status();
  }

  void finish(const Counters& c, SessionsRow& row) const {
    const double asked = static_cast<double>(c.hits + c.misses), steps = static_cast<double>(c.steps), tokens = steps * static_cast<double>(row.sessions);
    row.bytes_read_per_token = static_cast<double>(c.bytes_read) / tokens;
    const MemoryPlan& plan = engine_.memory_plan();
    const double routed = static_cast<double>(engine_.stats().expert_layers.size()) * static_cast<double>(engine_.config().num_experts_per_tok);
    double bytes = static_cast<double>(plan.active_weight_bytes_per_token) - routed * static_cast<double>(plan.expert_bytes);
    if (asked > 0) {
      row.experts_per_step = asked / steps;
      row.expert_rows = tokens * routed / asked;
      row.hit_rate = static_cast<double>(c.hits) / asked;
      bytes += row.experts_per_step * static_cast<double>(plan.expert_bytes);
    }
    row.weight_gbps = 1e-6 * bytes / quantile(row.step_ms, 0.5);
  }

 private:
  // Tokens that nobody wrote: spread over the vocabulary, so that routing is too.
  int32_t token(int64_t session, int64_t position) const {
    const uint32_t r = random_u32(static_cast<uint64_t>(b_.seed), RandomPurpose::kTest, static_cast<uint32_t>(session), 0, static_cast<uint64_t>(position), 0);
    return static_cast<int32_t>((uint64_t{r} * static_cast<uint64_t>(vocab_)) >> 32);
  }

  const SessionsBench& b_;
  Engine& engine_;
  int64_t vocab_, prompt_ = 0, steps_ = 0;
  std::vector<std::unique_ptr<Session>> sessions_;
};

}  // namespace

Result<std::vector<int64_t>> parse_sessions(const std::string& text) {
  std::vector<int64_t> sizes;
  for (const char *p = text.data(), *end = p + text.size();;) {
    int64_t n = 0;
    const auto [rest, ec] = std::from_chars(p, end, n);
    if (ec != std::errc() || n < 1 || n > ops::kMaxSequences || (rest != end && *rest != ',')) {
      return error(StatusCode::kInvalidArgument, "--sessions '{}': expected numbers from 1 to {}, like 1,2,4; wrong at character {}", text, ops::kMaxSequences,
                   p - text.data() + 1);
    }
    sizes.push_back(n);
    if (rest == end) return sizes;
    p = rest + 1;
  }
}

Result<std::vector<SessionsRow>> measure_sessions(const SessionsBench& b, Engine& engine) {
  Bench bench(b, engine);
  PM_RETURN_IF_ERROR(bench.prepare());
  std::vector<SessionsRow> rows;
  for (const int64_t n : b.sizes) rows.push_back({.sessions = n});
  std::vector<Counters> counters(rows.size());
  // All sizes in every repetition: what disturbs the machine for a while disturbs all of them.
  for (int64_t repetition = 0; repetition <= b.repeat; ++repetition) {
    for (size_t i = 0; i < rows.size(); ++i) PM_RETURN_IF_ERROR(bench.round(repetition, &rows[i], repetition > 0 ? &counters[i] : nullptr));
  }
  for (size_t i = 0; i < rows.size(); ++i) bench.finish(counters[i], rows[i]);
  return rows;
}

void print_sessions(const std::vector<SessionsRow>& rows, double stream_gbps) {
  std::printf("| sessions | tokens/s (min to max) | x first | step p50, p95 ms | weights GB/s (of memory) | experts/step | rows each | hits | read/token |\n");
  std::printf("|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n");
  for (const SessionsRow& r : rows) {
    std::printf("| %lld | %.1f (%.1f to %.1f) | %.2f | %.2f, %.2f | %.1f (%.0f %%) | %.1f | %.2f | %.1f %% | %s |\n", static_cast<long long>(r.sessions),
                median(r.tokens_per_s), quantile(r.tokens_per_s, 0), quantile(r.tokens_per_s, 1), median(r.tokens_per_s) / median(rows[0].tokens_per_s),
                quantile(r.step_ms, 0.5), quantile(r.step_ms, 0.95), r.weight_gbps, stream_gbps > 0 ? 100 * r.weight_gbps / stream_gbps : 0, r.experts_per_step,
                r.expert_rows, 100 * r.hit_rate, human_bytes(r.bytes_read_per_token).c_str());
  }
}

Json sessions_json(const std::vector<SessionsRow>& rows) {
  Json list = Json::array();
  for (const SessionsRow& r : rows) {
    Json j = Json::object();
    j.set("sessions", r.sessions);
    Json rate = Json::object();
    rate.set("median", median(r.tokens_per_s));
    rate.set("min", quantile(r.tokens_per_s, 0));
    rate.set("max", quantile(r.tokens_per_s, 1));
    j.set("tokens_per_s", std::move(rate));
    Json ms = Json::object();
    ms.set("p50", quantile(r.step_ms, 0.5));
    ms.set("p95", quantile(r.step_ms, 0.95));
    ms.set("p99", quantile(r.step_ms, 0.99));
    j.set("step_ms", std::move(ms));
    j.set("experts_per_step", r.experts_per_step);
    j.set("rows_per_expert", r.expert_rows);
    j.set("hit_rate", r.hit_rate);
    j.set("bytes_read_per_token", r.bytes_read_per_token);
    j.set("weight_gbps", r.weight_gbps);
    list.push_back(std::move(j));
  }
  return list;
}

}  // namespace pointsman::cli
