// SPDX-License-Identifier: Apache-2.0
#include "experts/cache_simulator.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/log.h"
#include "experts/policy_parts.h"
#include "experts/residency.h"

namespace pointsman {
namespace {

// What the store is asked for, batch by batch.
struct Batches {
  std::vector<int32_t> layers;      // by batch
  std::vector<size_t> begins = {0};  // by batch, and the end
  std::vector<int32_t> experts;     // of all batches, ascending in each
  std::vector<int32_t> rows;        // by entry of `experts`: tokens that chose it
  std::vector<uint64_t> next_uses;  // by entry of `experts`: the next batch that asks for it, or kNever
  int64_t tokens = 0, steps = 0;

  static constexpr uint64_t kNever = UINT64_MAX;
};

Batches batches_of(const RoutingTrace& trace, const CacheSimulation& args) {
  Batches b;
  std::vector<int32_t> ids;
  const auto add_pass = [&](std::span<const int64_t> tokens) {
    b.tokens += static_cast<int64_t>(tokens.size());
    ++b.steps;
    for (int layer = 0; layer < trace.num_layers; ++layer) {
      ids.clear();
      for (const int64_t t : tokens) ids.insert(ids.end(), trace.experts(t, layer).begin(), trace.experts(t, layer).end());
      std::sort(ids.begin(), ids.end());
      for (size_t i = 0, next; i < ids.size(); i = next) {
        for (next = i; next < ids.size() && ids[next] == ids[i];) ++next;
        b.experts.push_back(ids[i]);
        b.rows.push_back(static_cast<int32_t>(next - i));
      }
      b.layers.push_back(layer);
      b.begins.push_back(b.experts.size());
    }
  };
  std::vector<int64_t> tokens;
  const auto add_stretch = [&](int64_t begin, int64_t end) {
    tokens.resize(static_cast<size_t>(end - begin));
    std::iota(tokens.begin(), tokens.end(), begin);
    add_pass(tokens);
  };
  if (args.sessions > 1) {
    const int64_t length = trace.num_tokens() / args.sessions, prompt = std::min(length, args.prompt_tokens);
    for (int64_t s = 0; s < args.sessions; ++s) {
      for (int64_t t = 0; t < prompt; t += args.chunk) add_stretch(s * length + t, s * length + std::min(prompt, t + args.chunk));
    }
    tokens.resize(static_cast<size_t>(args.sessions));
    for (int64_t t = prompt; t < length; ++t) {
      for (int64_t s = 0; s < args.sessions; ++s) tokens[static_cast<size_t>(s)] = s * length + t;
      add_pass(tokens);
    }
  }
  for (size_t run = 0; args.sessions == 1 && run < trace.run_starts.size(); ++run) {
    const int64_t begin = trace.run_starts[run];
    const int64_t end = run + 1 < trace.run_starts.size() ? trace.run_starts[run + 1] : trace.num_tokens();
    const int64_t prompt_end = std::min(end, begin + args.prompt_tokens);
    for (int64_t token = begin, next; token < end; token = next) {
      next = token < prompt_end ? std::min(prompt_end, token + args.chunk) : token + 1;
      add_stretch(token, next);
    }
  }
  b.next_uses.resize(b.experts.size());
  std::vector<uint64_t> next(static_cast<size_t>(trace.num_layers) * static_cast<size_t>(trace.num_experts), Batches::kNever);
  for (size_t batch = b.layers.size(); batch-- > 0;) {
    for (size_t i = b.begins[batch]; i < b.begins[batch + 1]; ++i) {
      uint64_t& n = next[static_cast<size_t>(b.layers[batch] * trace.num_experts + b.experts[i])];
      b.next_uses[i] = std::exchange(n, batch);
    }
  }
  return b;
}

// The simulator keeps `next_uses` [layers * experts] up to date.
class OptimalPolicy final : public ResidencyPolicy {
 public:
  OptimalPolicy(const PolicyArgs& args, const std::vector<uint64_t>& next_uses)
      : args_(args), next_uses_(next_uses), heap_(args.slots.size(), Less{this}) {}
  void inserted(int slot) override { heap_.push(slot); }
  void touched(int) override {}
  void used(int slot) override {
    heap_.remove(slot);
    heap_.push(slot);
  }
  void removed(int slot) override { heap_.remove(slot); }
  int victim(int) const override { return heap_.least_evictable(args_.slots); }
  uint64_t table_bytes() const override { return heap_.table_bytes(); }

 private:
  struct Less {
    const OptimalPolicy* policy;
    uint64_t next_use(int slot) const { return policy->next_uses_[policy->args_.expert_in(slot)]; }
    bool operator()(int a, int b) const { return next_use(a) > next_use(b); }
  };
  const PolicyArgs args_;
  const std::vector<uint64_t>& next_uses_;
  SlotHeap<Less> heap_;
};

}  // namespace

Result<CacheCounts> simulate_cache(const RoutingTrace& trace, const CacheSimulation& args) {
  PM_RETURN_IF_ERROR(trace.check());
  if (args.prompt_tokens < 0 || args.chunk < 1) return error(StatusCode::kInvalidArgument, "{} prompt tokens in passes of {}", args.prompt_tokens, args.chunk);
  if (args.sessions < 1 || args.sessions > std::max<int64_t>(1, trace.num_tokens())) {
    return error(StatusCode::kInvalidArgument, "{} sessions of a trace of {} tokens", args.sessions, trace.num_tokens());
  }
  const auto num_records = static_cast<size_t>(trace.num_layers) * static_cast<size_t>(trace.num_experts);
  if (!args.learned_uses.empty() && args.learned_uses.size() != num_records) {
    return error(StatusCode::kInvalidArgument, "learned uses of {} experts: the trace has {}", args.learned_uses.size(), num_records);
  }
  std::vector<uint64_t> next_uses(num_records, Batches::kNever);
  const auto maker = [&](const PolicyArgs& p) -> Result<std::unique_ptr<ResidencyPolicy>> {
    if (args.policy != kOptimalPolicy) return make_policy(args.policy, p);
    return std::unique_ptr<ResidencyPolicy>(std::make_unique<OptimalPolicy>(p, next_uses));
  };
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Residency> residency,
                      Residency::make_with(args.num_slots, trace.num_layers, trace.num_experts, maker, {}, args.learned_uses));
  Residency& r = *residency;
  CacheCounts counts;
  counts.layer_hits.resize(static_cast<size_t>(trace.num_layers));
  counts.layer_misses.resize(static_cast<size_t>(trace.num_layers));
  const Batches b = batches_of(trace, args);
  counts.tokens = b.tokens;
  counts.steps = b.steps;
  std::vector<int32_t> offsets(static_cast<size_t>(trace.num_experts) + 1);
  std::vector<int> pinned;  // slots of the batch in the order in which they become ready
  for (size_t batch = 0; batch < b.layers.size(); ++batch) {
    const int layer = b.layers[batch];
    const auto expert_at = [&](size_t i) { return b.experts[i]; };
    const auto foresee = [&](size_t i) { next_uses[static_cast<size_t>(layer * trace.num_experts + expert_at(i))] = b.next_uses[i]; };
    std::fill(offsets.begin(), offsets.end(), 0);
    for (size_t i = b.begins[batch]; i < b.begins[batch + 1]; ++i) offsets[static_cast<size_t>(expert_at(i)) + 1] = b.rows[i];
    std::partial_sum(offsets.begin(), offsets.end(), offsets.begin());
    r.begin(layer, std::span(b.experts).subspan(b.begins[batch], b.begins[batch + 1] - b.begins[batch]), offsets);
    pinned.clear();
    size_t released = 0;
    // As the store does: hits are pinned before the first miss may evict somebody.
    std::vector<size_t> misses;
    for (size_t i = b.begins[batch]; i < b.begins[batch + 1]; ++i) {
      const int slot = r.find(layer, expert_at(i));
      if (slot < 0) {
        misses.push_back(i);
        continue;
      }
      foresee(i);
      r.use(slot);
      pinned.push_back(slot);
    }
    counts.layer_hits[static_cast<size_t>(layer)] += pinned.size();
    counts.layer_misses[static_cast<size_t>(layer)] += misses.size();
    for (const size_t i : misses) {
      foresee(i);
      Residency::Reservation got = r.reserve(layer, expert_at(i));
      while (got.slot < 0) {  // the batch is larger than the cache: whoever was ready first has been computed
        PM_CHECK(released < pinned.size());
        r.unpin(pinned[released++], 0);
        got = r.reserve(layer, expert_at(i));
      }
      counts.evicted += got.evicted_layer >= 0 ? 1 : 0;
      r.loaded(got.slot);
      pinned.push_back(got.slot);
    }
    for (; released < pinned.size(); ++released) r.unpin(pinned[released], 0);
  }
  for (const uint64_t n : counts.layer_hits) counts.hits += n;
  for (const uint64_t n : counts.layer_misses) counts.misses += n;
  counts.uses.assign(r.uses().begin(), r.uses().end());
  return counts;
}

}  // namespace pointsman
