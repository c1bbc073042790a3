// SPDX-License-Identifier: Apache-2.0
#include "pack/converter.h"

#include <algorithm>
#include <cmath>

#include "base/log.h"
#include "tensor/panel_layout.h"

namespace pointsman {
namespace {

// Rows that are decoded at once: their values stay in the cache.
constexpr int64_t kRowsAtOnce = 4;

Status not_finite(const std::string& name, int64_t row, int64_t col, float value) {
  return error(StatusCode::kCorrupt, "{}: element [{}, {}] is {}, expected a finite number; the weights are broken: fetch the shard again", name, row, col,
               value);
}

// Sums squares of n values; false when one of them is not finite (or as good as).
bool add_squares(const float* v, int64_t n, double& sum) {
  double total = 0;
  for (int64_t at = 0; at < n; at += 1024) {
    float partial[16] = {};
    const int64_t m = std::min<int64_t>(1024, n - at), whole = m / 16 * 16;
    for (int64_t i = 0; i < whole; i += 16) {
      for (int64_t j = 0; j < 16; ++j) partial[j] += v[at + i + j] * v[at + i + j];
    }
    for (int64_t i = whole; i < m; ++i) partial[0] += v[at + i] * v[at + i];
    for (const float p : partial) total += double{p};
  }
  sum += total;
  return std::isfinite(total);
}

}  // namespace

// The numbers stay, and all of them are looked at.
Status Converter::inspect(const MatrixJob& job, const Weight& rows, int64_t first, QuantisationError& error) {
  values_.resize(static_cast<size_t>(rows.cols));
  for (int64_t r = 0; r < rows.rows; ++r) {
    bool is_finite = true;
    if (is_plain(rows.dtype)) {
      decode_rows(rows, r, 1, values_.data());
      is_finite = add_squares(values_.data(), rows.cols, error.value_squares);
      error.count += static_cast<uint64_t>(rows.cols);
    } else {
      QuantisationError of_row;
      add_value_squares(rows, r, of_row);
      is_finite = std::isfinite(of_row.value_squares);
      error.add(of_row);
    }
    if (is_finite) continue;
    decode_rows(rows, r, 1, values_.data());
    for (int64_t c = 0; c < rows.cols; ++c) {
      const float v = values_[static_cast<size_t>(c)];
      if (!std::isfinite(v)) return not_finite(job.name, first + r, c, v);
    }
  }
  return ok_status();
}

// The piece in the target's dtype, still in rows.
Result<Weight> Converter::make_rows(const MatrixJob& job, const Weight& rows, int64_t first, QuantisationError& error) {
  const int64_t cols = rows.cols, code_bytes = cols * dtype_bits(job.to.dtype) / 8;
  const int64_t scale_bytes = job.code ? job.to.format.grid_cols(cols) * dtype_bits(job.to.format.scale_dtype) / 8 : 0;
  codes_.resize(static_cast<size_t>(rows.rows * code_bytes));
  values_.resize(static_cast<size_t>(kRowsAtOnce * cols));
  for (int64_t r = 0; r < rows.rows; r += kRowsAtOnce) {
    const int64_t n = std::min(kRowsAtOnce, rows.rows - r);
    decode_rows(rows, r, n, values_.data());
    for (int64_t i = 0; i < n; ++i) {
      const float* v = values_.data() + i * cols;
      auto* to = reinterpret_cast<uint8_t*>(codes_.data()) + (r + i) * code_bytes;
      if (job.code) {
        auto* scales = reinterpret_cast<uint8_t*>(scales_rows_.data()) + (first + r + i) * scale_bytes;
        const int64_t bad = quantise_row(*job.code, job.scale_rule, v, cols, to, scales, error);
        if (bad >= 0) return not_finite(job.name, first + r + i, bad, v[bad]);
        continue;
      }
      for (int64_t c = 0; c < cols; ++c) {
        const bf16 half = to_bf16(v[c]);
        const float back = to_float(half);
        // Beyond the largest BF16 as well: F32 goes a little further.
        if (!std::isfinite(back)) return not_finite(job.name, first + r + i, c, v[c]);
        std::memcpy(to + 2 * c, &half, 2);
        const float d = std::fabs(v[c] - back);
        error.max_abs = std::max(error.max_abs, double{d});
        error.sum_squares += double{d} * double{d};
        error.value_squares += double{v[c]} * double{v[c]};
      }
      error.count += static_cast<uint64_t>(cols);
    }
  }
  Weight made(Tensor::matrix(codes_.data(), job.to.dtype, rows.rows, cols));
  made.format = job.to.format;
  return made;
}

Status Converter::convert(const MatrixJob& job, Sink sink, Progress progress, QuantisationError& error) {
  PM_RETURN_IF_ERROR(reader_.open(job.from, job.data, job.scales));
  scales_rows_.resize(job.code ? job.to_scale_bytes : 0);
  const bool to_panel = job.to.layout == WeightLayout::kPanel32;
  const bool scales_move = to_panel && job.to.format.block_rows == 1;
  scales_panels_.resize(scales_move ? job.to_scale_bytes : 0);
  const bool turned = job.to.layout == WeightLayout::kInOut;
  const int64_t piece = turned ? job.from.rows : reader_.piece_rows();
  for (int64_t first = 0; first < job.from.rows; first += piece) {
    const int64_t count = std::min(piece, job.from.rows - first);
    PM_ASSIGN_OR_RETURN(Weight rows, reader_.read(first, count));
    const auto read_bytes = static_cast<uint64_t>(count * rows.cols * dtype_bits(rows.dtype) / 8);
    if (job.is_permutation()) {
      PM_RETURN_IF_ERROR(inspect(job, rows, first, error));
    } else {
      PM_ASSIGN_OR_RETURN(rows, make_rows(job, rows, first, error));
    }
    const int64_t row_bytes = job.to.cols * dtype_bits(job.to.dtype) / 8;
    const auto offset = static_cast<uint64_t>(first * row_bytes);
    const auto bytes = static_cast<size_t>(count * row_bytes);
    const auto* out = static_cast<const std::byte*>(rows.data);
    if (to_panel) {
      panels_.resize(bytes);
      std::byte* scales = nullptr;
      rows.first_row = 0;
      rows.grid_of_rows = 0;
      if (rows.format.block_rows == 1) {
        const int64_t at = first * rows.format.grid_cols(rows.cols) * dtype_bits(rows.format.scale_dtype) / 8;
        rows.scales = (job.code ? std::span<const std::byte>(scales_rows_) : reader_.scales()).data() + at;
        scales = scales_panels_.data() + at;
      }
      to_panels(rows, panels_.data(), scales);
      out = panels_.data();
    }
    if (turned) {
      panels_.resize(bytes);
      transpose_elements(dtype_bits(job.to.dtype) / 8, out, rows.rows, rows.cols, panels_.data());
      out = panels_.data();
    }
    PM_RETURN_IF_ERROR(sink(offset, {out, bytes}));
    if (!progress(read_bytes)) return {StatusCode::kUnavailable, "interrupted"};
  }
  scales_out_ = {};
  if (job.to_scale_bytes > 0) scales_out_ = scales_move ? std::span<const std::byte>(scales_panels_) : job.code ? std::span<const std::byte>(scales_rows_) : reader_.scales();
  if (!progress(job.scales.size_bytes)) return {StatusCode::kUnavailable, "interrupted"};
  return ok_status();
}

}  // namespace pointsman
