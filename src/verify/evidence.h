// SPDX-License-Identifier: Apache-2.0
//
// Inside of diagnose(): rows in memory, plain operators in float64, and one function per kind of operator that tries explanations.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "verify/compare_parts.h"
#include "verify/diagnose.h"

namespace pointsman::evidence {

struct Rows {
  int64_t rows = 0, cols = 0;
  std::vector<double> values;
  bool empty() const { return rows == 0; }
  std::span<const double> row(int64_t r) const {
    return std::span<const double>(values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols));
  }
  std::span<double> row(int64_t r) { return std::span<double>(values).subspan(static_cast<size_t>(r * cols), static_cast<size_t>(cols)); }
};
// The first rows of a tensor, at most kMaxRows positions and 2 Mi elements; empty when the trace has none of that name.
inline constexpr int64_t kMaxRows = 256;
Result<Rows> load(TraceReader& reader, const TracePlace& place);

// Largest |a - b| relative to the largest |b| of the row.
double row_error(std::span<const double> a, std::span<const double> b);
// The largest of all rows. Infinite when one holds NaN or infinity.
double error_of(const Rows& a, const Rows& b);
bool same_shape(const Rows& a, const Rows& b);

// Shares of values that are representable in fewer bits.
struct Representable {
  double bf16 = 0, f16 = 0;
  uint64_t finite = 0;
};
Representable representable(std::span<const double> values);

// y = x W^T
std::vector<double> linear(const Matrix& w, std::span<const double> x);

// An explanation holds when it reproduces the judged values this well: the noise of fp32, or of the reference itself.
inline constexpr double kReproduces = 2e-5;

struct Case {
  const DiagnoseInputs& in;
  TracePlace place;
  Diagnosis& out;
  void say(std::string line) const { out.evidence.push_back(std::move(line)); }
  void name(FaultKind kind, std::string cause) const {
    out.kind = kind;
    out.cause = std::move(cause);
  }
  TracePlace at(TracePoint point) const { return {place.layer, point}; }
};

// True when the judged values themselves show a narrower type: rounded to it, or beyond its range.
Result<bool> try_dtype(const Case& c);
Status try_norm(const Case& c);
Status try_rope(const Case& c);
Status try_attention(const Case& c);
Status try_projection(const Case& c);
Status try_gate(const Case& c);
Status try_choice(const Case& c);
Status try_weights(const Case& c);
Status try_experts(const Case& c);
Status try_combine(const Case& c);

// Epsilons of two RMS norms of the same rows, from the factors between their results: (m + a) = factor^2 (m + b) with m the mean square
// of a row. Empty when the rows do not follow such a law.
struct Epsilons {
  double a = 0, b = 0, misfit = 0;
};
std::optional<Epsilons> fit_epsilons(std::span<const double> mean_squares, std::span<const double> factors);

}  // namespace pointsman::evidence
