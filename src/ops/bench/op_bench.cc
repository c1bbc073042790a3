// SPDX-License-Identifier: Apache-2.0
#include "ops/bench/op_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>

#include "base/log.h"
#include "base/thread_pool.h"

namespace pointsman::ops {
namespace {

// Memory of the bench: one region for everything that an op may find in the caches, one to wander through.
struct Memory {
  Memory(Device& d, void* p, size_t n) : device(d), data(static_cast<std::byte*>(p)), bytes(n) {}
  ~Memory() { device.free(data, bytes); }
  Memory(const Memory&) = delete;
  Device& device;
  std::byte* data;
  size_t bytes;
};

Result<std::unique_ptr<Memory>> take(Device& device, int64_t bytes) {
  const size_t n = (static_cast<size_t>(bytes) + kPageBytes - 1) / kPageBytes * kPageBytes;
  PM_ASSIGN_OR_RETURN(void* p, device.allocate(n));
  return std::make_unique<Memory>(device, p, n);
}

// Small finite numbers in every dtype: the bits 0x3cXX are 0.0078 .. in bf16, 1 .. 2 in f16, and 0x3cXX3cXX is 0.0078 .. in fp32.
void fill(Memory& m) {
  uint32_t state = 1;
  for (size_t i = 0; i + 2 <= m.bytes; i += 2) {
    state = state * 1664525u + 1013904223u;
    const auto bits = static_cast<uint16_t>(0x3c00 | (state >> 24) | (state >> 16 & 0x8000));
    std::memcpy(m.data + i, &bits, 2);
  }
}

struct Case {
  OpTiming timing;
  std::function<Status(int64_t)> run;  // argument: which call, to choose other weights each time
  std::vector<double> times;
};

class Cases {
 public:
  Cases(OpContext& ctx, Memory& weights, Memory& activations, const MachineLimits& limits, const OpBenchOptions& options)
      : ctx_(ctx), weights_(weights), activations_(activations), limits_(limits), options_(options) {}

  void matmul(DType x, DType w, int64_t rows, int64_t in, int64_t out) {
    const bool few = rows <= 8;
    const int64_t w_bytes = in * out * dtype_bits(w) / 8;
    const MatmulArgs base{.x = Tensor::matrix(activation(0), x, rows, in), .w = Tensor::matrix(nullptr, w, out, in),
                          .y = Tensor::matrix(activation(1), DType::kF32, rows, out)};
    add(format("matmul_{}_{}", short_name(x), short_name(w)), format("{} x {} -> {}", rows, in, out), static_cast<double>(w_bytes),
        2.0 * static_cast<double>(rows * in * out), x == DType::kBF16, [this, base, w_bytes, few](int64_t call) {
          MatmulArgs a = base;
          a.w.data = few ? weight(call, w_bytes) : weights_.data;
          return ops::matmul(ctx_, a);
        });
  }

  void swiglu(DType x, DType w, int64_t rows, int64_t hidden, int64_t intermediate) {
    const int64_t part = hidden * intermediate * dtype_bits(w) / 8;
    const SwigluFfnArgs base{.x = Tensor::matrix(activation(0), x, rows, hidden), .act = Tensor::matrix(activation(1), x, rows, intermediate),
                             .out = Tensor::matrix(activation(2), DType::kF32, rows, hidden),
                             .experts = {{.w_gate = Tensor::matrix(nullptr, w, intermediate, hidden), .w_up = Tensor::matrix(nullptr, w, intermediate, hidden),
                                          .w_down = Tensor::matrix(nullptr, w, hidden, intermediate), .rows = rows}}};
    // One expert after the other, as a forward pass meets them: their weights come from memory whatever the number of rows.
    add(format("swiglu_ffn_{}_{}", short_name(x), short_name(w)), format("{} x {} -> {}", rows, hidden, intermediate), static_cast<double>(3 * part),
        6.0 * static_cast<double>(rows * hidden * intermediate), x == DType::kBF16, [this, base, part](int64_t call) {
          SwigluFfnArgs a = base;
          std::byte* expert = weight(call, 3 * part);
          a.experts[0].w_gate.data = expert, a.experts[0].w_up.data = expert + part, a.experts[0].w_down.data = expert + 2 * part;
          return ops::swiglu_ffn(ctx_, a);
        });
  }

  // Packed weights of one format; `experts` of them in one call, each with so many rows.
  struct PanelFormat {
    const char* name;
    DType code, scales;  // kF32: no scales
    int32_t block;       // inputs under one scale
    DType x() const { return code == DType::kBF16 || code == DType::kF8E4M3 ? DType::kBF16 : DType::kI8; }
    int64_t code_bytes(int64_t elements) const { return elements * dtype_bits(code) / 8; }
    int64_t scale_bytes(int64_t elements) const { return scales == DType::kF32 ? 0 : elements / block * dtype_bits(scales) / 8; }
    int64_t bytes(int64_t elements) const { return code_bytes(elements) + scale_bytes(elements); }
    Weight weight(std::byte* at, int64_t out, int64_t in) const {
      Weight w(Tensor::matrix(at, code, out, in));
      w.layout = WeightLayout::kPanel32;
      if (scales != DType::kF32) w.format = {.scale_dtype = scales, .block_rows = 1, .block_cols = block}, w.scales = at + code_bytes(out * in);
      return w;
    }
    Tensor rows(std::byte* at, int64_t n, int64_t cols) const {
      return x() == DType::kI8 ? quantised_matrix(at, n, cols, block) : Tensor::matrix(at, x(), n, cols);
    }
  };
  static constexpr PanelFormat kPanelFormats[] = {{"int8", DType::kI8, DType::kBF16, 32},
                                                  {"int8_128", DType::kI8, DType::kBF16, 128},
                                                  {"mxfp4", DType::kF4, DType::kF8E8M0, 32},
                                                  {"mxfp8", DType::kF8E4M3, DType::kF8E8M0, 32},
                                                  {"bf16", DType::kBF16, DType::kF32, 32}};
  double peak_of(const PanelFormat& f) const {
    const double integer = limits_.int8_gop_s, half = limits_.bf16_gflop_s;
    const double peak = f.x() == DType::kI8 ? integer : half;
    return peak > 0 ? peak : limits_.fma_gflop_s;
  }
  void panel_matmul(const PanelFormat& f, int64_t rows, int64_t in, int64_t out) {
    const int64_t bytes = f.bytes(in * out);
    add_with_peak(format("matmul_panel_{}", f.name), format("{} x {} -> {}", rows, in, out), static_cast<double>(bytes),
                  2.0 * static_cast<double>(rows * in * out), peak_of(f), [this, f, rows, in, out, bytes](int64_t call) {
                    return ops::matmul(ctx_, {.x = f.rows(activation(0), rows, in), .w = f.weight(weight(call, bytes), out, in),
                                              .y = Tensor::matrix(activation(1), DType::kF32, rows, out)});
                  });
  }
  void panel_swiglu(const PanelFormat& f, int experts, int64_t rows, int64_t hidden, int64_t intermediate) {
    const int64_t part = (f.bytes(hidden * intermediate) + 63) / 64 * 64, bytes = 3 * part * experts;
    add_with_peak(format("swiglu_panel_{}", f.name), format("{} x {} x {} -> {}", experts, rows, hidden, intermediate),
                  static_cast<double>(3 * experts * f.bytes(hidden * intermediate)), 6.0 * static_cast<double>(experts * rows * hidden * intermediate),
                  peak_of(f), [this, f, experts, rows, hidden, intermediate, part, bytes](int64_t call) {
                    SwigluFfnArgs a{.x = f.rows(activation(0), experts * rows, hidden), .act = f.rows(activation(1), experts * rows, intermediate),
                                    .out = Tensor::matrix(activation(2), DType::kF32, experts * rows, hidden), .num_experts = experts};
                    std::byte* at = weight(call, bytes);
                    for (int e = 0; e < experts; ++e, at += 3 * part) {
                      a.experts[e] = {.w_gate = f.weight(at, intermediate, hidden), .w_up = f.weight(at + part, intermediate, hidden),
                                      .w_down = f.weight(at + 2 * part, hidden, intermediate), .first = e * rows, .rows = rows};
                    }
                    return ops::swiglu_ffn(ctx_, a);
                  });
  }
  void quantise(int64_t rows, int64_t cols) {
    add("quantise_rows", format("{} x {}", rows, cols), 0, 4.0 * static_cast<double>(rows * cols), false, [this, rows, cols](int64_t) {
      return ops::quantise_rows(ctx_, {.x = Tensor::matrix(activation(0), DType::kF32, rows, cols), .out = quantised_matrix(activation(1), rows, cols)});
    });
  }

  void attention(DType cache, int64_t tokens, int64_t first, int32_t heads, int32_t kv_heads, int32_t dim) {
    const CacheLayout layout = cache == DType::kBF16 ? CacheLayout::kTiles : CacheLayout::kRows;
    const int64_t part = cache_plane_bytes(cache, layout, kv_heads, first + tokens, dim);
    const AttentionArgs base{.q = Tensor::matrix(activation(0), DType::kF32, tokens, int64_t{heads} * dim), .cache_dtype = cache, .layout = layout,
                             .capacity = first + tokens, .sequences = {tokens, first}, .heads = heads, .kv_heads = kv_heads, .head_dim = dim,
                             .scale = 0.01f, .out = Tensor::matrix(activation(1), DType::kF32, tokens, int64_t{heads} * dim)};
    const double pairs = static_cast<double>(tokens) * (static_cast<double>(first) + static_cast<double>(tokens + 1) / 2);
    const double flops = 4.0 * heads * dim * pairs;
    add(format("attention_{}", short_name(cache)), format("{} tokens at {}, {}/{} x {}", tokens, first, heads, kv_heads, dim),
        static_cast<double>(2 * part), flops, cache == DType::kBF16, [this, base, part](int64_t call) {
          AttentionArgs a = base;
          std::byte* k = weight(call, 2 * part);
          a.k_cache = k, a.v_cache = k + part;
          return ops::attention(ctx_, a);
        });
  }

  void rms_norm(int64_t rows, int64_t cols) {
    const RmsNormArgs a{.x = Tensor::matrix(activation(0), DType::kF32, rows, cols), .weight = reinterpret_cast<const float*>(activation(1)),
                        .out_f32 = Tensor::matrix(activation(2), DType::kF32, rows, cols),
                        .out_bf16 = Tensor::matrix(activation(3), DType::kBF16, rows, cols)};
    add("rms_norm", format("{} x {}", rows, cols), 0, 4.0 * static_cast<double>(rows * cols), false, [this, a](int64_t) { return ops::rms_norm(ctx_, a); });
  }

  void qkv_prepare(DType cache, int64_t tokens, int32_t heads, int32_t kv_heads, int32_t dim) {
    const auto* f = reinterpret_cast<const float*>(activation(3));
    const QkvPrepareArgs a{.q = Tensor::matrix(activation(0), DType::kF32, tokens, int64_t{heads} * dim),
                           .k = Tensor::matrix(activation(1), DType::kF32, tokens, int64_t{kv_heads} * dim),
                           .v = Tensor::matrix(activation(2), DType::kF32, tokens, int64_t{kv_heads} * dim), .q_norm = f, .k_norm = f, .cos = f, .sin = f,
                           .heads = heads, .kv_heads = kv_heads, .head_dim = dim, .rotary_dim = dim, .k_cache = activation(4), .v_cache = activation(5),
                           .cache_dtype = cache, .capacity = tokens, .sequences = {tokens, 0}};
    add(format("qkv_prepare_{}", short_name(cache)), format("{} tokens, {}/{} x {}", tokens, heads, kv_heads, dim), 0,
        7.0 * static_cast<double>(tokens * (heads + kv_heads) * dim), false, [this, a](int64_t) { return ops::qkv_prepare(ctx_, a); });
  }

  void route(int64_t tokens, int32_t experts, int32_t top_k) {
    auto* out = activation(1);
    const RouteArgs a{.contract = {.num_experts = experts, .top_k = top_k, .normalize = true},
                      .logits = Tensor::matrix(activation(0), DType::kF32, tokens, experts), .ids = reinterpret_cast<int32_t*>(out),
                      .weights = reinterpret_cast<float*>(out) + tokens * top_k, .report = reinterpret_cast<RouterReport*>(activation(2))};
    add("route", format("{} tokens, {} of {}", tokens, top_k, experts), 0, 20.0 * static_cast<double>(tokens * experts), false,
        [this, a](int64_t) { return ops::route(ctx_, a); });
  }

  void combine(int64_t tokens, int64_t hidden, int32_t top_k) {
    const CombineArgs a{.slots = Tensor::matrix(weights_.data, DType::kF32, tokens * top_k, hidden),
                        .weights = reinterpret_cast<const float*>(activation(0)), .top_k = top_k,
                        .out = Tensor::matrix(activation(1), DType::kF32, tokens, hidden)};
    add("combine", format("{} tokens, {} x {}", tokens, top_k, hidden), 4.0 * static_cast<double>(tokens * hidden * top_k),
        2.0 * static_cast<double>(tokens * hidden * top_k), false, [this, a](int64_t) { return ops::combine(ctx_, a); });
  }

  std::vector<Case> take_all() { return std::move(cases_); }

  static constexpr int64_t kPartBytes = int64_t{32} << 20;  // 4096 rows of 2048 fp32
  static constexpr int64_t kParts = 6;

 private:
  static std::string_view short_name(DType d) { return d == DType::kBF16 ? "bf16" : d == DType::kF16 ? "f16" : "f32"; }
  std::byte* activation(int64_t part) const { return activations_.data + part * kPartBytes; }
  std::byte* weight(int64_t call, int64_t bytes) const {
    const int64_t step = (bytes + 4095) / 4096 * 4096, places = std::max<int64_t>(1, static_cast<int64_t>(weights_.bytes) / step);
    return weights_.data + call % places * step;
  }
  void add(std::string op, std::string shape, double bytes, double flops, bool bf16, std::function<Status(int64_t)> run) {
    add_with_peak(std::move(op), std::move(shape), bytes, flops, bf16 && limits_.bf16_gflop_s > 0 ? limits_.bf16_gflop_s : limits_.fma_gflop_s, std::move(run));
  }
  void add_with_peak(std::string op, std::string shape, double bytes, double flops, double peak, std::function<Status(int64_t)> run) {
    if (!options_.filter.empty() && (op + " " + shape).find(options_.filter) == std::string::npos) return;
    Case c;
    c.timing = {.op = std::move(op), .shape = std::move(shape), .bytes = bytes, .flops = flops, .peak_gflop_s = peak,
                .limit_s = std::max(bytes / (limits_.read_gb_s * 1e9), flops / (peak * 1e9))};
    c.run = std::move(run);
    cases_.push_back(std::move(c));
  }

  OpContext& ctx_;
  Memory& weights_;
  Memory& activations_;
  const MachineLimits& limits_;
  const OpBenchOptions& options_;
  std::vector<Case> cases_;
};

}  // namespace

Result<std::vector<OpTiming>> bench_ops(Device& device, ThreadPool& pool, const KernelTable& table, const MachineLimits& limits,
                                        const OpBenchOptions& options) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.make_stream());
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> weights, take(device, std::max(options.weight_bytes, int64_t{256} << 20)));
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> activations, take(device, Cases::kParts * Cases::kPartBytes));
  fill(*weights), fill(*activations);
  FallbackCounters fallbacks;
  OpContext ctx{.stream = stream.get(), .pool = &pool, .kernels = &table, .fallbacks = &fallbacks};
  constexpr DType kF = DType::kF32, kB = DType::kBF16, kH = DType::kF16;

  Cases all(ctx, *weights, *activations, limits, options);
  // Decode: weights from memory. 32 MiB take a millisecond: enough to wander out of the caches, short against a time slice.
  for (const int64_t rows : {1, 2, 4, 8}) all.matmul(kB, kB, rows, 2048, 8192);
  all.matmul(kB, kB, 1, 1024, 2048);
  all.matmul(kF, kB, 1, 2048, 8192);
  all.matmul(kF, kH, 1, 2048, 8192);
  all.matmul(kF, kF, 1, 2048, 8192);
  for (const int64_t rows : {1, 2, 4, 8, 16, 64}) all.swiglu(kB, kB, rows, 2048, 768);
  all.swiglu(kF, kB, 1, 2048, 768);
  // Prefill: arithmetic.
  for (const int64_t rows : {16, 64, 128, 512}) all.matmul(kB, kB, rows, 1024, 512);
  for (const int64_t rows : {64, 512}) all.matmul(kB, kB, rows, 2048, 4096);
  for (const int64_t rows : {64, 512}) all.matmul(kF, kB, rows, 2048, 2048);
  all.matmul(kF, kH, 64, 2048, 2048);
  all.matmul(kF, kF, 64, 2048, 2048);
  // Packed weights: experts of the shapes M and L (docs/performance.md), and a projection.
  for (const Cases::PanelFormat& f : Cases::kPanelFormats) {
    for (const int64_t rows : {1, 4, 16, 64}) all.panel_swiglu(f, 8, rows, 1024, 512), all.panel_swiglu(f, 8, rows, 2048, 768);
    all.panel_matmul(f, 1, 1024, 4096), all.panel_matmul(f, 512, 1024, 2048);
  }
  all.quantise(1, 2048), all.quantise(512, 1024);
  all.attention(kB, 1, 4095, 32, 4, 128);
  all.attention(kF, 1, 4095, 32, 4, 128);
  all.attention(kB, 1, 4095, 16, 16, 128);
  all.attention(kB, 1, 32767, 32, 4, 128);
  all.attention(kB, 128, 1024, 32, 4, 128);
  all.attention(kB, 128, 1024, 16, 16, 128);
  for (const int64_t tokens : {512, 2048, 4096}) all.attention(kB, tokens, 0, 16, 4, 128), all.attention(kB, tokens, 0, 16, 16, 128);
  all.attention(kF, 512, 0, 16, 4, 128);
  all.rms_norm(1, 2048), all.rms_norm(256, 2048);
  all.qkv_prepare(kB, 1, 32, 4, 128), all.qkv_prepare(kB, 128, 32, 4, 128);
  all.route(1, 128, 8), all.route(512, 128, 8), all.route(512, 384, 6);
  all.combine(1, 2048, 8), all.combine(256, 2048, 8);
  std::vector<Case> cases = all.take_all();

  int64_t call = 0;
  for (int repeat = -1; repeat < options.repeats; ++repeat) {  // the first round warms up
    for (Case& c : cases) {
      // At least a tenth of a millisecond per measurement, so that the clock and the start of threads do not count.
      const int inner = static_cast<int>(std::clamp(1e-4 / std::max(c.timing.limit_s, 1e-9), 1.0, 200.0));
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < inner; ++i) PM_RETURN_IF_ERROR(c.run(call++));
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / inner;
      if (repeat >= 0) c.times.push_back(s);
    }
  }
  std::vector<OpTiming> timings;
  for (Case& c : cases) {
    std::sort(c.times.begin(), c.times.end());
    c.timing.best_s = c.times.empty() ? 0 : c.times.front();
    c.timing.median_s = c.times.empty() ? 0 : c.times[c.times.size() / 2];
    timings.push_back(c.timing);
  }
  return timings;
}

std::string op_bench_table(const MachineLimits& l, const std::vector<OpTiming>& timings) {
  std::string s = format("limits      1 thread  {} threads\n  read GB/s   {:8.1f}   {:8.1f}\n  copy GB/s   {:8.1f}   {:8.1f}   past the caches, read + written\n"
                         "  fma GFLOP/s {:8.1f}   {:8.1f}\n", l.threads, l.read_gb_s_one, l.read_gb_s, l.copy_gb_s_one, l.copy_gb_s, l.fma_gflop_s_one,
                         l.fma_gflop_s);
  if (l.bf16_gflop_s > 0) s += format("  bf16 GFLOP/s{:8.1f}   {:8.1f}\n", l.bf16_gflop_s_one, l.bf16_gflop_s);
  if (l.int8_gop_s > 0) s += format("  int8 GOP/s  {:8.1f}   {:8.1f}\n", l.int8_gop_s_one, l.int8_gop_s);
  if (l.disturbed) s += "  these limits are too low: other processes held the cores, and the fractions below mean little\n";
  s += format("\n{:<22} {:<26} {:>10} {:>10} {:>8} {:>9} {:>9}\n", "op", "shape", "best us", "median us", "GB/s", "GFLOP/s", "of limit");
  for (const OpTiming& t : timings) {
    s += format("{:<22} {:<26} {:>10.1f} {:>10.1f} {:>8.1f} {:>9.1f} {:>8.0f}%\n", t.op, t.shape, t.best_s * 1e6, t.median_s * 1e6,
                t.bytes / t.best_s * 1e-9, t.flops / t.best_s * 1e-9, 100 * t.fraction());
  }
  return s;
}

std::string op_bench_markdown(const MachineLimits& l, const std::vector<OpTiming>& timings) {
  std::string s = format("| limit | 1 thread | {} threads |\n|---|---|---|\n| read GB/s | {:.1f} | {:.1f} |\n| copy past the caches GB/s | {:.1f} | {:.1f} |\n"
                         "| fma GFLOP/s | {:.1f} | {:.1f} |\n", l.threads, l.read_gb_s_one, l.read_gb_s, l.copy_gb_s_one, l.copy_gb_s, l.fma_gflop_s_one, l.fma_gflop_s);
  if (l.bf16_gflop_s > 0) s += format("| bf16 GFLOP/s | {:.1f} | {:.1f} |\n", l.bf16_gflop_s_one, l.bf16_gflop_s);
  s += "\n| op | shape | best us | median us | GB/s | GFLOP/s | of limit |\n|---|---|---|---|---|---|---|\n";
  for (const OpTiming& t : timings) {
    s += format("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} % |\n", t.op, t.shape, t.best_s * 1e6, t.median_s * 1e6, t.bytes / t.best_s * 1e-9,
                t.flops / t.best_s * 1e-9, 100 * t.fraction());
  }
  return s;
}

Json op_bench_json(const MachineLimits& l, const std::vector<OpTiming>& timings) {
  Json limits = Json::object();
  limits.set("threads", l.threads);
  limits.set("read_gb_s_one", l.read_gb_s_one);
  limits.set("read_gb_s", l.read_gb_s);
  limits.set("copy_gb_s_one", l.copy_gb_s_one);
  limits.set("copy_gb_s", l.copy_gb_s);
  limits.set("fma_gflop_s_one", l.fma_gflop_s_one);
  limits.set("fma_gflop_s", l.fma_gflop_s);
  limits.set("bf16_gflop_s_one", l.bf16_gflop_s_one);
  limits.set("bf16_gflop_s", l.bf16_gflop_s);
  limits.set("disturbed", l.disturbed);
  limits.set("int8_gop_s_one", l.int8_gop_s_one);
  limits.set("int8_gop_s", l.int8_gop_s);
  Json list = Json::array();
  for (const OpTiming& t : timings) {
    Json j = Json::object();
    j.set("op", t.op);
    j.set("shape", t.shape);
    j.set("bytes", t.bytes);
    j.set("flops", t.flops);
    j.set("peak_gflop_s", t.peak_gflop_s);
    j.set("best_s", t.best_s);
    j.set("median_s", t.median_s);
    j.set("limit_s", t.limit_s);
    j.set("fraction", t.fraction());
    list.push_back(std::move(j));
  }
  Json out = Json::object();
  out.set("limits", std::move(limits));
  out.set("ops", std::move(list));
  return out;
}

}  // namespace pointsman::ops
