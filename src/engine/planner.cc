// SPDX-License-Identifier: Apache-2.0
#include "engine/planner.h"

#include <algorithm>
#include <map>

#include "base/checked_math.h"
#include "base/log.h"
#include "base/thread.h"
#include "model/forward.h"
#include "model/weight_loader.h"
#include "sample/sampler.h"

namespace pointsman {
namespace {

// Smallest pass worth planning for: below this prefill reads every expert once per few tokens.
constexpr int64_t kSmallestChunk = 16;
constexpr int64_t kLargestChunk = 512;
// Two: one expert computes while the next is read.
constexpr int64_t kSmallestSlots = 2;

uint64_t scratch_bytes(const ModelConfig& c, Numerics n, const PassShape& shape) {
  Arena device, host;
  Scratch::carve(device, c, n, shape);
  HostScratch::carve(host, c, shape);
  return align_up(device.used_bytes(), kPageBytes) + align_up(host.used_bytes(), kPageBytes);
}

ExpertStoreOptions store_options(const EngineOptions& o, int64_t slots) {
  return {.num_slots = slots, .num_readers = o.num_readers, .policy = o.policy, .direct = o.direct != DirectReads::kOff};
}

}  // namespace

PassShape pass_shape(const EngineOptions& options, int64_t chunk) {
  return {.chunk = std::max(chunk, options.max_sessions), .sequences = options.max_sessions, .positions = options.context_length};
}

uint64_t sampler_bytes(const ModelConfig& config) {
  return align_up(Sampler::memory_bytes({.do_sample = true}, config.vocab_size), kPageBytes);
}

uint64_t trace_bytes_per_token(const ModelConfig& c) {
  const int64_t head = std::max({c.head_dim, c.latent.nope + c.latent.rope, c.latent.v});
  const int64_t widest = std::max({c.hidden_size * std::max<int64_t>(1, c.hyper.streams), c.num_attention_heads * head, c.num_experts,
                                   c.num_experts_per_tok * c.hidden_size, c.vocab_size});
  // Activations of the experts chosen are gathered beside it.
  const int64_t gathered = c.num_experts_per_tok * c.moe_intermediate_size;
  return static_cast<uint64_t>(widest + gathered) * sizeof(float);
}

uint64_t output_bytes(const ModelConfig& config, int64_t sessions) {
  return std::max(static_cast<uint64_t>(sessions) * sampler_bytes(config), align_up(trace_bytes_per_token(config), kPageBytes));
}

uint64_t session_bytes(const ModelConfig& config, const EngineOptions& options) {
  const uint64_t history = config.compressed.layers.empty() ? 0 : static_cast<uint64_t>(options.context_length) * sizeof(int32_t);
  return align_up(KvCache::bytes(config, KvCache::dtype_for(options.numerics, options.kv_cache), options.context_length), kPageBytes) + align_up(history, kPageBytes);
}

Result<MemoryPlan> make_plan(const PlanRequest& r) {
  const ModelConfig& c = r.config;
  const EngineOptions& o = r.options;
  const ExpertCatalogue* experts = r.binding.experts.get();

  MemoryPlan plan;
  plan.budget_bytes = o.memory_bytes;
  plan.context_length = o.context_length;
  plan.num_threads = o.num_threads;
  plan.max_sessions = o.max_sessions;
  if (experts != nullptr) {
    plan.num_experts_total = int64_t{experts->num_layers()} * experts->num_experts();
    plan.expert_bytes = experts->at(0, 0).size_bytes();
  }

  // What does not depend on a choice.
  const uint64_t weights = r.binding.dense_device_bytes();
  const uint64_t sessions = static_cast<uint64_t>(o.max_sessions);
  const uint64_t kv = sessions * session_bytes(c, o);
  const uint64_t outputs = output_bytes(c, o.max_sessions);
  const uint64_t stacks_pool = static_cast<uint64_t>(o.num_threads - 1) * kThreadStackBytes;
  uint64_t store_fixed = 0, store_stacks = 0, store_tables = 0, store_buffers = 0;
  uint64_t slot_bytes = 0;
  int64_t kept = 0, min_slots = 0;
  if (experts != nullptr) {
    const ExpertStore::Cost cost = ExpertStore::cost(*experts, store_options(o, kSmallestSlots), r.host_visible);
    const ExpertStore::Cost more = ExpertStore::cost(*experts, store_options(o, kSmallestSlots + 1), r.host_visible);
    slot_bytes = experts->slot_bytes();
    store_stacks = cost.stack_bytes;
    store_buffers = cost.read_buffer_bytes;
    store_tables = cost.table_bytes + (more.table_bytes - cost.table_bytes) * static_cast<uint64_t>(plan.num_experts_total);
    store_fixed = store_stacks + store_tables + store_buffers;
    kept = r.placement.num_kept_layers() * experts->num_experts();
    min_slots = kept == plan.num_experts_total ? kept : std::min(plan.num_experts_total, kept + kSmallestSlots);
  }
  const uint64_t catalogue = r.checkpoint.table_bytes() + r.binding.table_bytes();
  const uint64_t load_staging = r.host_visible ? 0 : kLoadChunkBytes;
  const StreamedMatrix::Cost on_demand = on_demand_cost(r.binding, r.host_visible);
  const uint64_t fixed = weights + kv + stacks_pool + store_fixed + catalogue + r.tokenizer_bytes + load_staging + outputs +
                         on_demand.read_buffer_bytes + on_demand.table_bytes + on_demand.stack_bytes;

  const int64_t smallest_chunk =
      o.prefill_chunk > 0 ? std::min(o.prefill_chunk, o.context_length) : std::min(kSmallestChunk, o.context_length);
  const auto scratch = [&](int64_t chunk) { return scratch_bytes(c, o.numerics, pass_shape(o, chunk)); };
  const auto slots_total = [&](int64_t slots) { return static_cast<uint64_t>(slots) * slot_bytes; };
  plan.smallest_budget_bytes = fixed + scratch(smallest_chunk) + slots_total(min_slots);

  // Chunk: the largest that takes at most a quarter of what is left after the minimum, or that still leaves room for every expert.
  plan.prefill_chunk = smallest_chunk;
  plan.num_slots = min_slots;
  const int64_t largest_chunk = std::min(kLargestChunk, o.context_length);
  plan.full_residency_bytes = fixed + scratch(o.prefill_chunk > 0 ? smallest_chunk : largest_chunk) + slots_total(plan.num_experts_total);
  if (plan.fits()) {
    const uint64_t spare = plan.budget_bytes - plan.smallest_budget_bytes;
    if (o.prefill_chunk <= 0) {
      for (int64_t chunk = largest_chunk; chunk > smallest_chunk; chunk /= 2) {
        const uint64_t extra = scratch(chunk) - scratch(smallest_chunk);
        const bool all_fit = fixed + scratch(chunk) + slots_total(plan.num_experts_total) <= plan.budget_bytes;
        if (extra > spare || (extra > spare / 4 && !all_fit)) continue;
        plan.prefill_chunk = chunk;
        break;
      }
    }
    if (slot_bytes > 0) {
      const uint64_t left = plan.budget_bytes - fixed - scratch(plan.prefill_chunk);
      plan.num_slots = std::min<int64_t>(plan.num_experts_total, static_cast<int64_t>(left / slot_bytes));
    }
  }

  plan.batch_tokens = pass_shape(o, plan.prefill_chunk).chunk;
  // Part of the scratch, shown by itself: with many sessions it is large.
  const uint64_t logits = 2 * sessions * static_cast<uint64_t>(c.vocab_size) * sizeof(float);

  const auto item = [&](const char* name, uint64_t bytes, std::string detail) {
    if (bytes > 0) plan.items.push_back({name, bytes, std::move(detail)});
    plan.total_bytes += bytes;
  };
  const auto num_on_demand =
      std::count_if(r.binding.dense.begin(), r.binding.dense.end(), [](const DenseBinding& b) { return b.on_demand; });
  const int64_t num_resident = static_cast<int64_t>(r.binding.dense.size()) - num_on_demand;
  item("weights", weights, format("{} dense tensors{}", num_resident, num_on_demand > 0 ? format(", {} on demand", num_on_demand) : ""));
  item("expert slots", slots_total(plan.num_slots),
       format("{} of {} experts, {} each", plan.num_slots, plan.num_experts_total, human_bytes(static_cast<double>(slot_bytes))));
  const std::string each = o.max_sessions > 1 ? format("{} sessions of ", o.max_sessions) : "";
  item("KV cache", kv, format("{}{} positions, {}", each, o.context_length, dtype_name(KvCache::dtype_for(o.numerics, o.kv_cache))));
  item("scratch", scratch(plan.prefill_chunk) - logits, format("{} tokens per pass", plan.batch_tokens));
  item("logits", logits, format("{} of {}, on the device and on the host", o.max_sessions, c.vocab_size));
  item("read buffers", store_buffers + load_staging + on_demand.read_buffer_bytes,
       num_on_demand > 0 ? format("{} for dense tensors on demand", human_bytes(static_cast<double>(on_demand.read_buffer_bytes))) : "");
  item("tokenizer", r.tokenizer_bytes, "");
  item("sampler", outputs, format("candidates for {} logits, or rows of a trace", o.max_sessions * c.vocab_size));
  item("catalogue", catalogue + store_tables + on_demand.table_bytes, format("{} tensors", r.checkpoint.tensors().size()));
  item("thread stacks", stacks_pool + store_stacks + on_demand.stack_bytes,
       format("{} compute, {} readers", o.num_threads - 1,
              (experts != nullptr ? static_cast<uint64_t>(o.num_readers) : 0) + on_demand.stack_bytes / kThreadStackBytes));

  // The placement map, in the order of the data flow.
  std::map<std::string, size_t> by_name;
  const bool head_on_demand = std::any_of(r.binding.dense.begin(), r.binding.dense.end(), [&](const DenseBinding& b) { return b.on_demand && r.binding.is_head(b); });
  for (const DenseBinding& b : r.binding.dense) {
    // The codes of a head may stay on disk, its scales do not.
    const bool is_apart = head_on_demand && b.coded != nullptr && b.coded == &r.binding.weights->lm_head;
    const std::string unit = is_apart ? b.unit + " scales" : b.unit;
    const auto [it, fresh] = by_name.try_emplace(unit, plan.units.size());
    if (fresh) plan.units.push_back({.name = unit, .placement = b.on_demand ? Placement::kOnDemand : Placement::kPinned, .count = 0});
    plan.units[it->second].bytes += b.device_bytes;
    plan.units[it->second].count += 1;
  }
  for (int i = 0; experts != nullptr && i < experts->num_layers(); ++i) {
    uint64_t bytes = 0;
    for (int e = 0; e < experts->num_experts(); ++e) bytes += experts->at(i, e).size_bytes();
    plan.units.push_back({.name = format("layers.{}.experts", experts->layer_id(i)),
                          .placement = r.placement.experts[static_cast<size_t>(i)],
                          .bytes = bytes,
                          .count = experts->num_experts()});
  }

  // Weight bytes that one token reads: every matrix once, the embedding only as the head it may be tied to.
  for (const DenseBinding& b : r.binding.dense) {
    const bool is_embedding = r.binding.is_embedding(b), is_head = r.binding.is_head(b);
    if (!is_embedding || is_head) plan.active_weight_bytes_per_token += b.device_bytes;
    if (b.on_demand && is_embedding) plan.expected_disk_bytes_per_token += StreamedMatrix::block_bytes(*b.entry);
    if (b.on_demand && is_head) plan.expected_disk_bytes_per_token += b.entry->size_bytes;
  }
  if (experts != nullptr) {
    const uint64_t routed = static_cast<uint64_t>(c.num_experts_per_tok) * static_cast<uint64_t>(experts->num_layers()) * plan.expert_bytes;
    plan.active_weight_bytes_per_token += routed;
    const double miss = 1 - static_cast<double>(plan.num_slots) / static_cast<double>(plan.num_experts_total);
    plan.expected_disk_bytes_per_token += static_cast<uint64_t>(static_cast<double>(routed) * miss);
  }
  plan.kv_bytes_per_token = KvCache::bytes_per_token(c, KvCache::dtype_for(o.numerics, o.kv_cache));
  return plan;
}

Status plan_refusal(const MemoryPlan& plan) {
  std::string text = format("the model needs at least {} bytes ({}), the budget is {} ({})", plan.smallest_budget_bytes,
                            human_bytes(static_cast<double>(plan.smallest_budget_bytes)), plan.budget_bytes,
                            human_bytes(static_cast<double>(plan.budget_bytes)));
  for (const PlanItem& i : plan.items) text += format("\n  {:<14} {:>14}  {}", i.name, i.bytes, i.detail);
  text += "\n  Give --memory at least that much, or a smaller --ctx-size.";
  return {StatusCode::kBudgetExceeded, std::move(text)};
}

}  // namespace pointsman
