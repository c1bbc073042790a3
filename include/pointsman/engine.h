// SPDX-License-Identifier: Apache-2.0
//
// Engine: one loaded model under one memory budget. Session (session.h): one sequence of tokens on it.
//
//   EngineOptions o{.model_dir = "models/pointsman-tiny-moe", .memory_bytes = 24 << 20};
//   auto engine = Engine::load(o);              if (!engine.ok()) ...
//   auto session = (*engine)->new_session();    if (!session.ok()) ...
//   auto logits = (*session)->prefill(ids);     // of the last position
//
// plan() and load() share one computation: load() allocates what plan() printed and refuses what it refuses.
// An Engine and its sessions belong to one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "pointsman/options.h"
#include "pointsman/status.h"

namespace pointsman {

class BatchLogits;
class Session;
class Tokenizer;
struct BatchItem;
struct BatchStep;
struct ModelConfig;

struct PlanItem {
  std::string name;     // "weights", "expert slots", ...
  uint64_t bytes = 0;
  std::string detail;   // "312 of 896 experts, 1.5 MiB each"
};

struct PlanUnit {       // one row of the placement map
  std::string name;     // "embed_tokens", "layers.0.attention", "layers.0.experts"
  Placement placement = Placement::kPinned;
  uint64_t bytes = 0;
  int64_t count = 1;    // experts in the unit
};

struct MemoryPlan {
  uint64_t budget_bytes = 0;
  uint64_t smallest_budget_bytes = 0;    // below this run() is refused
  uint64_t full_residency_bytes = 0;     // at this and above nothing is ever evicted
  uint64_t total_bytes = 0;              // sum of items <= budget_bytes
  std::vector<PlanItem> items;
  std::vector<PlanUnit> units;
  int64_t num_slots = 0;
  int64_t num_experts_total = 0;         // over all layers
  uint64_t expert_bytes = 0;             // of the largest one
  int64_t prefill_chunk = 0;
  int64_t max_sessions = 1;
  int64_t batch_tokens = 0;              // tokens of one batch at most, over all its sessions
  int64_t context_length = 0;
  int num_threads = 0;
  // Weight bytes that one decoded token reads, and how many of them come from disk when hits are as likely as slots.
  uint64_t active_weight_bytes_per_token = 0;
  uint64_t expected_disk_bytes_per_token = 0;
  uint64_t kv_bytes_per_token = 0;
  bool fits() const { return budget_bytes >= smallest_budget_bytes; }
};

struct ExpertStats {
  uint64_t hits = 0, misses = 0, evicted = 0, bytes_read = 0;
  // First reads held against the lock file, by SHA-256 or, as VerifyPolicy::kFast asks, by XXH3-128; later reads against the first.
  uint64_t verified_sha256 = 0, verified_lock_xxh3 = 0, verified_xxh3 = 0;
  double read_s = 0, wait_s = 0;
  // Read before their layer was reached, because the token ids name them; how many of those were then asked for (they count as hits);
  // the bytes of reads that had begun before their layer was reached (part of bytes_read).
  uint64_t prefetched = 0, prefetch_hits = 0, prefetch_bytes = 0;
  uint64_t prefetch_failed = 0;  // reads ahead that failed and were dropped: the layer read the expert again
  // The same for experts that were only predicted. Dropped: not begun when the layer was reached; wasted: bytes of reads that had begun
  // for experts that the layer did not ask for.
  uint64_t predicted_reads = 0, predicted_used = 0, predicted_dropped = 0, predicted_failed = 0;
  uint64_t predicted_bytes = 0, predicted_wasted_bytes = 0;
};

// Embedding and LM head where they are placed on demand: reads after load().
struct OnDemandStats {
  uint64_t bytes_read = 0, verified_xxh3 = 0;  // the latter in blocks
  double read_s = 0, wait_s = 0;
};

// Guesses about the next layer's experts (EngineOptions::prefetch), whether they were acted upon or not. Passes of at most 16 tokens.
struct PredictionStats {
  uint64_t chosen = 0, right = 0;                      // experts of tokens with a guess, and those that were guessed
  std::vector<std::pair<uint64_t, uint64_t>> layers;   // the same per MoE layer
  uint64_t passes = 0, passes_acted = 0;               // and those whose guesses were read
  // Passes with and without reads take turns now and then, and the faster goes on: model/benefit_trial.h.
  uint64_t trials = 0, trials_lost = 0;
  double with_s = 0, without_s = 0;                    // medians of the last trial
};

struct EngineStats {
  ExpertStats experts;                       // summed
  std::vector<ExpertStats> expert_layers;    // per MoE layer
  std::vector<int> expert_layer_ids;
  std::vector<std::pair<std::string, uint64_t>> launches;    // op -> times, of those that ran: names say dtypes (ops/op_list.inc).
                                             // "op/small_tile": blocks of rows that took this path, of ops on panels (ops/panel_paths.h)
  std::vector<std::pair<std::string, uint64_t>> fallbacks;   // op -> times
  uint64_t router_guard_fired = 0;
  uint64_t dense_bytes_read = 0;             // by load()
  // How experts are read: "pread" or "uring" (empty: there are none), past the page cache or through it, and why.
  std::string io_method;
  bool io_direct = false;
  std::string io_reason;
  OnDemandStats dense_on_demand;
  std::string kernel_paths;                  // "built in", or the file with the measured choices
  PredictionStats prediction;
  double load_s = 0;
  uint64_t budget_bytes = 0, ledger_bytes = 0, ledger_peak_bytes = 0;
  std::vector<std::pair<std::string, uint64_t>> ledger;      // by class
};

// Progress of load(): bytes of dense weights read so far. Called from the loading thread.
using LoadProgress = void (*)(void* user, uint64_t done_bytes, uint64_t total_bytes);

class Engine {
 public:
  // Reads headers only. Works for any budget: a plan that does not fit says so in fits().
  static Result<MemoryPlan> plan(const EngineOptions& options);
  // kBudgetExceeded when the plan does not fit: the message has the line items and the smallest budget.
  static Result<std::unique_ptr<Engine>> load(const EngineOptions& options, LoadProgress progress = nullptr, void* user = nullptr);
  ~Engine();

  const MemoryPlan& memory_plan() const;
  const ModelConfig& config() const;
  const EngineOptions& options() const;     // with every default filled in
  const Tokenizer* tokenizer() const;       // null when the folder has none, or load_tokenizer was false
  std::string model_digest() const;         // SHA-256 of the lock file's entries, "" without one
  std::string isa() const;                  // "avx512+bf16", ...
  EngineStats stats() const;
  void reset_stats();
  // Adds what this engine's runs taught to options().hot_set_file; nothing without one. Once, when the engine has done its work.
  Status save_hot_set();
  // Drops all unpinned experts: the cold case of tests and benchmarks.
  void evict_experts();

  // The plan holds room for options().max_sessions sessions at a time; one more is kBudgetExceeded unless the budget has room left.
  Result<std::unique_ptr<Session>> new_session();

  // Appends tokens to several sessions in one pass: every weight, and every expert that any row needs, is read once for all of them. Rows of
  // one session never see another's. Its logits are bit for bit those of Session::prefill(), whoever else is in the batch. Prompts
  // and single tokens may be mixed; together they are at most memory_plan().batch_tokens.
  // kInvalidArgument, before anything runs: what prefill() refuses, no items or more than max_sessions, too many tokens, a session twice or of
  // another engine; the message names the item. On any error every session is as it was before the call.
  Result<BatchLogits> run_batch(std::span<const BatchItem> items);
  // The same with one token each.
  Result<BatchLogits> decode_batch(std::span<const BatchStep> steps);

  struct Impl;
  Impl& impl() { return *impl_; }
  static std::unique_ptr<Engine> wrap(std::unique_ptr<Impl> impl);

 private:
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What --memory is when it is absent: see docs/design/memory.md.
uint64_t default_memory_bytes();
// The documented constant by which peak RSS may exceed the budget: the binary, its libraries, libc's own state.
inline constexpr uint64_t kProcessOverheadBytes = 24ull << 20;

}  // namespace pointsman
