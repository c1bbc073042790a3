// SPDX-License-Identifier: Apache-2.0
//
// Reads a stored matrix piece by piece as rows [out, in], whatever its layout is: rows, panels, or transposed (which is read whole). Scales are
// read once, and straightened.
//
// An object is used by one thread at a time and may be used for one matrix after another; it keeps its buffers.
#pragma once

#include <span>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "pack/plan.h"
#include "pointsman/status.h"

namespace pointsman {

// [rows, cols] elements of so many bytes to [cols, rows].
void transpose_elements(int bytes, const std::byte* from, int64_t rows, int64_t cols, std::byte* to);

class MatrixReader {
 public:
  explicit MatrixReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  // Reads the scales. `w` says what is stored; data and scales say where.
  Status open(const Weight& w, const SourceRange& data, const SourceRange& scales);
  // How many rows to ask for at once: a multiple of 32 (or all), about kPieceBytes.
  int64_t piece_rows() const;
  // Rows [first, first + count): a kOutIn view with the same bits, valid until the next call. Its scales are those of the whole matrix.
  // REQUIRES: first is a multiple of 32, and count is one or reaches the end; a transposed matrix is asked for whole.
  Result<Weight> read(int64_t first, int64_t count);
  // The straight grid in rows; complete after the last read().
  std::span<const std::byte> scales() const { return grid_rows_; }

 private:
  static constexpr int64_t kPieceBytes = 2 << 20;

  const Checkpoint& checkpoint_;
  Weight w_;
  SourceRange data_;
  std::vector<std::byte> raw_, rows_, grid_stored_, grid_rows_;
};

}  // namespace pointsman
