// SPDX-License-Identifier: Apache-2.0
#include "ops/bench/tune.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>

#include "base/check.h"
#include "base/checked_math.h"
#include "base/log.h"
#include "base/thread_pool.h"

namespace pointsman::ops {
namespace {

constexpr double kWorthIt = 0.97;
// Of one call: some 15 ms for two threads. More rows are measured on fewer experts.
constexpr int64_t kMaxFlops = 6'000'000'000;

struct Memory {
  Device& device;
  std::byte* data;
  size_t bytes;
  ~Memory() { device.free(data, bytes); }
};
Result<std::unique_ptr<Memory>> take(Device& device, int64_t bytes) {
  const size_t n = align_up(static_cast<size_t>(bytes), kPageBytes);
  PM_ASSIGN_OR_RETURN(void* p, device.allocate(n));
  std::memset(p, 0, n);
  return std::unique_ptr<Memory>(new Memory{device, static_cast<std::byte*>(p), n});
}

// Is `a` reliably faster than `b`? Times are of turns, so a disturbance of a moment spoils a pair and not the verdict: most pairs must agree, and the
// best times, which were disturbed least.
bool is_faster(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.empty() || a.size() != b.size()) return false;
  size_t won = 0;
  for (size_t i = 0; i < a.size(); ++i) won += a[i] < b[i] * kWorthIt ? 1 : 0;
  return won * 5 >= a.size() * 4 && *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end()) * kWorthIt;
}

BlockFormat format_of(DType w) {
  if (w == DType::kBF16) return {};
  return {.scale_dtype = w == DType::kI8 ? DType::kBF16 : DType::kF8E8M0, .block_rows = 1, .block_cols = 32};
}

// One shape in one format: experts one after the other in memory, each gate, up, down.
class Layer {
 public:
  Layer(OpContext& ctx, const MoeShape& shape, DType format, Memory& weights, Memory& activations)
      : ctx_(ctx), shape_(shape), format_(format), weights_(weights), activations_(activations) {
    part_bytes_ = shape.hidden * shape.width * dtype_bits(format) / 8;
    scale_bytes_ = align_up(static_cast<uint64_t>(grid_bytes(format_of(format), shape.width, shape.hidden)), 64);
    expert_bytes_ = align_up(static_cast<uint64_t>(3 * (part_bytes_ + scale_bytes_)), 64);
    num_experts_ = std::clamp<int64_t>(static_cast<int64_t>(weights.bytes) / expert_bytes_, 0, shape.experts);
    // Codes of every magnitude, none of them a NaN; BF16 near 1. Scales of 1.
    auto* p = reinterpret_cast<uint8_t*>(weights.data);
    for (int64_t i = 0; i < num_experts_ * expert_bytes_; ++i) {
      p[i] = format == DType::kBF16 ? (i % 2 == 0 ? static_cast<uint8_t>(i * 37) : 0x3c) : static_cast<uint8_t>((i * 37 + i / 251) & 0xbf);
    }
    for (int64_t e = 0; format != DType::kBF16 && e < num_experts_; ++e) {
      std::byte* scales = weights.data + e * expert_bytes_ + 3 * part_bytes_;
      for (int64_t i = 0; i < 3 * scale_bytes_; ++i) scales[i] = static_cast<std::byte>(format == DType::kI8 ? (i % 2 == 0 ? 0x80 : 0x3f) : 127);
    }
  }
  bool fits() const { return num_experts_ >= 1; }

  // A group of experts as the engine would give it for so many rows each, over the next ones in memory.
  Status run(int64_t rows, const PanelPaths& paths) {
    const int64_t tokens = std::max<int64_t>(1, rows * shape_.experts / shape_.top_k);
    const int64_t active = rows == 1 ? shape_.top_k : shape_.experts;  // one row: a lone token
    const int64_t affordable = std::max<int64_t>(2, kMaxFlops / (6 * rows * shape_.hidden * shape_.width));
    const int count = static_cast<int>(std::min<int64_t>({active, kMaxFfnExperts, num_experts_, affordable}));
    const int64_t all = rows * count;
    const DType x_type = format_ == DType::kBF16 || format_ == DType::kF8E4M3 ? DType::kBF16 : DType::kI8;
    int64_t used = 0;
    const auto matrix = [&](DType d, int64_t n, int64_t cols) {
      std::byte* at = activations_.data + used;
      const Tensor t = d == DType::kI8 ? quantised_matrix(at, n, cols) : Tensor::matrix(at, d, n, cols);
      used += static_cast<int64_t>(align_up(static_cast<uint64_t>(t.size_bytes()), 4096));
      PM_CHECK(used <= static_cast<int64_t>(activations_.bytes));
      return t;
    };
    const int64_t x_rows = std::min<int64_t>(tokens, all);
    const Tensor x = matrix(x_type, x_rows, shape_.hidden);
    SwigluFfnArgs a{.x = x, .act = matrix(x_type, all, shape_.width), .out = matrix(DType::kF32, all, shape_.hidden), .paths = &paths, .num_experts = count};
    // Each expert's tokens lie apart in x.
    auto* rows_of = reinterpret_cast<int32_t*>(activations_.data + used);
    used += all * 4;
    PM_CHECK(used <= static_cast<int64_t>(activations_.bytes));
    for (int64_t i = 0; i < all; ++i) rows_of[i] = static_cast<int32_t>(i * 7 % x_rows);
    a.x_rows = rows_of;
    for (int e = 0; e < count; ++e) {
      std::byte* at = weights_.data + (next_++ % num_experts_) * expert_bytes_;
      const auto weight = [&](int part, int64_t out, int64_t in) {
        Weight w(Tensor::matrix(at + part * part_bytes_, format_, out, in));
        w.format = format_of(format_);
        w.layout = WeightLayout::kPanel32;
        if (w.format) w.scales = at + 3 * part_bytes_ + part * scale_bytes_;
        return w;
      };
      a.experts[e] = {.w_gate = weight(0, shape_.width, shape_.hidden), .w_up = weight(1, shape_.width, shape_.hidden),
                      .w_down = weight(2, shape_.hidden, shape_.width), .first = e * rows, .rows = rows};
    }
    return swiglu_ffn(ctx_, a);
  }
  // Enough memory for the activations of any call.
  static int64_t activation_bytes(const MoeShape& s) {
    const int64_t all = kPanelRowBlock * kMaxFfnExperts;
    return all * (2 * s.hidden + 2 * s.width + 4 * s.hidden + 4) + all * (s.hidden + s.width) / 2 + 5 * 4096;
  }

 private:
  OpContext& ctx_;
  const MoeShape& shape_;
  DType format_;
  Memory &weights_, &activations_;
  int64_t part_bytes_ = 0, scale_bytes_ = 0, expert_bytes_ = 0, num_experts_ = 0, next_ = 0;
};

}  // namespace

Result<Tuning> tune_paths(Device& device, ThreadPool& pool, const KernelTable& kernels, const MachineKey& key, const TuneOptions& options,
                          FunctionRef<void(int done, int all)> progress) {
  if (!device.host_visible()) return error(StatusCode::kUnsupported, "tune: device {} is not the host", device.name());
  int64_t activations = 0;
  for (const MoeShape& s : options.shapes) {
    if (s.experts < 1 || s.top_k < 1 || s.top_k > s.experts || s.hidden < 32 || s.width < 32 || s.hidden % 32 != 0 || s.width % 32 != 0) {
      return error(StatusCode::kInvalidArgument, "tune: {} of {} experts of {} x {}: expected top-k of the experts or fewer, and multiples of 32", s.top_k, s.experts,
                   s.hidden, s.width);
    }
    activations = std::max(activations, Layer::activation_bytes(s));
  }
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.make_stream());
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> weights, take(device, options.weight_bytes));
  PM_ASSIGN_OR_RETURN(const std::unique_ptr<Memory> scratch, take(device, activations));
  FallbackCounters fallbacks;
  OpContext ctx{.stream = stream.get(), .pool = &pool, .kernels = &kernels, .fallbacks = &fallbacks};
  // Every bound takes the path under test.
  PanelPaths forced[kNumPanelPaths];
  for (int p = 0; p < kNumPanelPaths; ++p) {
    for (auto& of_format : forced[p].of) std::fill(std::begin(of_format), std::end(of_format), static_cast<PanelPath>(p));
  }
  Tuning out;
  out.table.key = key;
  int done = 0;
  const int all = static_cast<int>(options.shapes.size() * std::size(kPanelFormats));
  for (const MoeShape& shape : options.shapes) {
    TunedShape tuned{.shape = shape, .paths = {}};
    for (size_t f = 0; f < std::size(kPanelFormats); ++f) {
      Layer layer(ctx, shape, kPanelFormats[f], *weights, *scratch);
      if (!layer.fits()) return error(StatusCode::kInvalidArgument, "tune: one expert of {} x {} is larger than {} bytes", shape.hidden, shape.width, options.weight_bytes);
      for (int i = 0; i < kNumPathRows; ++i) {
        TuneTiming t{.shape = shape, .format = kPanelFormats[f], .rows = kPathRows[i], .built_in = built_in_path(kPanelFormats[f], kPathRows[i])};
        std::vector<double> times[kNumPanelPaths];
        for (int repeat = -1; repeat < options.repeats; ++repeat) {
          for (int p = 0; p < kNumPanelPaths; ++p) {
            // One row is one dot in both of the first two; many rows one by one lose by far.
            const auto path = static_cast<PanelPath>(p);
            if ((path == PanelPath::kSmallTile && t.rows == 1) || (path == PanelPath::kRowDot && t.rows > 4)) continue;
            const auto start = std::chrono::steady_clock::now();
            PM_RETURN_IF_ERROR(layer.run(t.rows, forced[p]));
            if (repeat >= 0) times[p].push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
          }
        }
        const std::vector<double> usual = times[static_cast<int>(t.built_in)];
        bool wins[kNumPanelPaths];
        for (int p = 0; p < kNumPanelPaths; ++p) {
          wins[p] = is_faster(times[p], usual);
          std::sort(times[p].begin(), times[p].end());
          if (!times[p].empty()) t.quartile_s[p] = times[p][times[p].size() / 4];
        }
        t.chosen = t.built_in;
        for (int p = 0; p < kNumPanelPaths; ++p) {
          if (wins[p] && t.quartile_s[p] < t.quartile_s[static_cast<int>(t.chosen)]) t.chosen = static_cast<PanelPath>(p);
        }
        tuned.paths.of[f][i] = t.chosen;
        out.timings.push_back(t);
      }
      progress(++done, all);
    }
    out.table.shapes.push_back(tuned);
  }
  return out;
}

std::string tuning_text(const Tuning& tuning) {
  std::string s = format("{:<26} {:<8} {:>5}  {:>10} {:>10} {:>11}  {:<12} {}\n", "experts", "weights", "rows", "row dot us", "small us", "packed us", "chosen",
                         "instead of");
  for (const TuneTiming& t : tuning.timings) {
    const auto us = [&](PanelPath p) {
      const double v = t.quartile_s[static_cast<int>(p)];
      return v > 0 ? format("{:.1f}", v * 1e6) : std::string("-");
    };
    const std::string gain = t.chosen == t.built_in ? "" : format("{}, {:.1f} % less", panel_path_name(t.built_in),
                                                                 100 * (1 - t.quartile_s[static_cast<int>(t.chosen)] / t.quartile_s[static_cast<int>(t.built_in)]));
    s += format("{:<26} {:<8} {:>5}  {:>10} {:>10} {:>11}  {:<12} {}\n", format("{} of {}, {} x {}", t.shape.top_k, t.shape.experts, t.shape.hidden, t.shape.width),
                dtype_name(t.format), t.rows, us(PanelPath::kRowDot), us(PanelPath::kSmallTile), us(PanelPath::kPackedTile), panel_path_name(t.chosen), gain);
  }
  return s;
}

}  // namespace pointsman::ops
