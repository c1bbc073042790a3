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

struct Session::Impl {
  Engine::Impl* engine = nullptr;
  KvCache cache;
  int64_t position = 0;
  // Tokens so far, where the cache forgets: what rings lost is computed again. Charged.
  Charge history_charge;
  std::vector<int32_t> history;

  // Makes the cache able to go on at `position`.
  Status resume();
  Result<std::span<const float>> run(std::span<const int32_t> tokens, TraceSink* sink, TraceSource* replay);
  Status run_pass(std::span<const int32_t> tokens, int64_t first_position, bool is_last, TraceSink* sink, TraceSource* replay);
};

}  // namespace pointsman
