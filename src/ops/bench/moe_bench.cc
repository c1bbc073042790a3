// SPDX-License-Identifier: Apache-2.0
#include "ops/bench/moe_bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>

#include "base/check.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "ops/bench/plain_permute.h"
#include "ops/bench/stepwise_gate.h"

namespace pointsman::ops {
namespace {

using Run = std::function<Status()>;

struct Timed {
  double median, low, high;
};
Timed summary(std::vector<double> t) {
  std::sort(t.begin(), t.end());
  const auto at = [&](double q) { return t[static_cast<size_t>(q * static_cast<double>(t.size() - 1))]; };
  return {at(0.5), at(0.1), at(0.9)};
}

// In turn, so that a disturbance of a moment hits all of them; each measurement is repeated inside until it takes a tenth of a millisecond.
Status time_in_turn(std::vector<Run>& runs, int repeats, std::vector<Timed>& out) {
  std::vector<std::vector<double>> times(runs.size());
  std::vector<int> inner(runs.size(), 1);
  for (int repeat = -2; repeat < repeats; ++repeat) {  // one round to touch the memory, one to see how long a call takes
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto start = std::chrono::steady_clock::now();
      for (int n = 0; n < inner[i]; ++n) PM_RETURN_IF_ERROR(runs[i]());
      const double s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / inner[i];
      if (repeat == -1) inner[i] = static_cast<int>(std::clamp(1e-4 / s, 1.0, 1000.0));
      if (repeat >= 0) times[i].push_back(s);
    }
  }
  for (auto& t : times) out.push_back(summary(std::move(t)));
  return ok_status();
}

class Arena {
 public:
  Arena(Device& device, void* p, size_t bytes) : device_(device), data_(static_cast<std::byte*>(p)), bytes_(bytes) {}
  ~Arena() { device_.free(data_, bytes_); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  template <class T>
  T* take(int64_t n) {
    T* p = reinterpret_cast<T*>(data_ + used_);
    used_ += (static_cast<size_t>(n) * sizeof(T) + 4095) / 4096 * 4096;
    PM_CHECK(used_ <= bytes_);
    return p;
  }
  void reset() { used_ = 0; }

 private:
  Device& device_;
  std::byte* data_;
  size_t bytes_, used_ = 0;
};
Result<std::unique_ptr<Arena>> make_arena(Device& device, size_t bytes) {
  bytes = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  PM_ASSIGN_OR_RETURN(void* p, device.allocate(bytes));
  return std::make_unique<Arena>(device, p, bytes);
}

StepwiseGate stepwise_gate_of(Isa isa) {
  return isa == Isa::kAvx512 ? stepwise_gate_avx512 : isa == Isa::kAvx2 ? stepwise_gate_avx2 : stepwise_gate_scalar;
}

class Bench {
 public:
  Bench(OpContext& ctx, Device& device, const MoeBenchOptions& options) : ctx_(ctx), device_(device), options_(options) {}

  Status gate(const char* kind, const RouterContract& c, bool biased, int64_t tokens) {
    const std::string shape = format("{} of {}{}, {} tokens", c.top_k, c.num_experts, kind, tokens);
    if (!wanted("route", shape)) return ok_status();
    const int64_t n = c.num_experts, k = c.top_k;
    PM_ASSIGN_OR_RETURN(const auto arena, make_arena(device_, static_cast<size_t>(tokens * (3 * n + 4 * k) * 4 + 3 * n * 4 + 16 * 4096)));
    auto* z = arena->take<float>(tokens * n);
    auto* bias = arena->take<float>(n);
    std::normal_distribution<float> normal(0, 1.5f);
    for (int64_t i = 0; i < tokens * n; ++i) z[i] = normal(rng_);
    for (int64_t i = 0; i < n; ++i) bias[i] = 0.03f * normal(rng_);
    RouterReport* report = arena->take<RouterReport>(1);
    RouteArgs fused{.contract = c, .logits = Tensor::matrix(z, DType::kF32, tokens, n), .bias = biased ? bias : nullptr, .ids = arena->take<int32_t>(tokens * k),
                    .weights = arena->take<float>(tokens * k), .counts = arena->take<int32_t>(n), .report = report};
    RouteArgs apart = fused;
    apart.ids = arena->take<int32_t>(tokens * k), apart.weights = arena->take<float>(tokens * k), apart.counts = arena->take<int32_t>(n);
    const StepwiseGateBuffers buffers{.score = arena->take<float>(tokens * n), .selection = arena->take<float>(tokens * n)};
    const StepwiseGate stepwise = stepwise_gate_of(ctx_.kernels->isa);
    std::vector<Run> runs = {[&] { return route(ctx_, fused); }, [&] {
                               stepwise(*ctx_.pool, apart, buffers);
                               return ok_status();
                             }};
    PM_RETURN_IF_ERROR(compare("route", shape, "separate passes", 0, runs, options_.repeats));
    // Two ways to one answer: another would make the comparison void.
    int64_t different = 0;
    for (int64_t i = 0; i < tokens * k; ++i) different += fused.ids[i] != apart.ids[i] ? 1 : 0;
    if (different * 1000 > tokens * k) return error(StatusCode::kInternal, "route {}: the separate passes chose {} other experts", shape, different);
    return ok_status();
  }

  Status move_rows(int64_t hidden, int64_t tokens, bool plain) {
    constexpr int32_t kTopK = 8, kExperts = 64;
    const int64_t slots = tokens * kTopK;
    const std::string shape = format("{} tokens x {}, {} x {} bf16", tokens, kTopK, kExperts, hidden);
    const bool permutes = wanted("permute", shape), combines = wanted("combine", shape);
    if (!permutes && !combines) return ok_status();
    const int64_t copied = std::max(slots * hidden, int64_t{128} << 20);  // elements that the copy wanders through: more than the caches hold
    PM_ASSIGN_OR_RETURN(const auto arena, make_arena(device_, static_cast<size_t>((tokens + 2 * slots) * hidden * 2 + copied * 2 + tokens * hidden * 4 + slots * 16 +
                                                                                  16 * 4096)));
    auto* x = arena->take<bf16>(tokens * hidden);
    auto* y = arena->take<bf16>(slots * hidden);
    auto* z = arena->take<bf16>(slots * hidden);
    auto* source = arena->take<bf16>(copied);
    auto* out = arena->take<float>(tokens * hidden);
    auto* weights = arena->take<float>(slots);
    auto* ids = arena->take<int32_t>(slots);
    auto* slot_row = arena->take<int32_t>(slots);
    auto* offsets = arena->take<int32_t>(kExperts + 1);
    for (int64_t i = 0; i < tokens * hidden; ++i) x[i] = {static_cast<uint16_t>(0x3c00 | (i * 2654435761u >> 24 & 255))};
    std::memset(static_cast<void*>(source), 1, static_cast<size_t>(copied) * 2);
    for (int64_t i = 0; i < slots; ++i) weights[i] = 0.125f;
    int32_t all[kExperts];
    std::iota(all, all + kExperts, 0);
    for (int64_t t = 0; t < tokens; ++t) {
      std::shuffle(all, all + kExperts, rng_);
      std::copy_n(all, kTopK, ids + t * kTopK);
    }
    const auto permuted = [&] {
      PM_RETURN_IF_ERROR(permute_index(ctx_, {.ids = ids, .tokens = tokens, .top_k = kTopK, .num_experts = kExperts, .offsets = offsets, .slot_row = slot_row}));
      return permute(ctx_, {.x = Tensor::matrix(x, DType::kBF16, tokens, hidden), .slot_row = slot_row, .top_k = kTopK,
                            .out = Tensor::matrix(y, DType::kBF16, slots, hidden)});
    };
    const auto combined = [&] {
      return combine(ctx_, {.slots = Tensor::matrix(y, DType::kBF16, slots, hidden), .weights = weights, .slot_row = slot_row, .top_k = kTopK, .accumulate = false,
                            .out = Tensor::matrix(out, DType::kF32, tokens, hidden)});
    };
    // The copy: the permute operator itself on rows that stay in order, so that it copies with the same instructions. Its source moves on.
    auto* in_order = arena->take<int32_t>(slots);
    std::iota(in_order, in_order + slots, 0);
    int64_t at = 0;
    const auto copy = [&] {
      if (at + slots * hidden > copied) at = 0;
      const bf16* from = source + at;
      at += slots * hidden;
      return permute(ctx_, {.x = Tensor::matrix(const_cast<bf16*>(from), DType::kBF16, slots, hidden), .slot_row = in_order, .top_k = 1,
                            .out = Tensor::matrix(z, DType::kBF16, slots, hidden)});
    };
    std::vector<Run> runs = {permuted, combined, copy};
    std::vector<Timed> t;
    PM_RETURN_IF_ERROR(time_in_turn(runs, std::min(options_.repeats, 9), t));
    const double half = 2.0 * static_cast<double>(slots * hidden), read = 2.0 * static_cast<double>(tokens * hidden);
    if (permutes) add("permute", shape, "copy of its output", half + read, t[0], t[2]);
    if (combines) add("combine", shape, "copy of its input", half + 2 * read, t[1], t[2]);
    if (!plain) return ok_status();
    runs = {[&] {
              PM_RETURN_IF_ERROR(permuted());
              return combined();
            },
            [&] {
              const PlainPermuted p = plain_permute(*ctx_.pool, x, ids, tokens, hidden, kTopK);
              const std::vector<float> sum = plain_combine(*ctx_.pool, p, weights, tokens, hidden, kTopK);
              std::memcpy(static_cast<void*>(z), sum.data(), 4);
              return ok_status();
            }};
    t.clear();
    PM_RETURN_IF_ERROR(time_in_turn(runs, 3, t));
    add("permute+combine", shape, "expand, sort, gather; scatter, scale, sum", 2 * half + 3 * read, t[0], t[1]);
    return ok_status();
  }

  // One layer of the shape that the documents call M, in bf16, as a forward pass calls its operators.
  Status layer(int64_t tokens) {
    if (!wanted("layer", "")) return ok_status();
    constexpr int64_t kHidden = 1024, kWidth = 512, kHeads = 16, kKvHeads = 4, kDim = 128;
    constexpr int32_t kExperts = 64, kTopK = 8;
    const int64_t slots = tokens * kTopK, q_cols = kHeads * kDim, kv_cols = kKvHeads * kDim, part = kHidden * kWidth;
    const int64_t weight_elements = kExperts * 3 * part + kHidden * (2 * q_cols + 2 * kv_cols + kExperts);
    PM_ASSIGN_OR_RETURN(const auto arena, make_arena(device_, static_cast<size_t>(weight_elements * 2 + tokens * (6 * kHidden + 2 * q_cols + 4 * kv_cols) * 4 +
                                                                                  slots * (kHidden + kWidth) * 4 + (int64_t{64} << 20))));
    auto* w = arena->take<bf16>(weight_elements);
    for (int64_t i = 0; i < weight_elements; ++i) w[i] = {static_cast<uint16_t>(0x3c00 | (i * 2654435761u >> 23 & 0x80ff))};
    const auto weight = [&](int64_t rows, int64_t cols) { return Tensor::matrix(std::exchange(w, w + rows * cols), DType::kBF16, rows, cols); };
    const auto matrix = [&](DType d, int64_t cols) {
      void* p = arena->take<std::byte>(tokens * cols * dtype_bits(d) / 8);
      std::memset(p, 0, static_cast<size_t>(tokens * cols * dtype_bits(d) / 8));
      return Tensor::matrix(p, d, tokens, cols);
    };
    const Tensor h = matrix(DType::kF32, kHidden), x = matrix(DType::kF32, kHidden), x16 = matrix(DType::kBF16, kHidden), q = matrix(DType::kF32, q_cols),
                 k = matrix(DType::kF32, kv_cols), v = matrix(DType::kF32, kv_cols), context = matrix(DType::kBF16, q_cols),
                 logits = matrix(DType::kF32, kExperts), slot_out = Tensor::matrix(arena->take<float>(slots * kHidden), DType::kF32, slots, kHidden);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < tokens * kHidden; ++i) static_cast<float*>(h.data)[i] = normal(rng_);
    const Tensor wq = weight(q_cols, kHidden), wk = weight(kv_cols, kHidden), wv = weight(kv_cols, kHidden), wo = weight(kHidden, q_cols),
                 router = weight(kExperts, kHidden);
    const bf16* experts = w;
    auto* norm = arena->take<float>(kHidden);
    std::fill_n(norm, kHidden, 1.0f);
    auto* rotation = arena->take<float>(tokens * kDim);
    std::fill_n(rotation, tokens * kDim, 0.5f);
    auto* k_cache = arena->take<bf16>(kKvHeads * tiled_head_elements(tokens, kDim));
    auto* v_cache = arena->take<bf16>(kKvHeads * tiled_head_elements(tokens, kDim));
    auto* ids = arena->take<int32_t>(slots);
    auto* route_weights = arena->take<float>(slots);
    auto* counts = arena->take<int32_t>(kExperts);
    auto* offsets = arena->take<int32_t>(kExperts + 1);
    auto* slot_row = arena->take<int32_t>(slots);
    auto* row_slot = arena->take<int32_t>(slots);
    auto* row_token = arena->take<int32_t>(slots);
    auto* report = arena->take<RouterReport>(1);
    auto* act = arena->take<bf16>(slots * kWidth);
    auto* spread = arena->take<bf16>(slots * kHidden);
    const auto normed = [&] { return rms_norm(ctx_, {.x = h, .weight = norm, .out_f32 = x, .out_bf16 = x16}); };
    const std::vector<std::pair<std::string, Run>> steps = {
        {"norms", [&] {
           PM_RETURN_IF_ERROR(normed());
           return normed();
         }},
        {"attention projections", [&] {
           PM_RETURN_IF_ERROR(matmul(ctx_, {.x = x16, .w = wq, .y = q}));
           PM_RETURN_IF_ERROR(matmul(ctx_, {.x = x16, .w = wk, .y = k}));
           PM_RETURN_IF_ERROR(matmul(ctx_, {.x = x16, .w = wv, .y = v}));
           return matmul(ctx_, {.x = context, .w = wo, .y = h, .accumulate = true});
         }},
        {"attention", [&] {
           PM_RETURN_IF_ERROR(qkv_prepare(ctx_, {.q = q, .k = k, .v = v, .q_norm = norm, .k_norm = norm, .cos = rotation, .sin = rotation, .heads = kHeads,
                                                 .kv_heads = kKvHeads, .head_dim = kDim, .rotary_dim = kDim, .k_cache = k_cache, .v_cache = v_cache,
                                                 .cache_dtype = DType::kBF16, .capacity = tokens, .sequences = {tokens, 0}}));
           return attention(ctx_, {.q = q, .k_cache = k_cache, .v_cache = v_cache, .cache_dtype = DType::kBF16, .layout = CacheLayout::kTiles, .capacity = tokens, .sequences = {tokens, 0}, .heads = kHeads,
                                   .kv_heads = kKvHeads, .head_dim = kDim, .scale = 0.09f, .out = context});
         }},
        {"router logits", [&] { return matmul(ctx_, {.x = x, .w = router, .y = logits}); }},
        {"route", [&] {
           return route(ctx_, {.contract = {.num_experts = kExperts, .top_k = kTopK, .normalize = true}, .logits = logits, .ids = ids, .weights = route_weights,
                               .counts = counts, .report = report});
         }},
        {"index of rows", [&] {
           PM_RETURN_IF_ERROR(permute_index(ctx_, {.ids = ids, .counts = counts, .tokens = tokens, .top_k = kTopK, .num_experts = kExperts, .offsets = offsets,
                                                   .slot_row = slot_row, .row_slot = row_slot}));
           for (int64_t r = 0; r < slots; ++r) row_token[r] = row_slot[r] / kTopK;
           return ok_status();
         }},
        {"experts", [&] {
           for (int first = 0; first < kExperts; first += kMaxFfnExperts) {
             SwigluFfnArgs a{.x = x16, .x_rows = row_token, .act = Tensor::matrix(act, DType::kBF16, slots, kWidth), .out = slot_out, .out_rows = row_slot,
                             .num_experts = kMaxFfnExperts};
             for (int e = 0; e < kMaxFfnExperts; ++e) {
               auto* of = const_cast<bf16*>(experts) + (first + e) * 3 * part;
               a.experts[e] = {.w_gate = Tensor::matrix(of, DType::kBF16, kWidth, kHidden), .w_up = Tensor::matrix(of + part, DType::kBF16, kWidth, kHidden),
                               .w_down = Tensor::matrix(of + 2 * part, DType::kBF16, kHidden, kWidth), .first = offsets[first + e],
                               .rows = offsets[first + e + 1] - offsets[first + e]};
             }
             PM_RETURN_IF_ERROR(swiglu_ffn(ctx_, a));
           }
           return ok_status();
         }},
        {"combine", [&] { return combine(ctx_, {.slots = slot_out, .weights = route_weights, .top_k = kTopK, .out = h}); }},
        // Not part of the sum: what a device whose matmul wants contiguous rows would add.
        {"(permute, if it were needed)", [&] {
           return permute(ctx_, {.x = x16, .slot_row = slot_row, .top_k = kTopK, .out = Tensor::matrix(spread, DType::kBF16, slots, kHidden)});
         }}};
    std::vector<std::vector<double>> times(steps.size());
    for (int repeat = -1; repeat < std::min(options_.repeats, 11); ++repeat) {
      for (size_t i = 0; i < steps.size(); ++i) {
        const auto start = std::chrono::steady_clock::now();
        PM_RETURN_IF_ERROR(steps[i].second());
        if (repeat >= 0) times[i].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      }
    }
    double total = 0;
    for (size_t i = 0; i < steps.size(); ++i) {
      bench_.shares.push_back({.step = steps[i].first, .median_s = summary(times[i]).median});
      if (i + 1 < steps.size()) total += bench_.shares.back().median_s;
    }
    for (LayerShare& s : bench_.shares) s.share = s.median_s / total;
    bench_.layer = format("{} tokens, hidden {}, {} of {} experts of width {}, {}/{} heads of {}, bf16: {:.2f} ms", tokens, kHidden, kTopK, kExperts, kWidth, kHeads,
                          kKvHeads, kDim, total * 1e3);
    return ok_status();
  }

  MoeBench take() { return std::move(bench_); }

 private:
  bool wanted(const std::string& op, const std::string& shape) const {
    return options_.filter.empty() || (op + " " + shape).find(options_.filter) != std::string::npos;
  }
  void add(std::string op, std::string shape, std::string other, double bytes, const Timed& a, const Timed& b) {
    bench_.comparisons.push_back({.op = std::move(op), .shape = std::move(shape), .other = std::move(other), .median_s = a.median, .low_s = a.low,
                                  .high_s = a.high, .other_median_s = b.median, .other_low_s = b.low, .other_high_s = b.high, .bytes = bytes});
  }
  Status compare(std::string op, std::string shape, std::string other, double bytes, std::vector<Run>& runs, int repeats) {
    std::vector<Timed> t;
    PM_RETURN_IF_ERROR(time_in_turn(runs, repeats, t));
    add(std::move(op), std::move(shape), std::move(other), bytes, t[0], t[1]);
    return ok_status();
  }

  OpContext& ctx_;
  Device& device_;
  const MoeBenchOptions& options_;
  std::mt19937 rng_{1};
  MoeBench bench_;
};

}  // namespace

Result<MoeBench> bench_moe(Device& device, ThreadPool& pool, const KernelTable& table, const MoeBenchOptions& options) {
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.make_stream());
  FallbackCounters fallbacks;
  OpContext ctx{.stream = stream.get(), .pool = &pool, .kernels = &table, .fallbacks = &fallbacks};
  Bench bench(ctx, device, options);
  const RouterContract softmax64{.num_experts = 64, .top_k = 8, .normalize = true};
  const RouterContract grouped{.score = ScoreFunction::kSigmoid, .num_experts = 256, .top_k = 8, .n_group = 8, .topk_group = 4, .group_score = GroupScore::kTop2Sum,
                               .normalize = true, .norm_epsilon = 1e-20f, .scale = 2.5f};
  const RouterContract softmax384{.num_experts = 384, .top_k = 6, .normalize = true};
  const RouterContract softplus384{.score = ScoreFunction::kSqrtSoftplus, .num_experts = 384, .top_k = 6, .normalize = true, .norm_epsilon = 1e-20f, .scale = 1.5f};
  for (const int64_t tokens : {1, 64, 1024, 8192}) {
    PM_RETURN_IF_ERROR(bench.gate(" softmax", softmax64, false, tokens));
    PM_RETURN_IF_ERROR(bench.gate(" sigmoid, bias, groups", grouped, true, tokens));
    PM_RETURN_IF_ERROR(bench.gate(" softmax", softmax384, false, tokens));
    PM_RETURN_IF_ERROR(bench.gate(" sqrt-softplus, bias", softplus384, true, tokens));
  }
  for (const int64_t hidden : {1024, 4096, 7168}) {
    for (const int64_t tokens : {1024, 4096, 8192}) PM_RETURN_IF_ERROR(bench.move_rows(hidden, tokens, tokens == 1024 || (tokens == 4096 && hidden == 1024)));
  }
  PM_RETURN_IF_ERROR(bench.layer(512));
  return bench.take();
}

std::string moe_bench_table(const MoeBench& b) {
  std::string s;
  if (!b.comparisons.empty()) {
    s += format("\n{:<16} {:<46} {:>10} {:>19} {:>11} {:>7}  {}\n", "op", "shape", "median us", "p10 .. p90", "other us", "ratio", "other");
  }
  for (const Comparison& c : b.comparisons) {
    s += format("{:<16} {:<46} {:>10.2f} {:>8.2f} .. {:>7.2f} {:>11.2f} {:>6.2f}x  {}\n", c.op, c.shape, c.median_s * 1e6, c.low_s * 1e6, c.high_s * 1e6,
                c.other_median_s * 1e6, c.ratio(), c.other);
  }
  if (b.shares.empty()) return s;
  s += format("\none layer, {}\n", b.layer);
  for (const LayerShare& l : b.shares) s += format("  {:<30} {:>10.1f} us {:>7.2f} %\n", l.step, l.median_s * 1e6, 100 * l.share);
  return s;
}

std::string moe_bench_markdown(const MoeBench& b) {
  std::string s;
  if (!b.comparisons.empty()) s += "\n| op | shape | median us (p10 .. p90) | other | other us (p10 .. p90) | ratio |\n|---|---|---|---|---|---|\n";
  for (const Comparison& c : b.comparisons) {
    s += format("| {} | {} | {:.2f} ({:.2f} .. {:.2f}) | {} | {:.2f} ({:.2f} .. {:.2f}) | {:.2f} |\n", c.op, c.shape, c.median_s * 1e6, c.low_s * 1e6, c.high_s * 1e6,
                c.other, c.other_median_s * 1e6, c.other_low_s * 1e6, c.other_high_s * 1e6, c.ratio());
  }
  if (b.shares.empty()) return s;
  s += format("\nOne layer, {}\n\n| step | us | share |\n|---|---|---|\n", b.layer);
  for (const LayerShare& l : b.shares) s += format("| {} | {:.1f} | {:.2f} % |\n", l.step, l.median_s * 1e6, 100 * l.share);
  return s;
}

void add_moe_bench(const MoeBench& b, Json& out) {
  Json list = Json::array();
  for (const Comparison& c : b.comparisons) {
    Json j = Json::object();
    j.set("op", c.op);
    j.set("shape", c.shape);
    j.set("median_s", c.median_s);
    j.set("p10_s", c.low_s);
    j.set("p90_s", c.high_s);
    j.set("bytes", c.bytes);
    j.set("other", c.other);
    j.set("other_median_s", c.other_median_s);
    j.set("other_p10_s", c.other_low_s);
    j.set("other_p90_s", c.other_high_s);
    j.set("ratio", c.ratio());
    list.push_back(std::move(j));
  }
  out.set("comparisons", std::move(list));
  Json steps = Json::array();
  for (const LayerShare& l : b.shares) {
    Json j = Json::object();
    j.set("step", l.step);
    j.set("median_s", l.median_s);
    j.set("share", l.share);
    steps.push_back(std::move(j));
  }
  Json layer = Json::object();
  layer.set("shape", b.layer);
  layer.set("steps", std::move(steps));
  out.set("layer", std::move(layer));
}

}  // namespace pointsman::ops
