// SPDX-License-Identifier: Apache-2.0
#include "pointsman/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "base/hash.h"
#include "base/log.h"
#include "base/thread.h"
#include "checkpoint/lockfile.h"
#include "engine/engine_impl.h"
#include "engine/planner.h"
#include "experts/direct_reads.h"
#include "experts/hot_set.h"
#include "experts/policy.h"
#include "memory/memory_limit.h"
#include "model/weight_loader.h"
#include "ops/path_table.h"

namespace pointsman {
namespace {

constexpr int64_t kDefaultContext = 4096;
constexpr const char* kTokenizerFile = "tokenizer.json";

// Headers, config and binding: all that plan() and load() need to know about a model.
struct Opened {
  ModelConfig config;
  std::unique_ptr<Checkpoint> checkpoint;
  Binding binding;
  PlacementMap placement;
  uint64_t tokenizer_file_bytes = 0;
};

Result<Opened> open_model(FileSystem& fs, const EngineOptions& options) {
  Opened m;
  PM_ASSIGN_OR_RETURN(m.config, read_model_config(fs, options.model_dir));
  m.config.latent.naive = options.latent_form == LatentForm::kNaive;
  PM_ASSIGN_OR_RETURN(m.checkpoint, Checkpoint::open(fs, options.model_dir));
  PM_ASSIGN_OR_RETURN(m.binding, bind_model(*m.checkpoint, m.config));
  PM_ASSIGN_OR_RETURN(m.placement, resolve_placement(m.binding, options.placement));
  if (options.load_tokenizer) {
    Result<FileInfo> info = fs.stat(join_path(options.model_dir, kTokenizerFile));
    if (info.ok()) {
      m.tokenizer_file_bytes = info->size_bytes;
    } else if (info.status().code() != StatusCode::kNotFound) {
      return info.status();
    }
  }
  return m;
}

Status fill_defaults(EngineOptions& o, const ModelConfig& config) {
  PM_ASSIGN_OR_RETURN(const Arch* const arch, find_arch(config.model_type));
  if (o.numerics == Numerics::kVendor && arch->vendor == nullptr) {
    return error(StatusCode::kUnsupported, "numerics vendor: not defined for {}; fp32 and bf16 are", config.model_type);
  }
  PM_RETURN_IF_ERROR(KvCache::check(config, o.numerics, o.kv_cache));
  if (const int64_t dim = config.compressed.index_head_dim; o.numerics == Numerics::kVendor && config.compressed.has(CompressKind::kSparse) && (dim & (dim - 1)) != 0) {
    return error(StatusCode::kUnsupported, "numerics vendor: index_head_dim {} is no power of two, so the indexer cannot be rotated", dim);
  }
  if (o.memory_bytes == 0) o.memory_bytes = default_memory_bytes();
  if (o.num_threads == 0) o.num_threads = usable_cpus();
  if (o.num_threads < 1 || o.num_threads > 1024) return error(StatusCode::kInvalidArgument, "threads {}: expected 1 to 1024", o.num_threads);
  if (o.num_readers < 1 || o.num_readers > 64) return error(StatusCode::kInvalidArgument, "readers {}: expected 1 to 64", o.num_readers);
  if (o.context_length == 0) o.context_length = std::min(config.max_position_embeddings, kDefaultContext);
  if (o.context_length < 1 || o.context_length > config.max_position_embeddings) {
    return error(StatusCode::kInvalidArgument, "context length {}: the model supports 1 to {}", o.context_length,
                 config.max_position_embeddings);
  }
  if (o.max_sessions < 1 || o.max_sessions > ops::kMaxSequences) {
    return error(StatusCode::kInvalidArgument, "sessions {}: expected 1 to {}", o.max_sessions, ops::kMaxSequences);
  }
  if (o.prefill_chunk < 0) return error(StatusCode::kInvalidArgument, "prefill chunk {}: expected a positive number", o.prefill_chunk);
  return ok_status();
}

// Leaves kAuto where a measurement must decide.
void decide_direct_reads(EngineOptions& o, const Opened& m) {
  if (o.direct != DirectReads::kAuto) return;
  const ExpertCatalogue* const experts = m.binding.experts.get();
  uint64_t model_bytes = 0;  // a larger budget is not used
  for (const CheckpointFile& f : m.checkpoint->files()) model_bytes += f.info.size_bytes;
  const uint64_t process_bytes = std::min(o.memory_bytes, model_bytes);
  if (experts == nullptr || page_cache_holds(*experts, process_bytes, read_memory_limits())) o.direct = DirectReads::kOff;
}

// How the store is to read, with the reason for people.
Result<std::string> choose_io(const Engine::Impl& e, DirectReads asked, Device& host, MemoryBudget& budget, ExpertStoreOptions& store) {
  const EngineOptions& o = e.options;
  store.io = o.io == IoMethod::kPread || (o.io == IoMethod::kAuto && !e.fs->make_read_queue(ReadMethod::kUring, 1).ok()) ? ReadMethod::kPread
                                                                                                                         : ReadMethod::kUring;
  if (o.direct == DirectReads::kOff) {
    return std::string(asked == DirectReads::kOff ? "as asked for" : "free memory holds all experts");
  }
  if (o.direct == DirectReads::kOn) {
    PM_RETURN_IF_ERROR(e.checkpoint->open_file(0, /*direct=*/true).status());
    store.direct = true;
    return std::string("as asked for");
  }
  const DirectChoice choice = measure_direct_reads(*e.checkpoint, *e.binding.experts, store.io, host, budget);
  store.direct = choice.direct;
  return choice.why;
}

// Bits do not depend on it, so whatever is wrong with the file, the engine goes on without it.
void use_measured_paths(Engine::Impl& e) {
  const ops::MachineKey key{.cpu = e.cpu.model_name, .isa = isa_name(e.kernels.isa), .threads = e.options.num_threads};
  const Result<ops::PathTable> table = ops::read_path_table(FileSystem::real(), e.options.tuning_dir, key);
  if (!table.ok()) {
    if (table.status().code() == StatusCode::kNotFound) return;
    return log_warning("{}; the built-in rule chooses between kernels. 'pointsman bench ops --tune' makes the file anew", table.status().message());
  }
  const ModelConfig& c = e.config;
  const bool moe = c.num_experts > 0;
  const ops::PanelPaths* paths = ops::nearest_paths(*table, {.experts = moe ? c.num_experts : 1,
                                                            .top_k = moe ? c.num_experts_per_tok : 1,
                                                            .hidden = c.hidden_size,
                                                            .width = moe ? c.moe_intermediate_size : c.intermediate_size});
  if (paths == nullptr) return;
  e.paths = *paths;
  e.ops.paths = &e.paths;
  e.paths_file = join_path(e.options.tuning_dir, ops::path_table_file_name(key));
}

Result<MemoryPlan> plan_of(const Opened& m, const EngineOptions& options, bool host_visible) {
  return make_plan({.config = m.config,
                    .checkpoint = *m.checkpoint,
                    .binding = m.binding,
                    .placement = m.placement,
                    .options = options,
                    .tokenizer_bytes = m.tokenizer_file_bytes == 0 ? 0 : Tokenizer::load_peak_bytes(m.tokenizer_file_bytes),
                    .host_visible = host_visible});
}

// The small files that the lock covers: configuration and tokenizer must be what was locked, and no more than that.
Status check_locked_files(FileSystem& fs, const std::string& directory, const LockFile& lock) {
  for (const auto& [name, entry] : lock.files) {
    PM_ASSIGN_OR_RETURN(const LockFile::Entry found, hash_file(fs, join_path(directory, name)));
    if (found != entry) {
      return error(StatusCode::kCorrupt, "{}: sha256 {} expected {} ({} says so); fetch it again, or run 'pointsman lock' if you changed it",
                   join_path(directory, name), to_hex(found.sha256), to_hex(entry.sha256), kLockFileName);
    }
  }
  // A file that came later changes what the model does as much as an edit.
  for (const char* name : kLockedFiles) {
    if (lock.files.count(std::string_view(name)) > 0) continue;
    const Status absent = fs.stat(join_path(directory, name)).status();
    if (absent.code() == StatusCode::kNotFound) continue;
    if (!absent.ok()) return absent;
    return error(StatusCode::kCorrupt, "{}: not in {}, expected no such file; remove it, or run 'pointsman lock' if it belongs to the model",
                 join_path(directory, name), kLockFileName);
  }
  return ok_status();
}

Result<std::optional<LockFile>> find_lock(FileSystem& fs, const EngineOptions& options) {
  Result<LockFile> lock = read_lock_file(fs, options.model_dir);
  if (lock.ok()) return std::optional<LockFile>(std::move(*lock));
  if (lock.status().code() != StatusCode::kNotFound || options.verify != VerifyPolicy::kAuto) return lock.status();
  log_warning("{}: no {}: weights are compared only with their own first read; 'pointsman lock' makes one", options.model_dir,
              kLockFileName);
  return std::optional<LockFile>();
}

Result<HotSet> open_hot_set(const Engine::Impl& e, const EngineOptions& options) {
  if (!policy_learns(options.policy)) {
    return error(StatusCode::kInvalidArgument, "{}: policy {} does not start from a hot set; lfru and reuse do", options.hot_set_file, options.policy);
  }
  if (e.model_digest.empty()) {
    return error(StatusCode::kInvalidArgument, "{}: a hot set belongs to one model, and this one has no {}; make one with 'pointsman lock'", options.hot_set_file, kLockFileName);
  }
  return read_hot_set(*e.fs, options.hot_set_file, e.model_digest, e.binding.experts->num_layers(), e.binding.experts->num_experts());
}

}  // namespace

const char* prefetch_name(PrefetchMode m) { return m == PrefetchMode::kOff ? "off" : m == PrefetchMode::kLog ? "log" : "predict"; }
const char* kv_cache_name(KvCacheType t) {
  switch (t) {
    case KvCacheType::kAuto: return "auto";
    case KvCacheType::kFp32: return "fp32";
    case KvCacheType::kBf16: return "bf16";
    case KvCacheType::kInt8: return "int8";
  }
  return "?";
}
const char* numerics_name(Numerics n) { return n == Numerics::kFp32 ? "fp32" : n == Numerics::kBf16 ? "bf16" : "vendor"; }

uint64_t default_memory_bytes() { return default_budget_bytes(); }

Result<MemoryPlan> Engine::plan(const EngineOptions& given) {
  EngineOptions options = given;
  PM_ASSIGN_OR_RETURN(const Opened model, open_model(FileSystem::real(), options));
  PM_RETURN_IF_ERROR(fill_defaults(options, model.config));
  decide_direct_reads(options, model);
  return plan_of(model, options, true);
}

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options, LoadProgress progress, void* user) {
  if (options.device != "cpu") {
    return error(StatusCode::kUnavailable, "device \"{}\" is not built into this program; available: cpu", options.device);
  }
  std::unique_ptr<Device> device = make_cpu_device();
  PM_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                      load_engine(options, {.device = device.get(), .fs = &FileSystem::real()}, progress, user));
  engine->impl_->own_device = std::move(device);
  return engine;
}

Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& given, const Platform& platform, LoadProgress progress, void* user) {
  const auto start = std::chrono::steady_clock::now();
  EngineOptions options = given;
  PM_ASSIGN_OR_RETURN(Opened model, open_model(*platform.fs, options));
  PM_RETURN_IF_ERROR(fill_defaults(options, model.config));
  decide_direct_reads(options, model);
  PM_ASSIGN_OR_RETURN(MemoryPlan plan, plan_of(model, options, platform.device->host_visible()));
  if (!plan.fits()) return plan_refusal(plan);
  for (const std::string& note : model.binding.notes) log_warning("{}: {}", options.model_dir, note);

  auto impl = std::make_unique<Engine::Impl>(options);
  Engine::Impl& e = *impl;
  e.device = platform.device;
  e.fs = platform.fs;
  e.plan = std::move(plan);
  e.config = std::move(model.config);
  e.checkpoint = std::move(model.checkpoint);
  e.binding = std::move(model.binding);
  PM_ASSIGN_OR_RETURN(e.arch, find_arch(e.config.model_type));
  e.cpu = detect_cpu_features();
  PM_ASSIGN_OR_RETURN(const Isa isa, choose_isa(options.isa, e.cpu));
  e.kernels = ops::make_cpu_kernels(isa, e.cpu);
  if (!platform.missing_ops.empty()) {
    PM_ASSIGN_OR_RETURN(e.kernels, ops::without_ops(e.kernels, platform.missing_ops));
  }
  e.fallbacks.forbidden = !options.allow_fallback;

  PM_ASSIGN_OR_RETURN(e.catalogue_charge, Charge::make(e.budget, MemoryClass::kCatalogue,
                                                       e.checkpoint->table_bytes() + e.binding.table_bytes()));

  PM_ASSIGN_OR_RETURN(e.output_charge, Charge::make(e.budget, MemoryClass::kOutput, output_bytes(e.config, options.max_sessions)));

  // The tokenizer first: while it loads it needs more than it keeps, and nothing large is allocated yet.
  if (model.tokenizer_file_bytes > 0) {
    PM_ASSIGN_OR_RETURN(e.tokenizer_charge, Charge::make(e.budget, MemoryClass::kTokenizer,
                                                         Tokenizer::load_peak_bytes(model.tokenizer_file_bytes)));
    PM_ASSIGN_OR_RETURN(e.tokenizer, Tokenizer::load(*e.fs, options.model_dir));
  }
  {
    PM_ASSIGN_OR_RETURN(const std::optional<LockFile> lock, find_lock(*e.fs, options));
    if (lock) {
      PM_RETURN_IF_ERROR(check_locked_files(*e.fs, options.model_dir, *lock));
      if (e.binding.experts != nullptr) PM_RETURN_IF_ERROR(attach_digests(*lock, *e.binding.experts));
      e.model_digest = to_hex(lock->model_digest());
    }

    PM_ASSIGN_OR_RETURN(e.pool_charge, Charge::make(e.budget, MemoryClass::kThreadStacks,
                                                    static_cast<uint64_t>(options.num_threads - 1) * kThreadStackBytes));
    e.pool = std::make_unique<ThreadPool>(options.num_threads);
    PM_ASSIGN_OR_RETURN(e.stream, e.device->make_stream());
    e.ops = {.stream = e.stream.get(), .pool = e.pool.get(), .kernels = &e.kernels, .fallbacks = &e.fallbacks};
    if (!options.tuning_dir.empty()) use_measured_paths(e);

    uint64_t total = 0;
    for (const DenseBinding& b : e.binding.dense) total += b.entry->size_bytes;
    std::atomic<uint64_t> done{0};
    const auto count = [&](uint64_t bytes) {
      const uint64_t now = done.fetch_add(bytes) + bytes;
      if (progress != nullptr) progress(user, now, total);
    };
    const LockFile* const digests = lock ? &*lock : nullptr;
    PM_RETURN_IF_ERROR(load_dense(*e.checkpoint, e.binding, digests, *e.device, e.budget, *e.pool, e.weights, count));
    PM_ASSIGN_OR_RETURN(e.on_demand, open_on_demand(*e.checkpoint, e.binding, digests, *e.device, e.budget, count));
    e.dense_bytes_read = total;
  }

  const PassShape shape = pass_shape(options, e.plan.prefill_chunk);
  Arena device_size, host_size;
  Scratch::carve(device_size, e.config, options.numerics, shape);
  HostScratch::carve(host_size, e.config, shape);
  PM_ASSIGN_OR_RETURN(e.scratch_buffer, Buffer::make(*e.device, e.budget, MemoryClass::kScratch, device_size.used_bytes()));
  PM_ASSIGN_OR_RETURN(e.host_scratch_charge, Charge::make(e.budget, MemoryClass::kScratch, align_up(host_size.used_bytes(), kPageBytes)));
  e.host_scratch_bytes.resize(host_size.used_bytes());
  Arena device_arena(e.scratch_buffer.data(), e.scratch_buffer.size_bytes());
  Arena host_arena(e.host_scratch_bytes.data(), e.host_scratch_bytes.size());
  e.scratch = Scratch::carve(device_arena, e.config, options.numerics, shape);
  e.host = HostScratch::carve(host_arena, e.config, shape);
  e.rope = RopeTable(e.config.rope, e.config.rotary_dim);
  if (!e.config.compressed.layers.empty()) e.compress_rope = RopeTable(e.config.compressed.rope, e.config.rotary_dim);
  e.forward = {.numerics = options.numerics, .route_noise = options.route_noise, .route_noise_seed = options.route_noise_seed};
  if (const VendorNumerics* v = e.arch->vendor; v != nullptr && options.numerics == Numerics::kVendor) {
    const bool power_of_two = v->power_of_two_scales || e.config.quantization.power_of_two_scales;
    e.forward.activation_scale = power_of_two ? ops::SimulatedScale::kPowerOfTwo : ops::SimulatedScale::kFp32;
    e.forward.weigh_before_down = v->weigh_before_down;
  }

  if (e.binding.experts != nullptr) {
    PM_CHECK(e.arch->router != nullptr);
    e.forward.router = e.arch->router(e.config);
    e.forward.router.guard = options.router_guard == GuardPolicy::kUniform ? ops::GuardAction::kUniform : ops::GuardAction::kRefuse;
    PM_RETURN_IF_ERROR(ops::check_contract(e.forward.router));
    ExpertStoreOptions store{.num_slots = e.plan.num_slots,
                             .num_readers = options.num_readers,
                             .policy = options.policy,
                             .verify = e.model_digest.empty()                       ? VerifyMode::kFirstRead
                                       : options.verify == VerifyPolicy::kFast ? VerifyMode::kLockFast
                                                                               : VerifyMode::kLockRequired,
                             .compute_stream = e.stream.get()};
    store.read_timeout_ms = std::max<int64_t>(1, static_cast<int64_t>(options.read_timeout_s * 1e3));
    {
      const std::unique_ptr<Device> host = make_cpu_device();
      PM_ASSIGN_OR_RETURN(e.io_reason, choose_io(e, given.direct, *host, e.budget, store));
      e.io_direct = store.direct;
    }
    for (const Placement p : model.placement.experts) store.keep_layer.push_back(p != Placement::kOnDemand);
    HotSet hot_set;  // gone again when the policy has learned from it
    if (!options.hot_set_file.empty()) {
      PM_ASSIGN_OR_RETURN(hot_set, open_hot_set(e, options));
      if (hot_set.num_runs > 0) store.learned_uses = hot_set.uses;
    }
    PM_ASSIGN_OR_RETURN(e.store, ExpertStore::make(*e.device, e.budget, *e.checkpoint, *e.binding.experts, store));
    // With hyper-connections the next layer's input is a mix of streams that this layer's output decides: no guess.
    if (options.prefetch != PrefetchMode::kOff && e.config.hyper.streams == 0) {
      e.prediction = std::make_unique<ExpertPrediction>(options.prefetch, e.plan.num_slots < e.plan.num_experts_total,
                                                        e.binding.experts->num_layers(), e.forward.router.top_k);
    }
    std::vector<int32_t> all(static_cast<size_t>(e.binding.experts->num_experts()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    for (size_t l = 0; l < model.placement.experts.size(); ++l) {
      if (model.placement.experts[l] != Placement::kPinned) continue;
      PM_RETURN_IF_ERROR(e.store->begin(static_cast<int>(l), all));
      for (;;) {
        PM_ASSIGN_OR_RETURN(const ExpertHandle handle, e.store->next());
        if (!handle) break;
      }
      e.store->end();
    }
  }
  e.load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return Engine::wrap(std::move(impl));
}

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;
std::unique_ptr<Engine> Engine::wrap(std::unique_ptr<Impl> impl) { return std::unique_ptr<Engine>(new Engine(std::move(impl))); }

const MemoryPlan& Engine::memory_plan() const { return impl_->plan; }
const ModelConfig& Engine::config() const { return impl_->config; }
const EngineOptions& Engine::options() const { return impl_->options; }
const Tokenizer* Engine::tokenizer() const { return impl_->tokenizer.get(); }
std::string Engine::model_digest() const { return impl_->model_digest; }

std::string Engine::isa() const {
  const Isa isa = impl_->kernels.isa;
  return std::string(isa_name(isa)) + (isa == Isa::kAvx512 && impl_->cpu.avx512_bf16 ? "+bf16" : "");
}

EngineStats Engine::stats() const {
  const Impl& e = *impl_;
  EngineStats s;
  if (e.store != nullptr) {
    const auto layers = e.store->stats();
    for (size_t i = 0; i < layers.size(); ++i) {
      const ExpertLayerStats& l = layers[i];
      const ExpertStats one{.hits = l.hits, .misses = l.misses, .evicted = l.evicted, .bytes_read = l.bytes_read,
                            .verified_sha256 = l.verified_sha256, .verified_lock_xxh3 = l.verified_lock_xxh3, .verified_xxh3 = l.verified_xxh3,
                            .read_s = static_cast<double>(l.read_ns) * 1e-9, .wait_s = static_cast<double>(l.wait_ns) * 1e-9, .prefetched = l.prefetched,
                            .prefetch_hits = l.prefetch_hits, .prefetch_bytes = l.prefetch_bytes,
                            .prefetch_failed = l.prefetch_failed, .predicted_reads = l.predicted_reads, .predicted_used = l.predicted_used,
                            .predicted_dropped = l.predicted_dropped, .predicted_failed = l.predicted_failed, .predicted_bytes = l.predicted_bytes,
                            .predicted_wasted_bytes = l.predicted_wasted_bytes};
      s.expert_layers.push_back(one);
      s.expert_layer_ids.push_back(e.binding.experts->layer_id(static_cast<int>(i)));
      s.experts.hits += one.hits;
      s.experts.misses += one.misses;
      s.experts.evicted += one.evicted;
      s.experts.bytes_read += one.bytes_read;
      s.experts.verified_sha256 += one.verified_sha256;
      s.experts.verified_lock_xxh3 += one.verified_lock_xxh3;
      s.experts.verified_xxh3 += one.verified_xxh3;
      s.experts.read_s += one.read_s;
      s.experts.wait_s += one.wait_s;
      s.experts.prefetched += one.prefetched;
      s.experts.prefetch_hits += one.prefetch_hits;
      s.experts.prefetch_bytes += one.prefetch_bytes;
      s.experts.prefetch_failed += one.prefetch_failed;
      s.experts.predicted_reads += one.predicted_reads;
      s.experts.predicted_used += one.predicted_used;
      s.experts.predicted_dropped += one.predicted_dropped;
      s.experts.predicted_failed += one.predicted_failed;
      s.experts.predicted_bytes += one.predicted_bytes;
      s.experts.predicted_wasted_bytes += one.predicted_wasted_bytes;
    }
  }
  if (e.prediction != nullptr) {
    PredictionStats& p = s.prediction;
    for (const ExpertPrediction::Counts& c : e.prediction->counts()) {
      p.layers.emplace_back(c.chosen, c.right);
      p.chosen += c.chosen;
      p.right += c.right;
    }
    const BenefitTrial& t = e.prediction->trial();
    p.passes = e.prediction->passes();
    p.passes_acted = e.prediction->passes_acted();
    p.trials = t.num_trials();
    p.trials_lost = t.num_lost();
    p.with_s = static_cast<double>(t.with_ns()) * 1e-9;
    p.without_s = static_cast<double>(t.without_ns()) * 1e-9;
  }
  if (e.store != nullptr) {
    s.io_method = read_method_name(e.store->io());
    s.io_direct = e.io_direct;
    s.io_reason = e.io_reason;
  }
  const auto names = ops::op_names();
  for (size_t i = 0; i < names.size(); ++i) {
    if (const uint64_t n = e.fallbacks.launches[i].load(); n > 0) s.launches.emplace_back(names[i], n);
    for (int p = 0; p < ops::kNumPanelPaths; ++p) {
      const uint64_t n = e.fallbacks.paths[i][p].load();
      if (n > 0) s.launches.emplace_back(format("{}/{}", names[i], ops::panel_path_name(static_cast<ops::PanelPath>(p))), n);
    }
    if (const uint64_t n = e.fallbacks.count[i].load(); n > 0) s.fallbacks.emplace_back(names[i], n);
  }
  s.kernel_paths = e.paths_file.empty() ? "built in" : e.paths_file;
  s.router_guard_fired = e.guard_fired;
  s.dense_bytes_read = e.dense_bytes_read;
  for (const auto& matrix : e.on_demand) {
    const StreamedStats one = matrix->stats();
    s.dense_on_demand.bytes_read += one.bytes_read;
    s.dense_on_demand.verified_xxh3 += one.verified_xxh3;
    s.dense_on_demand.read_s += static_cast<double>(one.read_ns) * 1e-9;
    s.dense_on_demand.wait_s += static_cast<double>(one.wait_ns) * 1e-9;
  }
  s.load_s = e.load_s;
  s.budget_bytes = e.budget.limit_bytes();
  s.ledger_bytes = e.budget.used_bytes();
  s.ledger_peak_bytes = e.budget.peak_bytes();
  for (int i = 0; i < kNumMemoryClasses; ++i) {
    const auto c = static_cast<MemoryClass>(i);
    if (e.budget.used_bytes(c) > 0) s.ledger.emplace_back(memory_class_name(c), e.budget.used_bytes(c));
  }
  return s;
}

void Engine::reset_stats() {
  if (impl_->store != nullptr) impl_->store->reset_stats();
  for (const auto& matrix : impl_->on_demand) matrix->reset_stats();
  if (impl_->prediction != nullptr) impl_->prediction->reset_counts();
  impl_->guard_fired = 0;
}

Status Engine::save_hot_set() {
  Impl& e = *impl_;
  if (e.options.hot_set_file.empty() || e.store == nullptr) return ok_status();
  // Read again: another run may have written it meanwhile.
  PM_ASSIGN_OR_RETURN(HotSet set, open_hot_set(e, e.options));
  set.add_run(e.store->uses());
  return write_hot_set(*e.fs, e.options.hot_set_file, set);
}

void Engine::evict_experts() {
  if (impl_->store != nullptr) impl_->store->evict_all();
}

}  // namespace pointsman
