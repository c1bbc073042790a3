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
#include "verify/trace_file.h"

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
  double min_cosine = -1;
  double kl_mean = kOff, kl_max = kOff;  // nats, of the reference's distribution
  double min_top1 = 0;                   // share of rows with the same most likely token, near ties excused
  double tie_margin = 0;                 // two best logits of the reference this close are a near tie
  double router_margin = kOff;  // flips are excused up to this gap between the k-th and the next gate logit of the reference
};

// "fp32" (parity of two implementations in fp32), "bf16" (bf16 arithmetic against fp32), "strict" (bit for bit), "torch"
// (torch.testing.assert_close), "ascend-community" (MERE and MARE). `numerics` is what the judged trace says about itself: it
// chooses the tolerance of the last two. kInvalidArgument lists the names.
Result<CompareLimits> compare_profile(std::string_view name, std::string_view numerics);

struct TensorDistance {
  std::string name, dtype;
  std::vector<int64_t> shape;
  bool bit_identical = false;
  double max_abs = 0;
  double max_rel = 0;   // |a - b| / (|b| + 1e-7)
  double mean_rel = 0;  // MERE
  double row_relative = 0;
  double rmse = 0;
  double cosine = 1;
  double worst_excess = 0;  // largest |a - b| - (atol + rtol |b|), when judged so
  int64_t worst_row = -1, worst_col = -1;
  double worst_a = 0, worst_b = 0;
  uint64_t nonfinite_a = 0, nonfinite_b = 0,
           nonfinite_mismatch = 0;  // mismatch: NaN or infinity in one, another value in the other
  uint64_t different = 0;           // integers
  uint64_t compared = 0;            // elements
  int64_t rows_left_out = 0;        // after an excused routing flip
  std::string failure;              // why it is beyond the limits; empty: it is not
};

struct LogitsDistance {
  int64_t rows = 0, compared = 0;  // compared: without rows that hold NaN or +infinity
  double kl_mean = 0, kl_max = 0;
  int64_t kl_max_row = -1;
  int64_t top1_same = 0, near_ties = 0;  // near_ties: other token, and excused
  double top1() const { return compared > 0 ? static_cast<double>(top1_same + near_ties) / static_cast<double>(compared) : 1; }
  std::string failure;
};

struct RouterDistance {
  int layer = 0;
  int64_t rows = 0, different = 0, excused = 0;
  double max_margin = 0;   // over rows that differ; 0 without router.logits
  int64_t first_row = -1;  // first that is not excused
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
  bool ok = true;
};

// `common_only`: tensors that only one file has are no failure.
Result<Comparison> compare_traces(TraceReader& a, TraceReader& b, const CompareLimits& limits, bool common_only = false);

// layers.2.router.logits < layers.2.hidden < layers.10.hidden < logits
bool before_in_data_flow(std::string_view a, std::string_view b);

}  // namespace pointsman
