// SPDX-License-Identifier: Apache-2.0
#include "pack/verify.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/log.h"
#include "base/thread.h"
#include "pack/matrix_reader.h"
#include "pack/plan.h"

namespace pointsman {
namespace {

constexpr size_t kMaxListed = 100;

// Both folders are planned as if they were to be kept: then records and matrices come in the same order, whatever the layouts.
class Verifier {
 public:
  Verifier(const PackPlan& packed, const PackPlan& source, PackProgress progress) : packed_(packed), source_(source), progress_(progress) {}

  Result<PackVerification> run(int threads) {
    if (packed_.records.size() != source_.records.size()) {
      return error(StatusCode::kInvalidArgument, "{} and {} are not of one model: {} and {} tensors and experts", packed_.source->directory(),
                   source_.source->directory(), packed_.records.size(), source_.records.size());
    }
    out_.report.matrices.resize(packed_.records.size() * kNumWeightParts);
    std::vector<Thread> workers;
    for (int i = 1; i < threads; ++i) workers.emplace_back([this] { work(); });
    work();
    workers.clear();
    PM_RETURN_IF_ERROR(status_);
    std::erase_if(out_.report.matrices, [](const MatrixReport& m) { return m.name.empty(); });
    for (const PackRecord& r : packed_.records) ++(r.is_expert() ? out_.report.experts : out_.report.tensors);
    find_abnormal_experts(out_.report);
    return std::move(out_);
  }

 private:
  void work() {
    MatrixReader ours(*packed_.source), theirs(*source_.source);
    for (size_t i; !stop_ && (i = next_++) < packed_.records.size();) {
      const PackRecord &a = packed_.records[i], &b = source_.records[i];
      Status status = compare(i, a, b, ours, theirs);
      if (status.ok() && !progress_(done_ += b.source_bytes, source_.source_bytes)) status = {StatusCode::kUnavailable, "interrupted"};
      if (status.ok()) continue;
      std::lock_guard guard(mutex_);
      if (status_.ok()) status_ = std::move(status);
      stop_ = true;
    }
  }

  void mismatch(std::string text) {
    std::lock_guard guard(mutex_);
    ++out_.num_mismatches;
    if (out_.mismatches.size() < kMaxListed) out_.mismatches.push_back(std::move(text));
  }

  Status compare(size_t index, const PackRecord& a, const PackRecord& b, MatrixReader& ours, MatrixReader& theirs) {
    if (a.name != b.name || a.matrices.size() != b.matrices.size() || (a.copied == nullptr) != (b.copied == nullptr)) {
      return error(StatusCode::kInvalidArgument, "{} and {} are not of one model: {} against {}", packed_.source->directory(), source_.source->directory(),
                   a.name, b.name);
    }
    if (a.copied != nullptr) return compare_copied(a, *a.copied, *b.copied);
    for (size_t m = 0; m < a.matrices.size(); ++m) {
      MatrixReport report{.name = a.matrices[m].name,
                          .unit = a.unit,
                          .from = stored_format_name(b.matrices[m].from),
                          .to = stored_format_name(a.matrices[m].from),
                          .layout = std::string(layout_name(a.matrices[m].from.layout))};
      PM_RETURN_IF_ERROR(compare_matrix(a.matrices[m], b.matrices[m], ours, theirs, report));
      out_.report.matrices[index * kNumWeightParts + m] = std::move(report);
    }
    return ok_status();
  }

  Status compare_copied(const PackRecord& record, const TensorEntry& a, const TensorEntry& b) {
    if (a.dtype != b.dtype || a.size_bytes != b.size_bytes) {
      mismatch(format("{}: {} {}, the source has {} {}", record.name, dtype_name(a.dtype), shape_string(a), dtype_name(b.dtype), shape_string(b)));
      return ok_status();
    }
    std::vector<std::byte> x(std::min<uint64_t>(a.size_bytes, 1 << 20)), y(x.size());
    for (uint64_t at = 0; at < a.size_bytes;) {
      const size_t n = std::min<uint64_t>(x.size(), a.size_bytes - at);
      PM_RETURN_IF_ERROR(packed_.source->read(a.file_idx, a.offset + at, std::span(x).first(n)));
      PM_RETURN_IF_ERROR(source_.source->read(b.file_idx, b.offset + at, std::span(y).first(n)));
      if (std::memcmp(x.data(), y.data(), n) != 0) {
        mismatch(format("{}: other bytes than the source, from byte {} on or a little later", record.name, at));
        break;
      }
      at += n;
    }
    return ok_status();
  }

  Status compare_matrix(const MatrixJob& a, const MatrixJob& b, MatrixReader& ours, MatrixReader& theirs, MatrixReport& report) {
    if (a.from.rows != b.from.rows || a.from.cols != b.from.cols) {
      return error(StatusCode::kInvalidArgument, "{}: [{}, {}], the source has [{}, {}]", a.name, a.from.rows, a.from.cols, b.from.rows, b.from.cols);
    }
    BlockFormat straight = b.from.format;
    straight.transposed = false;
    report.is_exact = a.from.dtype == b.from.dtype && a.from.format == straight;
    PM_RETURN_IF_ERROR(ours.open(a.from, a.data, a.scales));
    PM_RETURN_IF_ERROR(theirs.open(b.from, b.data, b.scales));
    const int64_t rows = a.from.rows, cols = a.from.cols;
    const bool whole = a.from.layout == WeightLayout::kInOut || b.from.layout == WeightLayout::kInOut;
    const int64_t step = whole ? rows : std::min(ours.piece_rows(), theirs.piece_rows());
    std::vector<float> x(static_cast<size_t>(cols)), y(x.size());
    bool equal = true;
    for (int64_t first = 0; first < rows && equal; first += step) {
      const int64_t n = std::min(step, rows - first);
      PM_ASSIGN_OR_RETURN(const Weight p, ours.read(first, n));
      PM_ASSIGN_OR_RETURN(const Weight q, theirs.read(first, n));
      const auto bytes = static_cast<size_t>(n * cols * dtype_bits(p.dtype) / 8);
      if (report.is_exact && std::memcmp(p.data, q.data, bytes) != 0) {
        equal = false;
        mismatch(describe(a.name, p, q, first));
      }
      for (int64_t r = 0; r < n; ++r) {
        decode_rows(p, r, 1, x.data());
        decode_rows(q, r, 1, y.data());
        for (int64_t c = 0; c < cols; ++c) {
          const double d = std::fabs(double{x[static_cast<size_t>(c)]} - double{y[static_cast<size_t>(c)]});
          report.error.max_abs = std::max(report.error.max_abs, d);
          report.error.sum_squares += d * d;
          report.error.value_squares += double{y[static_cast<size_t>(c)]} * double{y[static_cast<size_t>(c)]};
        }
        report.error.count += static_cast<uint64_t>(cols);
      }
    }
    const std::span<const std::byte> s = ours.scales(), t = theirs.scales();
    if (equal && report.is_exact && !std::ranges::equal(s, t)) mismatch(a.name + ": other scales than the source");
    if (!report.is_exact && !std::isfinite(report.error.sum_squares)) mismatch(a.name + ": a value is not finite");
    return ok_status();
  }

  static std::string describe(const std::string& name, const Weight& p, const Weight& q, int64_t first) {
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t c = 0; c < p.cols; ++c) {
        const float x = weight_value(p, r, c), y = weight_value(q, r, c);
        if (std::bit_cast<uint32_t>(x) != std::bit_cast<uint32_t>(y)) return format("{}: element [{}, {}] is {}, the source has {}", name, first + r, c, x, y);
      }
    }
    return format("{}: other codes for equal values in rows {} to {}", name, first, first + p.rows);
  }

  const PackPlan &packed_, &source_;
  PackProgress progress_;
  std::atomic<size_t> next_{0};
  std::atomic<uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  PackVerification out_;
  Status status_;
};

}  // namespace

Result<PackVerification> verify_packed(FileSystem& fs, const std::string& packed, const std::string& source, int threads, PackProgress progress) {
  const auto start = std::chrono::steady_clock::now();
  PM_ASSIGN_OR_RETURN(const PackPlan a, make_pack_plan(fs, packed, {}));
  PM_ASSIGN_OR_RETURN(PackPlan b, make_pack_plan(fs, source, {}));
  if (a.has_tied_head != b.has_tied_head) {
    // The head of the one is the embedding of the other.
    PM_ASSIGN_OR_RETURN(b, make_pack_plan(fs, source, {.rules = {{"lm_head", a.has_tied_head ? PackFormat::kInt8 : PackFormat::kBf16}}}));
  }
  PM_ASSIGN_OR_RETURN(PackVerification v, Verifier(a, b, progress).run(threads > 0 ? threads : usable_cpus()));
  v.report.formats = a.formats;
  v.report.source_bytes = b.source_bytes;
  v.report.output_bytes = a.source_bytes;
  v.report.files = a.source->files().size();
  v.report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return v;
}

}  // namespace pointsman
