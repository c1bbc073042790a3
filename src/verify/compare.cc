// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "base/log.h"
#include "verify/distance.h"

namespace pointsman {
namespace {

// Rows of one block take about this much per file.
constexpr int64_t kBlockElements = 1 << 17;
constexpr int64_t kMaxColumns = 1 << 24;

constexpr std::string_view kRouterIds = ".router.ids", kRouterWeights = ".router.weights", kRouterLogits = ".router.logits";

int64_t rows_per_block(int64_t cols) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, cols));
}

// (layer, rank within the layer); what belongs to no layer comes before, logits after.
std::tuple<int, int> order_of(std::string_view name) {
  if (name == "logits") return {1 << 30, 0};
  if (!name.starts_with("layers.")) return {-1, 0};
  int layer = 0;
  const char* const end = name.data() + name.size();
  const auto [rest, ec] = std::from_chars(name.data() + 7, end, layer);
  if (ec != std::errc()) return {-1, 0};
  const std::string_view what(rest, static_cast<size_t>(end - rest));
  const int rank = what == kRouterLogits ? 1 : what == kRouterIds ? 2 : what == kRouterWeights ? 3 : what == ".hidden" ? 9 : 5;
  return {layer, rank};
}

std::string sibling(std::string_view name, std::string_view suffix) {
  return std::string(name.substr(0, name.find(".router."))) + std::string(suffix);
}

class Comparer {
 public:
  Comparer(TraceReader& a, TraceReader& b, const CompareLimits& limits) : a_(a), b_(b), limits_(limits) {}

  Status tensor(const TraceTensor& ta, const TraceTensor& tb, TensorDistance& out);
  Status router(const TraceTensor& ta, const TraceTensor& tb, RouterDistance& out);
  Status logits(const TraceTensor& ta, const TraceTensor& tb, LogitsDistance& out);

 private:
  Status match_by_expert(const TraceTensor& t, int64_t first, int64_t count);
  bool is_flipped(int64_t row) const {
    return row < static_cast<int64_t>(flipped_.size()) && flipped_[static_cast<size_t>(row)];
  }

  TraceReader& a_;
  TraceReader& b_;
  const CompareLimits& limits_;
  std::vector<double> va_, vb_, ids_a_, ids_b_, gate_;
  std::vector<std::byte> raw_a_, raw_b_;
  std::vector<bool> flipped_;  // rows with an excused flip so far
};

// Reorders the block of routing weights in va_ to the order of the reference's experts. Rows whose sets differ are made equal:
// the router comparison speaks of them.
Status Comparer::match_by_expert(const TraceTensor& t, int64_t first, int64_t count) {
  const std::string name = sibling(t.name, kRouterIds);
  const TraceTensor* ia = a_.find(name);
  const TraceTensor* ib = b_.find(name);
  if (ia == nullptr || ib == nullptr || ia->rows != t.rows || ib->rows != t.rows || ia->cols != t.cols || ib->cols != t.cols)
    return ok_status();
  PM_RETURN_IF_ERROR(a_.read_rows(*ia, first, count, ids_a_));
  PM_RETURN_IF_ERROR(b_.read_rows(*ib, first, count, ids_b_));
  const size_t k = static_cast<size_t>(t.cols);
  std::vector<double> row(k);
  for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
    bool same = true;
    for (size_t j = 0; j < k && same; ++j) {
      const auto begin = ids_a_.begin() + static_cast<ptrdiff_t>(r * k);
      const auto at = std::find(begin, begin + static_cast<ptrdiff_t>(k), ids_b_[r * k + j]);
      same = at != begin + static_cast<ptrdiff_t>(k);
      if (same) row[j] = va_[r * k + static_cast<size_t>(at - begin)];
    }
    std::copy_n(same ? row.begin() : vb_.begin() + static_cast<ptrdiff_t>(r * k), k,
                va_.begin() + static_cast<ptrdiff_t>(r * k));
  }
  return ok_status();
}

Status Comparer::tensor(const TraceTensor& ta, const TraceTensor& tb, TensorDistance& out) {
  out.name = ta.name;
  out.dtype = std::string(dtype_name(ta.dtype));
  out.shape = ta.shape;
  DistanceSums sums(limits_.atol, limits_.rtol, out);
  out.bit_identical = ta.dtype == tb.dtype;
  const int64_t step = rows_per_block(ta.cols);
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    if (out.bit_identical) {
      PM_RETURN_IF_ERROR(a_.read_bytes(ta, row, count, raw_a_));
      PM_RETURN_IF_ERROR(b_.read_bytes(tb, row, count, raw_b_));
      out.bit_identical = raw_a_ == raw_b_;
    }
    PM_RETURN_IF_ERROR(a_.read_rows(ta, row, count, va_));
    PM_RETURN_IF_ERROR(b_.read_rows(tb, row, count, vb_));
    if (ta.name.ends_with(kRouterWeights)) PM_RETURN_IF_ERROR(match_by_expert(ta, row, count));
    for (int64_t r = 0; r < count; ++r) {
      const size_t at = static_cast<size_t>(r * ta.cols), n = static_cast<size_t>(ta.cols);
      const auto a = std::span<const double>(va_).subspan(at, n), b = std::span<const double>(vb_).subspan(at, n);
      if (!ta.is_integer() && is_flipped(row + r)) {
        sums.add_left_out_row(a, b);
      } else {
        sums.add_row(row + r, a, b, ta.is_integer());
      }
    }
  }
  sums.finish();
  return ok_status();
}

Status Comparer::router(const TraceTensor& ta, const TraceTensor& tb, RouterDistance& out) {
  const TraceTensor* gate = b_.find(sibling(tb.name, kRouterLogits));
  if (gate != nullptr && (gate->rows != tb.rows || gate->cols < tb.cols || gate->cols > kMaxColumns)) gate = nullptr;
  out.rows = ta.rows;
  const size_t k = static_cast<size_t>(ta.cols);
  const int64_t step = rows_per_block(std::max(ta.cols, gate != nullptr ? gate->cols : 0));
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    PM_RETURN_IF_ERROR(a_.read_rows(ta, row, count, ids_a_));
    PM_RETURN_IF_ERROR(b_.read_rows(tb, row, count, ids_b_));
    if (gate != nullptr) PM_RETURN_IF_ERROR(b_.read_rows(*gate, row, count, gate_));
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
      const auto sort_row = [&](std::vector<double>& v) {
        std::sort(v.begin() + static_cast<ptrdiff_t>(r * k), v.begin() + static_cast<ptrdiff_t>((r + 1) * k));
      };
      sort_row(ids_a_);
      sort_row(ids_b_);
      if (std::equal(ids_a_.begin() + static_cast<ptrdiff_t>(r * k), ids_a_.begin() + static_cast<ptrdiff_t>((r + 1) * k),
                     ids_b_.begin() + static_cast<ptrdiff_t>(r * k))) {
        continue;
      }
      ++out.different;
      // Without gate logits nothing excuses a flip.
      double margin = CompareLimits::kOff;
      if (gate != nullptr && gate->cols > tb.cols) {
        const size_t n = static_cast<size_t>(gate->cols);
        margin = gap_after(std::span(gate_).subspan(r * n, n), k);
        out.max_margin = std::max(out.max_margin, margin);
      }
      if (margin <= limits_.router_margin && margin < CompareLimits::kOff) {
        ++out.excused;
        flipped_.resize(static_cast<size_t>(ta.rows));
        flipped_[static_cast<size_t>(row) + r] = true;
      } else if (out.first_row < 0) {
        out.first_row = row + static_cast<int64_t>(r);
      }
    }
  }
  if (out.different > out.excused) {
    out.failure = format("{} of {} rows chose other experts, {} of them near ties; the first that is none is row {}",
                         out.different, out.rows, out.excused, out.first_row);
  }
  return ok_status();
}

Status Comparer::logits(const TraceTensor& ta, const TraceTensor& tb, LogitsDistance& out) {
  out.rows = ta.rows;
  double kl_sum = 0;
  const int64_t step = rows_per_block(ta.cols);
  const size_t n = static_cast<size_t>(ta.cols);
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    PM_RETURN_IF_ERROR(a_.read_rows(ta, row, count, va_));
    PM_RETURN_IF_ERROR(b_.read_rows(tb, row, count, vb_));
    for (int64_t r = 0; r < count; ++r) {
      const std::span<const double> a = std::span(va_).subspan(static_cast<size_t>(r) * n, n);
      const std::span<const double> b = std::span(vb_).subspan(static_cast<size_t>(r) * n, n);
      const std::optional<double> kl = kl_divergence(b, a);
      if (!kl) continue;
      ++out.compared;
      kl_sum += *kl;
      if (*kl > out.kl_max || out.kl_max_row < 0) {
        out.kl_max = *kl;
        out.kl_max_row = row + r;
      }
      const auto best_a = std::max_element(a.begin(), a.end()) - a.begin();
      const auto best_b = std::max_element(b.begin(), b.end()) - b.begin();
      if (best_a == best_b) {
        ++out.top1_same;
      } else if (n > 1 && gap_after(b, 1) <= limits_.tie_margin) {
        ++out.near_ties;
      }
    }
  }
  out.kl_mean = out.compared > 0 ? kl_sum / static_cast<double>(out.compared) : 0;
  const auto fail = [&](std::string why) { out.failure += (out.failure.empty() ? "" : "; ") + why; };
  if (out.kl_mean > limits_.kl_mean) fail(format("mean KL {:.3g} > {:.3g}", out.kl_mean, limits_.kl_mean));
  if (out.kl_max > limits_.kl_max) fail(format("KL {:.3g} > {:.3g} in row {}", out.kl_max, limits_.kl_max, out.kl_max_row));
  if (out.top1() < limits_.min_top1)
    fail(format("same most likely token in {:.2f} % < {:.2f} %", 100 * out.top1(), 100 * limits_.min_top1));
  return ok_status();
}

void judge(const CompareLimits& l, TensorDistance& t, bool is_integer) {
  const auto fail = [&](std::string why) { t.failure += (t.failure.empty() ? "" : "; ") + why; };
  if (l.bit_identical && !t.bit_identical) fail("not bit-identical");
  if (is_integer) {
    if (!t.name.ends_with(kRouterIds) && t.different > 0) fail(format("{} of {} integers differ", t.different, t.compared));
    return;
  }
  if (t.nonfinite_mismatch > 0) fail(format("NaN or infinity in one and not in the other: {} elements", t.nonfinite_mismatch));
  const bool is_logits = t.name == "logits";
  if (is_logits && t.max_abs > l.logits_abs) fail(format("max abs {:.3g} > {:.3g}", t.max_abs, l.logits_abs));
  if (!is_logits && t.row_relative > l.row_relative)
    fail(format("relative to the row {:.3g} > {:.3g}", t.row_relative, l.row_relative));
  if (l.rtol >= 0 && t.worst_excess > 0) fail(format("beyond atol {:.3g} + rtol {:.3g}", l.atol, l.rtol));
  if (t.mean_rel > l.mere) fail(format("MERE {:.3g} > {:.3g}", t.mean_rel, l.mere));
  if (t.max_rel > 10 * l.mere) fail(format("MARE {:.3g} > {:.3g}", t.max_rel, 10 * l.mere));
  if (t.cosine < l.min_cosine) fail(format("cosine {:.6f} < {:.6f}", t.cosine, l.min_cosine));
}

void note_metadata(const TraceReader& a, const TraceReader& b, Comparison& out) {
  for (const char* key : {"model_digest", "numerics", "tokens"}) {
    const std::string va = a.metadata(key), vb = b.metadata(key);
    if (!va.empty() && !vb.empty() && va != vb) out.notes.push_back(format("{} differs: {} against {}", key, va, vb));
  }
  for (const TraceReader* r : {&a, &b}) {
    for (const std::string& name : r->skipped())
      out.notes.push_back(format("{}: {} has a type that is not compared", r->path(), name));
  }
}

}  // namespace

bool before_in_data_flow(std::string_view a, std::string_view b) {
  return std::tuple_cat(order_of(a), std::tuple(a)) < std::tuple_cat(order_of(b), std::tuple(b));
}

Result<Comparison> compare_traces(TraceReader& a, TraceReader& b, const CompareLimits& limits, bool common_only) {
  Comparison out{.limits = limits};
  std::vector<const TraceTensor*> common;
  for (const TraceTensor& t : a.tensors()) {
    if (b.find(t.name) != nullptr) {
      common.push_back(&t);
    } else {
      out.only_a.push_back(t.name);
    }
  }
  for (const TraceTensor& t : b.tensors()) {
    if (a.find(t.name) == nullptr) out.only_b.push_back(t.name);
  }
  std::sort(common.begin(), common.end(), [](const auto* x, const auto* y) { return before_in_data_flow(x->name, y->name); });
  if (common.empty()) return error(StatusCode::kInvalidArgument, "{} and {} have no tensor in common", a.path(), b.path());
  note_metadata(a, b, out);
  if (!common_only && out.only_a.size() + out.only_b.size() > 0) out.ok = false;

  const auto judged = [&](const std::string& name, const std::string& failure) {
    if (failure.empty()) return;
    out.ok = false;
    if (out.first_divergence.empty()) out.first_divergence = name;
  };
  Comparer comparer(a, b, limits);
  for (const TraceTensor* ta : common) {
    const TraceTensor* tb = b.find(ta->name);
    TensorDistance& t = out.tensors.emplace_back();
    if (ta->shape != tb->shape || ta->is_integer() != tb->is_integer()) {
      t = {.name = ta->name,
           .dtype = std::string(dtype_name(ta->dtype)),
           .shape = ta->shape,
           .failure = "another shape or kind of type"};
      judged(t.name, t.failure);
      continue;
    }
    if (ta->cols > kMaxColumns)
      return error(StatusCode::kUnsupported, "{}: {} columns, more than {}", ta->name, ta->cols, kMaxColumns);
    PM_RETURN_IF_ERROR(comparer.tensor(*ta, *tb, t));
    judge(limits, t, ta->is_integer());
    judged(t.name, t.failure);
    if (ta->name == "logits") {
      LogitsDistance& l = out.logits.emplace();
      PM_RETURN_IF_ERROR(comparer.logits(*ta, *tb, l));
      judged(t.name, l.failure);
    } else if (ta->name.ends_with(kRouterIds) && ta->cols > 0) {
      RouterDistance& r = out.routers.emplace_back();
      r.layer = std::get<0>(order_of(ta->name));
      PM_RETURN_IF_ERROR(comparer.router(*ta, *tb, r));
      judged(t.name, r.failure);
    }
  }
  return out;
}

Result<CompareLimits> compare_profile(std::string_view name, std::string_view numerics) {
  const bool is_bf16 = numerics == "bf16";
  CompareLimits l{.profile = std::string(name)};
  if (name == "fp32") {
    // What tests/integration holds against transformers: two correct fp32 implementations differ by the order of their sums.
    l.logits_abs = 1e-4;
    l.row_relative = 1e-5;
    l.kl_max = 1e-6;
    l.min_top1 = 1;
    l.tie_margin = 2 * l.logits_abs;
    l.router_margin = 1e-6;
  } else if (name == "bf16") {
    // bf16 keeps 8 bits: 2^-8 per rounding, some tens of roundings deep.
    l.row_relative = 0.1;
    l.kl_mean = 0.02;
    l.kl_max = 0.5;
    l.min_top1 = 0.95;
    l.tie_margin = 0.1;
    l.router_margin = 0.1;
  } else if (name == "strict") {
    l.bit_identical = true;
    l.router_margin = 0;
  } else if (name == "torch") {
    l.atol = 1e-5;
    l.rtol = is_bf16 ? 1.6e-2 : 1.3e-6;
    l.router_margin = 0;
  } else if (name == "ascend-community") {
    l.mere = is_bf16 ? 0x1p-7 : 0x1p-13;
    l.router_margin = 0;
  } else {
    return error(StatusCode::kInvalidArgument, "profile '{}': expected fp32, bf16, strict, torch or ascend-community", name);
  }
  return l;
}

}  // namespace pointsman
