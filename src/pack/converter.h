// SPDX-License-Identifier: Apache-2.0
//
// One matrix from the source to the bytes of the packed file: rearranged, or coded anew, piece by piece. Weights that are NaN or infinite are
// refused by name, row and column.
//
// An object is used by one thread at a time and keeps its buffers: a few MiB, and the scales of one matrix.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/function_ref.h"
#include "pack/matrix_reader.h"
#include "pack/plan.h"
#include "tensor/quantise.h"

namespace pointsman {

class Converter {
 public:
  // Bytes of the matrix from this offset on, in order.
  using Sink = FunctionRef<Status(uint64_t offset, std::span<const std::byte> bytes)>;
  // Source bytes that were read; false asks to stop.
  using Progress = FunctionRef<bool(uint64_t bytes)>;

  explicit Converter(const Checkpoint& source) : reader_(source) {}

  // Gives all of the matrix to `sink`. kUnavailable when `progress` asked to stop. Of numbers that are kept as they are, `error` has the values
  // and no errors.
  Status convert(const MatrixJob& job, Sink sink, Progress progress, QuantisationError& error);
  // The scales of the matrix that was converted last; empty when it has none.
  std::span<const std::byte> scales() const { return scales_out_; }

 private:
  Result<Weight> make_rows(const MatrixJob& job, const Weight& rows, int64_t first, QuantisationError& error);
  Status inspect(const MatrixJob& job, const Weight& rows, int64_t first, QuantisationError& error);

  MatrixReader reader_;
  std::vector<float> values_;
  std::vector<std::byte> codes_, panels_;
  std::vector<std::byte> scales_rows_, scales_panels_;
  std::span<const std::byte> scales_out_;
};

}  // namespace pointsman
