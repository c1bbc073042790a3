// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "verify/compare_parts.h"

namespace pointsman {
namespace {

constexpr size_t kMaxExpertsCounted = 4096;

std::string in_layer(int layer, TracePoint point) { return trace_name({layer, point}); }

// Gate logits of a layer, when they fit to `ids`.
const TraceTensor* gate_of(TraceReader& r, int layer, const TraceTensor& ids) {
  const TraceTensor* gate = r.find(in_layer(layer, TracePoint::kRouterLogits));
  return gate != nullptr && gate->rows == ids.rows && gate->cols > ids.cols && gate->cols <= kMaxColumns ? gate : nullptr;
}

// Smallest and largest value, and what `each_row` makes of every row.
template <class F>
Status scan(TraceReader& reader, const TraceTensor& t, F&& each_row) {
  std::vector<double> values;
  const int64_t step = rows_per_block(t.cols);
  for (int64_t row = 0; row < t.rows; row += step) {
    const int64_t count = std::min(step, t.rows - row);
    PM_RETURN_IF_ERROR(reader.read_rows(t, row, count, values));
    for (int64_t r = 0; r < count; ++r)
      each_row(row + r, std::span<const double>(values).subspan(static_cast<size_t>(r * t.cols), static_cast<size_t>(t.cols)));
  }
  return ok_status();
}

Status logits_range(TraceReader& reader, const TraceTensor& gate, double& low, double& high) {
  bool any = false;
  return scan(reader, gate, [&](int64_t, std::span<const double> row) {
    for (const double v : row) {
      if (!std::isfinite(v)) continue;
      low = any ? std::min(low, v) : v;
      high = any ? std::max(high, v) : v;
      any = true;
    }
  });
}

Status weight_sums(TraceReader& a, TraceReader& b, int layer, const TraceTensor& ids, RouterDistance& out) {
  const TraceTensor* wa = a.find(in_layer(layer, TracePoint::kRouterWeights));
  const TraceTensor* wb = b.find(in_layer(layer, TracePoint::kRouterWeights));
  if (wa == nullptr || wb == nullptr || wa->rows != ids.rows || wb->rows != ids.rows) return ok_status();
  std::vector<double> sums;
  const auto sum = [&](std::span<const double> row) {
    double s = 0;
    for (const double v : row) s += v;
    return s / out.scale;
  };
  PM_RETURN_IF_ERROR(scan(a, *wa, [&](int64_t row, std::span<const double> values) {
    const double s = sum(values);
    sums.push_back(s);
    out.weight_sum_min_a = row == 0 ? s : std::min(out.weight_sum_min_a, s);
    out.weight_sum_max_a = row == 0 ? s : std::max(out.weight_sum_max_a, s);
  }));
  PM_RETURN_IF_ERROR(scan(b, *wb, [&](int64_t row, std::span<const double> values) {
    const double s = sum(values);
    out.weight_sum_min_b = row == 0 ? s : std::min(out.weight_sum_min_b, s);
    out.weight_sum_max_b = row == 0 ? s : std::max(out.weight_sum_max_b, s);
    out.weight_sum_deviation = std::max(out.weight_sum_deviation, std::fabs(s - sums[static_cast<size_t>(row)]));
  }));
  out.has_weights = true;
  return ok_status();
}

double violation(const std::vector<uint64_t>& load) {
  uint64_t total = 0, most = 0;
  for (const uint64_t n : load) total += n, most = std::max(most, n);
  return total > 0 ? static_cast<double>(most) * static_cast<double>(load.size()) / static_cast<double>(total) - 1 : 0;
}

void judge_loads(RouterDistance& out) {
  out.max_violation_a = violation(out.load_a);
  out.max_violation_b = violation(out.load_b);
  uint64_t total = 0;
  for (const uint64_t n : out.load_a) total += n;
  for (size_t e = 0; e < out.load_a.size(); ++e) {
    if (out.load_a[e] == 0 && out.load_b[e] > 0) out.starved.push_back(static_cast<int>(e));
    // Twice the reference's share, and well above it in numbers too.
    if (out.load_a[e] > 2 * out.load_b[e] && out.load_a[e] * out.load_a.size() > 2 * total) out.overloaded.push_back(static_cast<int>(e));
  }
}

}  // namespace

Status compare_router(TraceReader& a, TraceReader& b, const TraceTensor& ta, const TraceTensor& tb, const CompareLimits& limits,
                      std::vector<bool>& flipped, RouterDistance& out) {
  const TraceTensor* gate_a = gate_of(a, out.layer, ta);
  const TraceTensor* gate_b = gate_of(b, out.layer, tb);
  out.rows = ta.rows;
  const size_t k = static_cast<size_t>(ta.cols);
  if (gate_a != nullptr && gate_b != nullptr) {
    out.has_logits = true;
    PM_RETURN_IF_ERROR(logits_range(a, *gate_a, out.logit_min_a, out.logit_max_a));
    PM_RETURN_IF_ERROR(logits_range(b, *gate_b, out.logit_min_b, out.logit_max_b));
  }
  PM_RETURN_IF_ERROR(weight_sums(a, b, out.layer, ta, out));
  std::vector<double> ids_a, ids_b, logits_a, logits_b, margins;
  const int64_t step = rows_per_block(std::max({ta.cols, gate_a ? gate_a->cols : 0, gate_b ? gate_b->cols : 0}));
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    PM_RETURN_IF_ERROR(a.read_rows(ta, row, count, ids_a));
    PM_RETURN_IF_ERROR(b.read_rows(tb, row, count, ids_b));
    if (gate_a != nullptr) PM_RETURN_IF_ERROR(a.read_rows(*gate_a, row, count, logits_a));
    if (gate_b != nullptr) PM_RETURN_IF_ERROR(b.read_rows(*gate_b, row, count, logits_b));
    for (size_t r = 0; r < static_cast<size_t>(count); ++r) {
      std::vector<double> x(ids_a.begin() + static_cast<ptrdiff_t>(r * k), ids_a.begin() + static_cast<ptrdiff_t>((r + 1) * k));
      std::vector<double> y(ids_b.begin() + static_cast<ptrdiff_t>(r * k), ids_b.begin() + static_cast<ptrdiff_t>((r + 1) * k));
      for (const auto& [ids, load] : {std::pair(&x, &out.load_a), std::pair(&y, &out.load_b)}) {
        for (const double id : *ids) {
          if (!(id >= 0) || id >= kMaxExpertsCounted) continue;
          const size_t e = static_cast<size_t>(id);
          const size_t need = std::max({e + 1, out.load_a.size(), out.load_b.size(), gate_b ? static_cast<size_t>(gate_b->cols) : 0});
          if (need > kMaxExpertsCounted) continue;
          out.load_a.resize(need);
          out.load_b.resize(need);
          ++(*load)[e];
        }
      }
      const bool same_order = x == y;
      RouterFlip flip{.row = row + static_cast<int64_t>(r)};
      for (const double id : x) flip.ids.push_back(static_cast<int32_t>(std::clamp(id, -1.0, 2e9)));
      for (const double id : y) flip.reference_ids.push_back(static_cast<int32_t>(std::clamp(id, -1.0, 2e9)));
      std::sort(x.begin(), x.end());
      std::sort(y.begin(), y.end());
      if (x == y) {
        out.order_different += !same_order;
        continue;
      }
      ++out.different;
      // Without gate logits nothing excuses a flip.
      const auto margin_of = [&](const TraceTensor* gate, const std::vector<double>& logits) {
        if (gate == nullptr) return CompareLimits::kOff;
        const size_t n = static_cast<size_t>(gate->cols);
        return gap_after(std::span(logits).subspan(r * n, n), k);
      };
      flip.margin = margin_of(gate_b, logits_b);
      flip.margin_a = margin_of(gate_a, logits_a);
      if (flip.margin < CompareLimits::kOff) {
        out.max_margin = std::max(out.max_margin, flip.margin);
        margins.push_back(flip.margin);
      }
      flip.excused = flip.margin <= limits.router_margin && flip.margin < CompareLimits::kOff;
      if (flip.excused) {
        ++out.excused;
        flipped.resize(std::max(flipped.size(), static_cast<size_t>(ta.rows)));
        flipped[static_cast<size_t>(flip.row)] = true;
      } else if (out.first_row < 0) {
        out.first_row = flip.row;
      }
      if (out.flips.size() < RouterDistance::kMaxFlips) out.flips.push_back(std::move(flip));
    }
  }
  judge_loads(out);
  if (!margins.empty()) {
    std::nth_element(margins.begin(), margins.begin() + static_cast<ptrdiff_t>(margins.size() / 2), margins.end());
    out.median_margin = margins[margins.size() / 2];
  }
  if (out.different > out.excused) {
    out.failure = format("{} of {} rows chose other experts, {} of them near ties; the first that is none is row {}",
                         out.different, out.rows, out.excused, out.first_row);
  }
  return ok_status();
}

}  // namespace pointsman
