// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "verify/compare_parts.h"

namespace pointsman {
namespace {

// Indices of the five largest; the lower index first among equals.
std::vector<size_t> best_five(std::span<const double> row) {
  std::vector<size_t> order(row.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t n = std::min<size_t>(5, row.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(n), order.end(),
                    [&](size_t x, size_t y) { return row[x] != row[y] ? row[x] > row[y] : x < y; });
  order.resize(n);
  return order;
}

double negative_log_likelihood(std::span<const double> row, size_t token) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const double v : row) sum += std::exp(v - top);
  return top + std::log(sum) - row[token];
}

// REQUIRES: sorted, not empty.
double percentile(const std::vector<double>& sorted, double p) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(std::ceil(p * static_cast<double>(sorted.size()))) - (p > 0 ? 1 : 0))];
}

}  // namespace

Status compare_logits(TraceReader& a, TraceReader& b, const TraceTensor& ta, const TraceTensor& tb, const CompareLimits& limits,
                      LogitsDistance& out) {
  out.rows = ta.rows;
  const size_t n = static_cast<size_t>(ta.cols);
  // Positions of a trace that selects some are not neighbours: then no token is known to follow.
  std::vector<int32_t> tokens;
  if (b.metadata("positions").empty()) {
    if (const Result<std::vector<int32_t>> known = trace_tokens(b); known.ok() && static_cast<int64_t>(known->size()) == ta.rows)
      tokens = *known;
  }
  std::vector<double> va, vb, kl_rows, log_ratios;
  double nll_a = 0, nll_b = 0;
  const int64_t step = rows_per_block(ta.cols);
  for (int64_t row = 0; row < ta.rows; row += step) {
    const int64_t count = std::min(step, ta.rows - row);
    PM_RETURN_IF_ERROR(a.read_rows(ta, row, count, va));
    PM_RETURN_IF_ERROR(b.read_rows(tb, row, count, vb));
    for (int64_t r = 0; r < count; ++r) {
      const std::span<const double> x = std::span(va).subspan(static_cast<size_t>(r) * n, n);
      const std::span<const double> y = std::span(vb).subspan(static_cast<size_t>(r) * n, n);
      const std::optional<double> kl = kl_divergence(y, x);
      if (!kl) continue;
      ++out.compared;
      kl_rows.push_back(*kl);
      if (*kl > out.kl_max || out.kl_max_row < 0) {
        out.kl_max = *kl;
        out.kl_max_row = row + r;
      }
      const std::vector<size_t> best_a = best_five(x), best_b = best_five(y);
      if (best_a[0] == best_b[0]) {
        ++out.top1_same;
      } else if (n > 1 && gap_after(y, 1) <= limits.tie_margin) {
        ++out.near_ties;
      }
      size_t common = 0;
      for (const size_t i : best_b) common += std::find(best_a.begin(), best_a.end(), i) != best_a.end();
      out.top5_overlap += static_cast<double>(common) / static_cast<double>(best_b.size());
      out.top5_holds += std::find(best_a.begin(), best_a.end(), best_b[0]) != best_a.end();
      const size_t next = static_cast<size_t>(row + r) + 1;
      if (next < tokens.size() && tokens[next] >= 0 && static_cast<size_t>(tokens[next]) < n) {
        const size_t token = static_cast<size_t>(tokens[next]);
        const double la = negative_log_likelihood(x, token), lb = negative_log_likelihood(y, token);
        if (std::isfinite(la) && std::isfinite(lb)) {
          nll_a += la;
          nll_b += lb;
          log_ratios.push_back(la - lb);
        }
      }
    }
  }
  if (!kl_rows.empty()) {
    out.kl_mean = std::accumulate(kl_rows.begin(), kl_rows.end(), 0.0) / static_cast<double>(kl_rows.size());
    std::sort(kl_rows.begin(), kl_rows.end());
    out.kl_median = percentile(kl_rows, 0.5);
    out.kl_p90 = percentile(kl_rows, 0.9);
    out.kl_p99 = percentile(kl_rows, 0.99);
    out.kl_p999 = percentile(kl_rows, 0.999);
    out.top5_overlap /= static_cast<double>(kl_rows.size());
  }
  if (!log_ratios.empty()) {
    const double count = static_cast<double>(log_ratios.size());
    out.scored = static_cast<int64_t>(log_ratios.size());
    out.perplexity_a = std::exp(nll_a / count);
    out.perplexity_b = std::exp(nll_b / count);
    const double mean = (nll_a - nll_b) / count;
    double squares = 0;
    for (const double d : log_ratios) squares += (d - mean) * (d - mean);
    out.ratio = std::exp(mean);
    // Of the mean of paired differences, carried through the exponential.
    out.ratio_error = count > 1 ? out.ratio * std::sqrt(squares / (count - 1) / count) : 0;
  }
  const auto fail = [&](std::string why) { out.failure += (out.failure.empty() ? "" : "; ") + why; };
  if (out.kl_mean > limits.kl_mean) fail(format("mean KL {:.3g} > {:.3g}", out.kl_mean, limits.kl_mean));
  if (out.kl_max > limits.kl_max) fail(format("KL {:.3g} > {:.3g} in row {}", out.kl_max, limits.kl_max, out.kl_max_row));
  if (out.top1() < limits.min_top1)
    fail(format("same most likely token in {:.2f} % < {:.2f} %", 100 * out.top1(), 100 * limits.min_top1));
  return ok_status();
}

}  // namespace pointsman
