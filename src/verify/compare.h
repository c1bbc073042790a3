// SPDX-License-Identifier: Apache-2.0
//
// Compares two traces of the same tokens, tensor by tensor, in the order of the data flow: the first tensor beyond its limit is
// where two implementations part. `a` is what is judged, `b` the reference.
//
// A routing flip is another disease than rounding: rows of expert ids are compared as sets, a flip is excused when the
// reference's gate was a near tie, and routing weights are matched by expert id. What comes after an excused flip in its row is
// another computation: those rows are left out of the distances of later tensors, and counted. KL divergence and the most
// likely token, which say what it all amounts to, are taken over all rows, in float64 from the logits.
//
// Reads blocks of rows: memory does not grow with the files.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pointsman/status.h"
#include "verify/distance.h"
#include "verify/trace_file.h"
#include "verify/trace_names.h"

namespace pointsman {

// Beyond any of these the comparison fails. Infinity, or a negative number where 0 means something, is "not judged".
struct CompareLimits {
  static constexpr double kOff = std::numeric_limits<double>::infinity();
  std::string profile;
  bool bit_identical = false;
  double logits_abs = kOff;     // |a - b| in `logits`
  double row_relative = kOff;   // |a - b| / largest |b| of its row, in all other tensors of floats
  double atol = -1, rtol = -1;  // |a - b| <= atol + rtol |b|, everywhere, when not negative
  double mere = kOff;           // mean of |a - b| / (|b| + 1e-7); its maximum may be ten times as much
  // Errors against a golden run as multiples of a third run's errors (ascend-l1): largest, mean relative error, root mean square.
  double mare_ratio = kOff, mere_ratio = kOff, rmse_ratio = kOff;
  bool needs_baseline() const { return mare_ratio < kOff; }
  double min_cosine = -1;
  double kl_mean = kOff, kl_max = kOff;  // nats, of the reference's distribution
  double min_top1 = 0;                   // share of rows with the same most likely token, near ties excused
  double tie_margin = 0;                 // two best logits of the reference this close are a near tie
  double router_margin = kOff;  // flips are excused up to this gap between the k-th and the next gate logit of the reference
};

// "fp32" (parity of two implementations in fp32), "bf16" (bf16 arithmetic against fp32), "strict" (bit for bit), "torch"
// (torch.testing.assert_close), "ascend-community" (MERE and MARE by type), "ascend-l1" (the commercial standard for operators of
// language models: errors against a golden run as multiples of a third run's). `numerics` is what the judged trace says about itself:
// it chooses the tolerance of "torch" and "ascend-community". kInvalidArgument lists the names.
Result<CompareLimits> compare_profile(std::string_view name, std::string_view numerics);
inline constexpr std::string_view kProfileNames = "fp32, bf16, strict, torch, ascend-community or ascend-l1";

struct TensorDistance {
  std::string name, dtype;
  std::vector<int64_t> shape;
  bool bit_identical = false;
  double max_abs = 0;
  double max_rel = 0;   // |a - b| / (|b| + 1e-7)
  double mean_rel = 0;  // MERE
  double row_relative = 0;
  int64_t worst_relative_row = -1;
  double rmse = 0;
  double nmse = 0;      // sum of squares of a - b over that of b; SQNR in dB is -10 log10 of it
  double sqnr_db() const;
  double cosine = 1;
  double share_above_1e3 = 0, share_above_5e3 = 0;  // of elements whose relative difference is above 1 and 5 in a thousand
  UlpHistogram ulp;
  double worst_excess = 0;  // largest |a - b| - (atol + rtol |b|), when judged so
  int64_t worst_row = -1, worst_col = -1;
  double worst_a = 0, worst_b = 0;
  uint64_t nonfinite_a = 0, nonfinite_b = 0,
           nonfinite_mismatch = 0;  // mismatch: NaN or infinity in one, another value in the other
  int64_t first_nonfinite_row = -1;  // of a mismatch
  double first_nonfinite_a = 0, first_nonfinite_b = 0;
  uint64_t different = 0;           // integers
  uint64_t compared = 0;            // elements
  int64_t rows_left_out = 0;        // after an excused routing flip
  double mare_ratio = -1, mere_ratio = -1, rmse_ratio = -1;  // to the baseline; -1: none
  double local_row_relative = -1;   // against the shadow run; -1: none
  std::string failure;              // why it is beyond the limits; empty: it is not
};

// What it amounts to: distances of the distributions over the next token.
struct LogitsDistance {
  int64_t rows = 0, compared = 0;  // compared: without rows that hold NaN or +infinity
  double kl_mean = 0, kl_max = 0;
  double kl_median = 0, kl_p90 = 0, kl_p99 = 0, kl_p999 = 0;
  int64_t kl_max_row = -1;
  int64_t top1_same = 0, near_ties = 0;  // near_ties: other token, and excused
  int64_t top5_holds = 0;                // rows whose five best hold the reference's best
  double top5_overlap = 0;               // mean share of the reference's five best among the five best
  double top1() const { return compared > 0 ? static_cast<double>(top1_same + near_ties) / static_cast<double>(compared) : 1; }
  // Perplexity of the prompt's own tokens, where the trace says them; the ratio's standard error from the paired differences.
  int64_t scored = 0;
  double perplexity_a = 0, perplexity_b = 0, ratio = 1, ratio_error = 0;
  std::string failure;
};

struct RouterFlip {
  int64_t row = 0;
  double margin = 0;    // of the reference's gate: between its k-th and next logit; infinite when not known
  double margin_a = 0;  // of the judged gate
  std::vector<int32_t> ids, reference_ids;
  bool excused = false;
};

struct RouterDistance {
  static constexpr size_t kMaxFlips = 1000;  // kept one by one
  int layer = 0;
  int64_t rows = 0, different = 0, excused = 0;
  int64_t order_different = 0;  // the same experts in another order
  double flip_rate() const { return rows > 0 ? static_cast<double>(different) / static_cast<double>(rows) : 0; }
  double max_margin = 0;   // over rows that differ; 0 without router.logits
  double median_margin = 0;
  int64_t first_row = -1;  // first that is not excused
  std::vector<RouterFlip> flips;
  // Sums of the weights of a row, before the routed scaling factor where it is known (`scale`).
  double scale = 1;
  double weight_sum_min_a = 0, weight_sum_max_a = 0, weight_sum_min_b = 0, weight_sum_max_b = 0, weight_sum_deviation = 0;
  bool has_weights = false, has_logits = false;
  double logit_min_a = 0, logit_max_a = 0, logit_min_b = 0, logit_max_b = 0;
  // Slots that went to each expert; empty beyond 4096 experts.
  std::vector<uint64_t> load_a, load_b;
  std::vector<int> starved;     // used by the reference, and never here
  std::vector<int> overloaded;  // more than twice the reference's share and the mean
  double max_violation_a = 0, max_violation_b = 0;  // largest load / mean load - 1
  std::string failure;
};

struct Comparison {
  CompareLimits limits;
  std::vector<TensorDistance> tensors;  // in the order of the data flow
  std::optional<LogitsDistance> logits;
  std::vector<RouterDistance> routers;
  std::vector<std::string> only_a, only_b;
  std::vector<std::string> notes;  // different model digests, dtypes that were not compared, ...
  std::string first_divergence;    // name of the first tensor beyond its limit
  std::string first_local;         // with a shadow run: of the first whose own error is beyond its limit
  bool ok = true;
};

struct CompareOptions {
  CompareLimits limits;
  bool common_only = false;           // tensors that only one file has are no failure
  TraceReader* baseline = nullptr;    // a third run, for profiles that need one
  TraceReader* shadow = nullptr;      // what a trusted model computes from a's own layer inputs: parts local from inherited error
  double routed_scaling_factor = 1;   // of the model, when known
};
Result<Comparison> compare_traces(TraceReader& a, TraceReader& b, const CompareOptions& options);

// One tensor; rows by expert where the routes of a and b are known. What compare_traces does without the judgement.
Result<TensorDistance> compare_tensor(TraceReader& a, TraceReader& b, const std::string& name);

}  // namespace pointsman
