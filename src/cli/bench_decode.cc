// SPDX-License-Identifier: Apache-2.0
//
// pointsman bench decode: prefill and decode rates of a model, per budget, against what this machine reads and computes. Its
// limits are measured before and after the runs they are compared with; the rate of memory also every few tokens, between them, on the
// resident weights: where other machines share the memory it changes within a second.
#include <chrono>
#include <cstdio>

#include "base/log.h"
#include "base/philox.h"
#include "base/thread_pool.h"
#include "checkpoint/model_config.h"
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/bench_sessions.h"
#include "cli/command.h"
#include "cli/engine_flags.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "cli/quantiles.h"
#include "cli/stats.h"
#include "engine/engine_impl.h"
#include "memory/budget.h"
#include "ops/bench/machine_limits.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "bench decode";

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

struct Flags {
  EngineFlags engine;
  int64_t tokens = 64, prompt = 128, repeat = 3, seed = 0, stream_mib = 256;
  std::string budgets, feed = "random", sessions;
  bool json = false, markdown = false;
};

// A window of memory is read after so many tokens.
constexpr int64_t kTokensPerWindow = 4;

// Token ids of a prompt that nobody wrote: spread over the vocabulary, so that routing is too.
int32_t random_token(uint64_t seed, uint64_t position, int64_t vocab) {
  const uint32_t r = random_u32(seed, RandomPurpose::kTest, 0, 0, position, 0);
  return static_cast<int32_t>((uint64_t{r} * static_cast<uint64_t>(vocab)) >> 32);
}

struct Run {
  uint64_t budget_bytes = 0;
  std::vector<double> prefill_tps, decode_tps, token_ms;  // per repetition, per repetition, per token
  double stream_gbps = 0, fp32_gflops = 0, bf16_gflops = 0, int8_gops = 0;  // of the machine
  std::vector<double> read_gbps;                          // between tokens; empty when too little is resident
  int threads = 0;
  const char* arithmetic = "fp32";  // of most products of the prefill: fp32, bf16, int8
  bool disturbed = false;
  uint64_t active_bytes = 0;
  double prefill_flops_per_token = 0;
  uint64_t decode_disk_bytes = 0, decode_steps = 0;   // of the measured repetitions
  uint64_t expected_disk_bytes = 0;                   // per token, as the plan says
  std::vector<SessionsRow> by_sessions;  // with --sessions, instead of the rates above
  Json engine;  // statistics of the measured repetitions
  std::string line;

  double weight_gbps() const { return median(decode_tps) * static_cast<double>(active_bytes) * 1e-9; }
  double disk_bytes_per_token() const {
    return decode_steps > 0 ? static_cast<double>(decode_disk_bytes) / static_cast<double>(decode_steps) : 0;
  }
  // What memory gave at the same time, against the weights of the median token.
  double of_read() const {
    const double ms = quantile(token_ms, 0.5), limit = median(read_gbps);
    return ms > 0 && limit > 0 ? static_cast<double>(active_bytes) * 1e-6 / ms / limit : 0;
  }
  double of_stream() const { return stream_gbps > 0 ? weight_gbps() / stream_gbps : 0; }
  double prefill_gflops() const { return median(prefill_tps) * prefill_flops_per_token * 1e-9; }
  double peak_gflops() const { return arithmetic[0] == 'i' ? int8_gops : arithmetic[0] == 'b' ? bf16_gflops : fp32_gflops; }
  double of_peak() const { return peak_gflops() > 0 ? prefill_gflops() / peak_gflops() : 0; }
};

// Two operations per weight that a prompt token meets: every dense matrix but the embedding and the head (which only the last
// token needs), and the experts chosen. Attention scores are left out.
double flops_per_prompt_token(Engine& engine) {
  const Engine::Impl& e = engine.impl();
  double weights = 0;
  for (const DenseBinding& b : e.binding.dense) {
    const bool is_vocabulary = b.matrix == &e.binding.weights->embed_tokens || b.matrix == &e.binding.weights->lm_head;
    if (b.matrix != nullptr && !is_vocabulary) weights += static_cast<double>(b.entry->num_elements());
  }
  if (e.binding.experts != nullptr) {
    const ExpertInfo& x = e.binding.experts->at(0, 0);
    double one = 0;
    for (const ExpertPartInfo& p : x.parts) one += static_cast<double>(p.rows) * static_cast<double>(p.cols);
    weights += one * static_cast<double>(e.config.num_experts_per_tok) * static_cast<double>(e.binding.experts->num_layers());
  }
  return 2 * weights;
}

// The dot product that experts (of a dense model, the first projection) are multiplied with: see model/forward.h, input_of.
const char* arithmetic_of(const Engine::Impl& e, const Run& run) {
  if (e.options.numerics != Numerics::kBf16 || run.bf16_gflops <= 0) return "fp32";
  DType dtype = DType::kBF16;
  WeightLayout layout = WeightLayout::kOutIn;
  if (e.binding.experts != nullptr) {
    dtype = e.binding.experts->at(0, 0).parts[0].dtype, layout = e.binding.experts->at(0, 0).parts[0].layout;
  } else if (!e.binding.weights->layers.empty()) {
    dtype = e.binding.weights->layers[0].o.weight.dtype, layout = e.binding.weights->layers[0].o.weight.layout;
  }
  if (layout != WeightLayout::kPanel32) return dtype == DType::kBF16 ? "bf16" : "fp32";
  return dtype == DType::kI8 || dtype == DType::kF4 ? "int8" : dtype == DType::kBF16 || dtype == DType::kF8E4M3 ? "bf16" : "fp32";
}

// Where all experts fit, a decoded token reads none from disk: they are read before anything counts, by prompts of random tokens. Routing that never
// asks for some of them ends it, too.
Status read_all_experts(const Flags& f, Engine& engine, Session& session) {
  const MemoryPlan& plan = engine.memory_plan();
  if (plan.num_experts_total == 0 || plan.num_slots < plan.num_experts_total) return ok_status();
  const int64_t vocab = num_token_ids(engine);
  std::vector<int32_t> prompt(static_cast<size_t>(std::min<int64_t>(512, session.context_length())));
  for (uint64_t pass = 0; pass < 16; ++pass) {
    if (was_interrupted()) return {StatusCode::kUnavailable, "interrupted"};
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = random_token(static_cast<uint64_t>(f.seed) + 1000 + pass, i, vocab);
    const uint64_t before = engine.stats().experts.misses;
    PM_RETURN_IF_ERROR(session.rewind(0));
    PM_RETURN_IF_ERROR(session.prefill(prompt).status());
    if (engine.stats().experts.misses == before) break;
  }
  return ok_status();
}

uint64_t disk_bytes(const Engine& engine) {
  const EngineStats s = engine.stats();
  return s.experts.bytes_read + s.dense_on_demand.bytes_read;
}

Status measure(const Flags& f, Engine& engine, Run& run) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session, engine.new_session());
  const int64_t vocab = num_token_ids(engine);
  const int64_t prompt_tokens = std::min(f.prompt, session->context_length() - 1);
  const int64_t steps = std::min(f.tokens, session->context_length() - prompt_tokens);
  const Engine::Impl& e = engine.impl();
  const void* const weights = e.device->host_visible() ? e.weights.data() : nullptr;
  run.active_bytes = engine.memory_plan().active_weight_bytes_per_token;
  run.expected_disk_bytes = engine.memory_plan().expected_disk_bytes_per_token;
  run.prefill_flops_per_token = flops_per_prompt_token(engine);
  run.arithmetic = arithmetic_of(e, run);
  PM_RETURN_IF_ERROR(read_all_experts(f, engine, *session));
  // The first repetition warms up: pages, caches, experts.
  for (int64_t repetition = 0; repetition <= f.repeat; ++repetition) {
    const bool counts = repetition > 0;
    if (repetition == 1) engine.reset_stats();
    PM_RETURN_IF_ERROR(session->rewind(0));
    const uint64_t seed = static_cast<uint64_t>(f.seed + repetition);
    std::vector<int32_t> prompt(static_cast<size_t>(prompt_tokens));
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = random_token(seed, i, vocab);
    auto start = Clock::now();
    PM_ASSIGN_OR_RETURN(std::span<const float> logits, session->prefill(prompt));
    if (counts) run.prefill_tps.push_back(static_cast<double>(prompt_tokens) / seconds_since(start));
    const uint64_t disk_before = disk_bytes(engine);
    double decode_s = 0;
    for (int64_t i = 0; i < steps; ++i) {
      if (was_interrupted()) return {StatusCode::kUnavailable, "interrupted"};
      const int32_t token =
          f.feed == "random" ? random_token(seed, static_cast<uint64_t>(prompt_tokens + i), vocab)
                             : static_cast<int32_t>(std::max_element(logits.begin(), logits.begin() + vocab) - logits.begin());
      start = Clock::now();
      PM_ASSIGN_OR_RETURN(logits, session->decode(token));
      const double s = seconds_since(start);
      decode_s += s;
      if (counts) run.token_ms.push_back(1e3 * s);
      if (counts && weights != nullptr && i % kTokensPerWindow == 0) {
        ops::measure_read_rate(*e.pool, e.kernels.isa, weights, e.weights.size_bytes(), i / kTokensPerWindow, 1, run.read_gbps);
      }
    }
    if (counts) {
      run.decode_tps.push_back(static_cast<double>(steps) / decode_s);
      run.decode_disk_bytes += disk_bytes(engine) - disk_before;
      run.decode_steps += static_cast<uint64_t>(steps);
    }
  }
  run.engine = Json::object();
  add_engine_stats(run.engine, engine);
  const EngineStats s = engine.stats();
  const double asked = static_cast<double>(s.experts.hits + s.experts.misses);
  run.line = asked > 0 ? format("{:.1f} % hits, {} read", 100 * static_cast<double>(s.experts.hits) / asked,
                                human_bytes(static_cast<double>(s.experts.bytes_read)))
                       : "dense";
  return ok_status();
}

void print_run(const Run& r) {
  if (!r.by_sessions.empty()) {
    std::printf("budget %s, %.2f GB/s of memory%s\n", human_bytes(static_cast<double>(r.budget_bytes)).c_str(), r.stream_gbps,
                r.disturbed ? ", other processes held the cores" : "");
    return print_sessions(r.by_sessions, r.stream_gbps);
  }
  std::printf("budget %s\n", human_bytes(static_cast<double>(r.budget_bytes)).c_str());
  std::printf("  prefill %9.1f tokens/s  (%.1f to %.1f)  %.1f of %.0f GFLOP/s of %s (%.0f %%)\n", median(r.prefill_tps),
              quantile(r.prefill_tps, 0), quantile(r.prefill_tps, 1), r.prefill_gflops(), r.peak_gflops(), r.arithmetic, 100 * r.of_peak());
  std::printf("  decode  %9.1f tokens/s  (%.1f to %.1f)  p50 %.3f ms  p95 %.3f ms  p99 %.3f ms\n", median(r.decode_tps),
              quantile(r.decode_tps, 0), quantile(r.decode_tps, 1), quantile(r.token_ms, 0.5), quantile(r.token_ms, 0.95),
              quantile(r.token_ms, 0.99));
  std::printf("  weights %9.2f GB/s of %.2f GB/s that memory gives at best (%.0f %%)  %s%s\n", r.weight_gbps(), r.stream_gbps,
              100 * r.of_stream(), r.line.c_str(),
              r.disturbed ? "\n  other processes held the cores: fractions mean little" : "");
  if (!r.read_gbps.empty()) {
    std::printf("  memory  %9.2f GB/s between tokens (%.2f to %.2f); the median token read weights at %.0f %% of that\n", median(r.read_gbps),
                quantile(r.read_gbps, 0.1), quantile(r.read_gbps, 0.9), 100 * r.of_read());
  }
  if (r.expected_disk_bytes > 0 || r.decode_disk_bytes > 0) {
    std::printf("  disk    %s per decoded token, the plan says %s\n", human_bytes(r.disk_bytes_per_token()).c_str(),
                human_bytes(static_cast<double>(r.expected_disk_bytes)).c_str());
  }
}

std::string limits_text(const Run& r) {
  std::string text = format("{} threads, memory reads {:.1f} GB/s, fp32 {:.0f} GFLOP/s", r.threads, r.stream_gbps, r.fp32_gflops);
  if (r.bf16_gflops > 0) text += format(", bf16 {:.0f} GFLOP/s", r.bf16_gflops);
  if (r.int8_gops > 0) text += format(", int8 {:.0f} GOP/s", r.int8_gops);
  return text;
}

void print_limits(const Run& r) {
  std::printf("limits  %s\n", limits_text(r).c_str());
  std::fflush(stdout);
}

void print_markdown(const std::vector<Run>& runs) {
  std::printf("Limits of the machine, best of each run: ");
  for (size_t i = 0; i < runs.size(); ++i) {
    std::printf("%s%s", i > 0 ? "; " : "", limits_text(runs[i]).c_str());
  }
  std::printf("\n\n| budget | prefill tokens/s | of peak | decode tokens/s (min to max) | p50 / p95 / p99 ms | weights GB/s | of memory between tokens | of memory at "
              "best | experts | disk per token |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Run& r : runs) {
    std::printf("| %s | %.1f | %.0f %% | %.1f (%.1f to %.1f) | %.2f / %.2f / %.2f | %.1f | %s | %.0f %% | %s | %s |\n",
                human_bytes(static_cast<double>(r.budget_bytes)).c_str(), median(r.prefill_tps), 100 * r.of_peak(), median(r.decode_tps),
                quantile(r.decode_tps, 0), quantile(r.decode_tps, 1), quantile(r.token_ms, 0.5), quantile(r.token_ms, 0.95), quantile(r.token_ms, 0.99),
                r.weight_gbps(), r.read_gbps.empty() ? "-" : format("{:.0f} % of {:.1f}", 100 * r.of_read(), median(r.read_gbps)).c_str(),
                100 * r.of_stream(), r.line.c_str(), human_bytes(r.disk_bytes_per_token()).c_str());
  }
  for (const Run& r : runs) {
    if (r.disturbed) std::printf("\nOther processes held the cores at %s: fractions mean little.\n", human_bytes(static_cast<double>(r.budget_bytes)).c_str());
  }
}

Json spread(const std::vector<double>& values) {
  Json j = Json::object();
  j.set("median", median(values));
  j.set("min", quantile(values, 0));
  j.set("max", quantile(values, 1));
  return j;
}

Json to_json(const Run& r) {
  Json j = Json::object();
  j.set("budget_bytes", r.budget_bytes);
  if (!r.by_sessions.empty()) {
    j.set("stream_gbps", r.stream_gbps);
    j.set("disturbed", r.disturbed);
    j.set("by_sessions", sessions_json(r.by_sessions));
    return j;
  }
  j.set("prefill_tokens_per_s", spread(r.prefill_tps));
  j.set("prefill_gflops", r.prefill_gflops());
  j.set("arithmetic", r.arithmetic);
  j.set("peak_gflops", r.peak_gflops());
  j.set("of_peak", r.of_peak());
  j.set("decode_tokens_per_s", spread(r.decode_tps));
  Json ms = Json::object();
  ms.set("p50", quantile(r.token_ms, 0.5));
  ms.set("p95", quantile(r.token_ms, 0.95));
  ms.set("p99", quantile(r.token_ms, 0.99));
  ms.set("max", quantile(r.token_ms, 1));
  j.set("token_ms", std::move(ms));
  j.set("active_weight_bytes_per_token", r.active_bytes);
  j.set("weight_gbps", r.weight_gbps());
  j.set("stream_gbps", r.stream_gbps);
  j.set("of_stream", r.of_stream());
  if (!r.read_gbps.empty()) {
    j.set("read_gbps", spread(r.read_gbps));
    j.set("of_read", r.of_read());
  }
  j.set("threads", r.threads);
  j.set("disk_bytes_per_token", r.disk_bytes_per_token());
  j.set("expected_disk_bytes_per_token", r.expected_disk_bytes);
  j.set("disturbed", r.disturbed);
  j.set("engine", r.engine);
  return j;
}

Result<std::vector<uint64_t>> parse_budgets(const Flags& f, const EngineOptions& options) {
  std::vector<uint64_t> budgets;
  for (size_t begin = 0; begin < f.budgets.size();) {
    const size_t end = std::min(f.budgets.find(',', begin), f.budgets.size());
    PM_ASSIGN_OR_RETURN(const uint64_t bytes, parse_bytes(f.budgets.substr(begin, end - begin)));
    budgets.push_back(bytes);
    begin = end + 1;
  }
  if (budgets.empty()) budgets.push_back(options.memory_bytes);
  return budgets;
}

// Limits of the machine with the model's threads and numerics, kept as the best of two measurements around the run.
Status measure_limits(const Flags& f, const EngineOptions& options, int threads, Run& run) {
  const CpuFeatures cpu = detect_cpu_features();
  PM_ASSIGN_OR_RETURN(const Isa isa, choose_isa(options.isa, cpu));
  ThreadPool pool(threads);
  const std::unique_ptr<Device> device = make_cpu_device();
  PM_ASSIGN_OR_RETURN(const ops::MachineLimits limits,
                      ops::measure_machine_limits(*device, pool, isa, cpu, {.read_bytes = f.stream_mib << 20, .repeats = 5}));
  run.threads = threads;
  run.stream_gbps = std::max(run.stream_gbps, limits.read_gb_s);
  run.fp32_gflops = std::max(run.fp32_gflops, limits.fma_gflop_s);
  run.bf16_gflops = std::max(run.bf16_gflops, limits.bf16_gflop_s);
  run.int8_gops = std::max(run.int8_gops, limits.int8_gop_s);
  run.disturbed |= limits.disturbed;
  return ok_status();
}

// Loads the model for one budget. The buffer of the limits is gone while it runs.
Status measure_budget(const Flags& f, EngineOptions options, uint64_t budget, Run& run, bool& running) {
  options.memory_bytes = budget;
  int threads = 0;
  {
    PM_ASSIGN_OR_RETURN(const MemoryPlan plan, Engine::plan(options));
    if (!plan.fits()) {
      return error(StatusCode::kBudgetExceeded, "the smallest budget is {} bytes, {} was given", plan.smallest_budget_bytes,
                   plan.budget_bytes);
    }
    threads = plan.num_threads;
    PM_RETURN_IF_ERROR(measure_limits(f, options, threads, run));
    if (!f.json && !f.markdown) print_limits(run);
    PM_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, load_with_progress(options, !f.engine.log.no_progress));
    running = true;
    run.budget_bytes = engine->memory_plan().budget_bytes;
    if (f.sessions.empty()) {
      PM_RETURN_IF_ERROR(measure(f, *engine, run));
    } else {
      SessionsBench bench{.tokens = f.tokens, .prompt = f.prompt, .repeat = f.repeat, .seed = f.seed};
      PM_ASSIGN_OR_RETURN(bench.sizes, parse_sessions(f.sessions));
      PM_ASSIGN_OR_RETURN(run.by_sessions, measure_sessions(bench, *engine));
    }
    PM_RETURN_IF_ERROR(engine->save_hot_set());
  }
  return measure_limits(f, options, threads, run);
}

}  // namespace

int run_bench_decode(int argc, char** argv) {
  ArgParser args(kName, "Prefill and decode rates with a prompt of random tokens, per budget.",
                 "  pointsman bench decode MODEL --budgets 12MiB,24MiB,48MiB -n 64 --json\n"
                 "  pointsman bench decode MODEL --memory 2GiB --feed greedy\n"
                 "  pointsman bench decode MODEL --memory 4GiB --sessions 1,2,4,8,16,32 -n 16\n"
                 "Tokens are random by default: routing is spread, as text spreads it, and does not run in circles.\n"
                 "The buffer of the memory rate is outside the budget, and gone while the model runs.\n");
  Flags f;
  f.engine.declare(args);
  args.option("-n,--max-tokens", f.tokens, "tokens to decode per repetition (default: 64)");
  args.option("--prompt-tokens", f.prompt, "tokens of the prompt (default: 128)");
  args.option("--repeat", f.repeat, "repetitions after one that warms up (default: 3)");
  args.option("--budgets", f.budgets, "several budgets, one after the other: 12MiB,24MiB (default: --memory)");
  args.option("--feed", f.feed, "random (default) or greedy: what is decoded next");
  args.option("--sessions", f.sessions, "so many sessions decode together, one number after the other: 1,2,4,8 (at most 64)");
  args.option("--seed", f.seed, "seed of the random tokens (default: 0)");
  args.option("--stream-mib", f.stream_mib, "buffer that the memory rate is measured with (default: 256)");
  args.flag("--json", f.json, "one JSON object");
  args.flag("--markdown", f.markdown, "a table in Markdown");
  if (auto code = args.parse(argc, argv)) return *code;
  if (f.tokens < 1 || f.prompt < 1 || f.repeat < 1 || f.seed < 0 || f.stream_mib < 1) {
    return usage_error(kName, "-n, --prompt-tokens, --repeat and --stream-mib must be 1 or more, --seed 0 or more");
  }
  if (f.feed != "random" && f.feed != "greedy")
    return usage_error(kName, format("--feed {}: expected random or greedy", f.feed));
  if (f.json && f.markdown) return usage_error(kName, "--json and --markdown: only one of them");
  EngineOptions options;
  if (auto code = f.engine.resolve(kName, options)) return *code;
  if (!f.sessions.empty()) {
    const Result<std::vector<int64_t>> sizes = parse_sessions(f.sessions);
    if (!sizes.ok()) return usage_error(kName, sizes.status());
    if (f.feed != "random") return usage_error(kName, "--feed greedy is for one session; --sessions decodes random tokens");
    options.max_sessions = *std::max_element(sizes->begin(), sizes->end());
  }
  const Result<std::vector<uint64_t>> budgets = parse_budgets(f, options);
  if (!budgets.ok()) return usage_error(kName, budgets.status().with_context("--budgets"));
  catch_interrupts();
  Json list = Json::array();
  std::vector<Run> runs;
  for (const uint64_t budget : *budgets) {
    Run run;
    bool running = false;
    if (const Status s = measure_budget(f, options, budget, run, running); !s.ok()) return report(kName, s, running);
    if (f.json) {
      list.push_back(to_json(run));
    } else if (f.markdown) {
      runs.push_back(std::move(run));
    } else {
      print_run(run);
      std::fflush(stdout);
    }
  }
  if (f.markdown) print_markdown(runs);
  if (f.json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("model", options.model_dir);
    j.set("tokens", f.tokens);
    j.set("prompt_tokens", f.prompt);
    j.set("repeat", f.repeat);
    j.set("feed", f.feed);
    j.set("runs", std::move(list));
    print_json(j);
  }
  return kExitOk;
}

}  // namespace pointsman::cli
