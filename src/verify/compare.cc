// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/log.h"
#include "verify/compare_parts.h"

namespace pointsman {

int64_t rows_per_block(int64_t cols) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, cols));
}

double TensorDistance::sqnr_db() const {
  return nmse > 0 ? -10 * std::log10(nmse) : std::numeric_limits<double>::infinity();
}

Result<SlotOrder> SlotOrder::of(TraceReader& a, TraceReader& b, int layer) {
  SlotOrder order;
  const std::string name = trace_name({layer, TracePoint::kRouterIds});
  const TraceTensor* ia = a.find(name);
  const TraceTensor* ib = b.find(name);
  constexpr int64_t kMaxTopK = 4096;
  if (ia == nullptr || ib == nullptr || ia->rows != ib->rows || ia->cols != ib->cols || ia->cols > kMaxTopK) return order;
  order.ids_a_ = ia;
  order.ids_b_ = ib;
  return order;
}

Status SlotOrder::match(TraceReader& a, TraceReader& b, int64_t first, int64_t count, std::vector<int32_t>& slot_of_b) {
  PM_RETURN_IF_ERROR(a.read_rows(*ids_a_, first, count, a_));
  PM_RETURN_IF_ERROR(b.read_rows(*ids_b_, first, count, b_));
  const size_t k = static_cast<size_t>(ids_a_->cols);
  slot_of_b.assign(static_cast<size_t>(count) * k, -1);
  for (size_t t = 0; t < static_cast<size_t>(count); ++t) {
    for (size_t j = 0; j < k; ++j) {
      for (size_t i = 0; i < k && slot_of_b[t * k + j] < 0; ++i) {
        if (a_[t * k + i] == b_[t * k + j]) slot_of_b[t * k + j] = static_cast<int32_t>(i);
      }
    }
  }
  return ok_status();
}

namespace {

bool is_slots(TracePoint p) {
  return p == TracePoint::kExpertsGate || p == TracePoint::kExpertsUp || p == TracePoint::kExpertsAct || p == TracePoint::kExpertsOutput;
}

// The coarser of two float types, whose steps count as ULP.
DType ulp_type(DType a, DType b) {
  for (const DType d : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (a == d || b == d) return d;
  }
  return DType::kF64;
}

uint64_t nonfinite_of_f32(const std::vector<std::byte>& raw) {
  uint64_t n = 0;
  for (size_t i = 0; i + 4 <= raw.size(); i += 4) {
    uint32_t u;
    std::memcpy(&u, raw.data() + i, 4);
    n += (u & 0x7f800000) == 0x7f800000;
  }
  return n;
}

class Comparer {
 public:
  Comparer(TraceReader& a, TraceReader& b, double atol, double rtol) : a_(a), b_(b), atol_(atol), rtol_(rtol) {}

  std::vector<bool> flipped;  // positions with an excused flip so far
  Status tensor(const TraceTensor& ta, const TraceTensor& tb, TensorDistance& out);

 private:
  // Equal bytes need no arithmetic. False at the first block that differs; `out` is untouched then.
  Result<bool> same_bytes(const TraceTensor& ta, const TraceTensor& tb, TensorDistance& out);
  Status order_slots(SlotOrder& order, int64_t first, int64_t count, int64_t cols);
  bool is_flipped(int64_t position) const {
    return position < static_cast<int64_t>(flipped.size()) && flipped[static_cast<size_t>(position)];
  }

  TraceReader& a_;
  TraceReader& b_;
  const double atol_, rtol_;
  std::vector<double> va_, vb_, ordered_;
  std::vector<int32_t> slot_of_b_;
  std::vector<bool> missing_;
  std::vector<std::byte> raw_a_, raw_b_;
};

Result<bool> Comparer::same_bytes(const TraceTensor& ta, const TraceTensor& tb, TensorDistance& out) {
  if (ta.dtype != tb.dtype) return false;
  const int64_t step = rows_per_block(ta.cols);
  uint64_t nonfinite = 0;
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    PM_RETURN_IF_ERROR(a_.read_bytes(ta, row, count, raw_a_));
    PM_RETURN_IF_ERROR(b_.read_bytes(tb, row, count, raw_b_));
    if (!raw_a_.empty() && std::memcmp(raw_a_.data(), raw_b_.data(), raw_a_.size()) != 0) return false;
    if (ta.dtype == DType::kF32) nonfinite += nonfinite_of_f32(raw_a_);
  }
  out.bit_identical = true;
  out.nonfinite_a = out.nonfinite_b = nonfinite;
  out.compared = static_cast<uint64_t>(ta.rows * ta.cols);
  if (out.ulp.counted) out.ulp.buckets[0] = out.compared - nonfinite;
  return true;
}

// Rows of the block in va_ to the order of the reference's experts; slots whose expert was not chosen in a are marked missing.
Status Comparer::order_slots(SlotOrder& order, int64_t first, int64_t count, int64_t cols) {
  const int64_t k = order.top_k();
  PM_RETURN_IF_ERROR(order.match(a_, b_, first, count, slot_of_b_));
  ordered_ = va_;
  missing_.assign(static_cast<size_t>(count * k), false);
  for (int64_t s = 0; s < count * k; ++s) {
    const int32_t from = slot_of_b_[static_cast<size_t>(s)];
    if (from < 0) {
      missing_[static_cast<size_t>(s)] = true;
      continue;
    }
    const int64_t source = s / k * k + from;
    std::copy_n(va_.begin() + source * cols, cols, ordered_.begin() + s * cols);
  }
  va_.swap(ordered_);
  return ok_status();
}

Status Comparer::tensor(const TraceTensor& ta, const TraceTensor& tb, TensorDistance& out) {
  out.name = ta.name;
  out.dtype = std::string(dtype_name(ta.dtype));
  out.shape = ta.shape;
  DistanceSums sums(atol_, rtol_, out, ta.is_integer() ? DType::kI32 : ulp_type(ta.dtype, tb.dtype));
  PM_ASSIGN_OR_RETURN(const bool same, same_bytes(ta, tb, out));
  if (same) return ok_status();
  const TracePlace place = trace_place(ta.name);
  SlotOrder order;
  const bool is_weights = place.point == TracePoint::kRouterWeights;
  if (is_weights || is_slots(place.point)) {
    PM_ASSIGN_OR_RETURN(order, SlotOrder::of(a_, b_, place.layer));
    const bool fits = is_weights ? ta.rows == order.tokens() && ta.cols == order.top_k()
                                 : ta.shape.size() == 3 && ta.shape[0] == order.tokens() && ta.shape[1] == order.top_k();
    if (!order.known() || !fits) order = SlotOrder();
  }
  // Blocks of whole positions.
  const int64_t positions = ta.shape.size() > 1 ? ta.shape[0] : ta.rows;
  const int64_t per_position = positions > 0 ? std::max<int64_t>(1, ta.rows / positions) : 1;
  const int64_t step = per_position * rows_per_block(ta.cols * per_position);
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    PM_RETURN_IF_ERROR(a_.read_rows(ta, row, count, va_));
    PM_RETURN_IF_ERROR(b_.read_rows(tb, row, count, vb_));
    missing_.clear();
    if (order.known()) {
      PM_RETURN_IF_ERROR(order_slots(order, row / per_position, count / per_position, is_weights ? 1 : ta.cols));
    }
    for (int64_t r = 0; r < count; ++r) {
      const size_t at = static_cast<size_t>(r * ta.cols), n = static_cast<size_t>(ta.cols);
      const auto a = std::span<const double>(va_).subspan(at, n), b = std::span<const double>(vb_).subspan(at, n);
      // A row of weights is left out when any of its experts is another one: the router comparison speaks of it.
      bool absent = false;
      if (!missing_.empty()) {
        const int64_t slots = is_weights ? order.top_k() : 1;
        for (int64_t s = 0; s < slots; ++s) absent |= missing_[static_cast<size_t>(r * slots + s)];
      }
      if (!ta.is_integer() && (absent || is_flipped((row + r) / per_position))) {
        sums.add_left_out_row(a, b);
      } else {
        sums.add_row(row + r, a, b, ta.is_integer());
      }
    }
  }
  sums.finish();
  return ok_status();
}

void judge(const CompareLimits& l, TensorDistance& t, bool is_integer) {
  const auto fail = [&](std::string why) { t.failure += (t.failure.empty() ? "" : "; ") + why; };
  // First of all: nothing else means anything beside them.
  if (t.nonfinite_mismatch > 0 && !is_integer)
    fail(format("NaN or infinity in one and not in the other: {} elements", t.nonfinite_mismatch));
  if (l.bit_identical && !t.bit_identical) fail("not bit-identical");
  const TracePoint point = trace_place(t.name).point;
  if (is_integer) {
    if (point != TracePoint::kRouterIds && t.different > 0) fail(format("{} of {} integers differ", t.different, t.compared));
    return;
  }
  const bool is_logits = point == TracePoint::kLogits;
  if (is_logits && t.max_abs > l.logits_abs) fail(format("max abs {:.3g} > {:.3g}", t.max_abs, l.logits_abs));
  if (!is_logits && t.row_relative > l.row_relative)
    fail(format("relative to the row {:.3g} > {:.3g}", t.row_relative, l.row_relative));
  if (l.rtol >= 0 && t.worst_excess > 0) fail(format("beyond atol {:.3g} + rtol {:.3g}", l.atol, l.rtol));
  if (t.mean_rel > l.mere) fail(format("MERE {:.3g} > {:.3g}", t.mean_rel, l.mere));
  if (t.max_rel > 10 * l.mere) fail(format("MARE {:.3g} > {:.3g}", t.max_rel, 10 * l.mere));
  if (t.mare_ratio > l.mare_ratio) fail(format("MARE {:.3g} times the baseline's > {:.3g}", t.mare_ratio, l.mare_ratio));
  if (t.mere_ratio > l.mere_ratio) fail(format("MERE {:.3g} times the baseline's > {:.3g}", t.mere_ratio, l.mere_ratio));
  if (t.rmse_ratio > l.rmse_ratio) fail(format("RMSE {:.3g} times the baseline's > {:.3g}", t.rmse_ratio, l.rmse_ratio));
  if (t.cosine < l.min_cosine) fail(format("cosine {:.6f} < {:.6f}", t.cosine, l.min_cosine));
}

void note_metadata(const TraceReader& a, const TraceReader& b, Comparison& out) {
  for (const char* key : {"model_digest", "numerics", "tokens", "positions"}) {
    const std::string va = a.metadata(key), vb = b.metadata(key);
    if (!va.empty() && !vb.empty() && va != vb) out.notes.push_back(format("{} differs: {} against {}", key, va, vb));
  }
  for (const TraceReader* r : {&a, &b}) {
    if (const std::string replay = r->metadata("replay"); !replay.empty())
      out.notes.push_back(format("{} is a replay of {}: what differs in a layer was made in that layer", r->path(), replay));
    for (const std::string& name : r->skipped())
      out.notes.push_back(format("{}: {} has a type that is not compared", r->path(), name));
    for (const std::string& note : r->notes()) out.notes.push_back(format("{}: {}", r->path(), note));
  }
}

// Errors of a judged run as multiples of a third run's. Both are at least one rounding, so that two exact runs are equal.
void relate_to_baseline(const TensorDistance& base, TensorDistance& t) {
  const double unit = t.dtype == "BF16" ? 0x1p-8 : t.dtype == "F16" ? 0x1p-11 : 0x1p-24;
  const auto ratio = [](double x, double y, double least) { return std::max(x, least) / std::max(y, least); };
  const double scale = t.nmse > 0 && std::isfinite(t.nmse) ? t.rmse / std::sqrt(t.nmse) : 1;  // root mean square of the golden values
  t.mare_ratio = ratio(t.max_rel, base.max_rel, unit);
  t.mere_ratio = ratio(t.mean_rel, base.mean_rel, unit);
  t.rmse_ratio = ratio(t.rmse, base.rmse, unit * scale);
}

// Two verdicts that are often taken for one another.
void note_closeness(Comparison& out) {
  if (!out.logits || out.logits->compared == 0) return;
  const auto t = std::find_if(out.tensors.begin(), out.tensors.end(), [](const TensorDistance& x) { return x.name == "logits"; });
  if (t == out.tensors.end()) return;
  // Nats; a quantisation to 4 bits changes the distribution by about as much.
  constexpr double kFarKl = 0.01;
  const bool far = out.logits->kl_max > kFarKl;
  if (t->cosine > 0.999 && far) {
    out.notes.push_back(format("the logits are close as a tensor (cosine {:.6f}, {:.3g} of the row) and far as distributions (KL up to {:.3g} "
                               "nats in row {}): judge by the KL", t->cosine, t->row_relative, out.logits->kl_max, out.logits->kl_max_row));
  }
}

}  // namespace

Result<TensorDistance> compare_tensor(TraceReader& a, TraceReader& b, const std::string& name) {
  const TraceTensor* ta = a.find(name);
  const TraceTensor* tb = b.find(name);
  if (ta == nullptr || tb == nullptr) return error(StatusCode::kNotFound, "{} is not in both traces", name);
  if (ta->shape != tb->shape || ta->is_integer() != tb->is_integer() || ta->cols > kMaxColumns)
    return error(StatusCode::kInvalidArgument, "{} has another shape or kind of type in {}", name, b.path());
  TensorDistance out;
  Comparer comparer(a, b, -1, -1);
  PM_RETURN_IF_ERROR(comparer.tensor(*ta, *tb, out));
  return out;
}

Result<Comparison> compare_traces(TraceReader& a, TraceReader& b, const CompareOptions& options) {
  const CompareLimits& limits = options.limits;
  Comparison out{.limits = limits};
  if (limits.needs_baseline() && options.baseline == nullptr) {
    return error(StatusCode::kInvalidArgument, "profile {} judges errors as multiples of a third run's: give that run with --baseline",
                 limits.profile);
  }
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
  if (!options.common_only && out.only_a.size() + out.only_b.size() > 0) out.ok = false;

  const auto judged = [&](const std::string& name, const std::string& failure) {
    if (failure.empty()) return;
    out.ok = false;
    if (out.first_divergence.empty()) out.first_divergence = name;
  };
  Comparer comparer(a, b, limits.atol, limits.rtol);
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
    if (options.baseline != nullptr && !ta->is_integer() && options.baseline->find(ta->name) != nullptr) {
      PM_ASSIGN_OR_RETURN(const TensorDistance base, compare_tensor(*options.baseline, b, ta->name));
      relate_to_baseline(base, t);
    }
    judge(limits, t, ta->is_integer());
    if (options.shadow != nullptr && !ta->is_integer() && options.shadow->find(ta->name) != nullptr) {
      PM_ASSIGN_OR_RETURN(TensorDistance local, compare_tensor(a, *options.shadow, ta->name));
      t.local_row_relative = local.row_relative;
      judge(limits, local, false);
      if (!local.failure.empty() && out.first_local.empty()) out.first_local = t.name;
    }
    judged(t.name, t.failure);
    const TracePlace place = trace_place(ta->name);
    if (place.point == TracePoint::kLogits) {
      LogitsDistance& l = out.logits.emplace();
      PM_RETURN_IF_ERROR(compare_logits(a, b, *ta, *tb, limits, l));
      judged(t.name, l.failure);
    } else if (place.point == TracePoint::kRouterIds && ta->cols > 0) {
      RouterDistance& r = out.routers.emplace_back();
      r.layer = place.layer;
      r.scale = options.routed_scaling_factor;
      PM_RETURN_IF_ERROR(compare_router(a, b, *ta, *tb, limits, comparer.flipped, r));
      judged(t.name, r.failure);
    }
  }
  note_closeness(out);
  return out;
}

}  // namespace pointsman
