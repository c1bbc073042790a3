// SPDX-License-Identifier: Apache-2.0
//
// Inside of Engine and Session. Tests use load_engine() to bring their own device and files.
#pragma once

#include <memory>
#include <string>

#include "base/cpu_features.h"
#include "base/fs.h"
#include "base/thread_pool.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "device/device.h"
#include "engine/placement.h"
#include "experts/store.h"
#include "memory/budget.h"
#include "model/arch/arch.h"
#include "model/binding.h"
#include "model/forward.h"
#include "model/streamed_matrix.h"
#include "ops/kernels.h"
#include "pointsman/engine.h"
#include "pointsman/session.h"
#include "tokenizer/tokenizer.h"

namespace pointsman {

// What an engine stands on. Both outlive it.
struct Platform {
  Device* device = nullptr;
  FileSystem* fs = nullptr;
  // Kernels taken out of the table, by op name: tests of the fallback.
  std::vector<std::string_view> missing_ops;
};

Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& options, const Platform& platform,
                                            LoadProgress progress = nullptr, void* user = nullptr);

// Members are in the order of their lifetimes: what is used by others comes first and is destroyed last.
struct Engine::Impl {
  explicit Impl(EngineOptions o) : options(std::move(o)), budget(options.memory_bytes) {}

  EngineOptions options;
  MemoryPlan plan;
  MemoryBudget budget;
  std::unique_ptr<Device> own_device;
  Device* device = nullptr;
  FileSystem* fs = nullptr;
  CpuFeatures cpu;
  ModelConfig config;
  const Arch* arch = nullptr;
  std::unique_ptr<Checkpoint> checkpoint;
  Binding binding;
  Charge catalogue_charge;
  std::unique_ptr<Tokenizer> tokenizer;
  Charge tokenizer_charge;
  Charge output_charge;
  Charge pool_charge;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<Stream> stream;
  ops::KernelTable kernels;
  ops::FallbackCounters fallbacks;
  ops::PanelPaths paths;  // from a table of tuning_dir
  std::string paths_file;  // empty: the built-in rule
  ops::OpContext ops;
  Buffer weights;
  std::vector<std::unique_ptr<StreamedMatrix>> on_demand;  // dense matrices; binding.weights points at them
  std::unique_ptr<ExpertStore> store;
  Buffer scratch_buffer;
  Scratch scratch;
  Charge host_scratch_charge;
  std::vector<std::byte> host_scratch_bytes;
  HostScratch host;
  RopeTable rope, compress_rope;
  ForwardOptions forward;
  std::unique_ptr<ExpertPrediction> prediction;  // null: no guesses about experts
  std::string model_digest;
  bool io_direct = false;
  std::string io_reason;
  uint64_t guard_fired = 0;
  uint64_t dense_bytes_read = 0;
  double load_s = 0;
};

// One forward pass over rows of one or several sessions.
struct PassRequest {
  std::span<Session::Impl* const> sessions;
  const ops::Sequences& sequences;   // of the sessions, one run of rows each
  std::span<const int32_t> tokens;
  bool wants_logits = true;          // of every session's last row, into host.logits
  TraceSink* sink = nullptr;         // one session only, as a replay
  TraceSource* replay = nullptr;
};
// Whatever comes of it, no work of the pass is left on return. Positions do not move.
Status run_pass(Engine::Impl& engine, const PassRequest& request);

struct Session::Impl {
  Engine::Impl* engine = nullptr;
  KvCache cache;
  int64_t position = 0;
  // Tokens so far, where the cache forgets: what rings lost is computed again. Charged.
  Charge history_charge;
  std::vector<int32_t> history;

  // Can these tokens be appended? Names the first that cannot.
  Status check(std::span<const int32_t> tokens) const;
  // Makes the cache able to go on at `position`.
  Status resume();
  // Remembers tokens that were computed at `first`, where the cache forgets.
  void remember(std::span<const int32_t> tokens, int64_t first);
  Result<std::span<const float>> run(std::span<const int32_t> tokens, TraceSink* sink, TraceSource* replay);
  Status run_chunk(std::span<const int32_t> tokens, int64_t first_position, bool is_last, TraceSink* sink, TraceSource* replay);
};

}  // namespace pointsman
