// SPDX-License-Identifier: Apache-2.0
//
// The rows of a pass belong to sequences, one run of rows each, and every sequence has its own cache and its own positions. Only ops that
// touch a cache look at this; everything else sees rows.
#pragma once

#include <cstdint>

namespace pointsman::ops {

// Sequences in one pass, at most. Lists are inline, so that an op's arguments are copied whole into a stream.
inline constexpr int kMaxSequences = 64;

// Sequence s has the rows [first_row[s], first_row[s + 1]), at positions from first_position[s] on. Runs follow one another and may be
// empty.
struct Sequences {
  int32_t count = 0;
  int64_t first_row[kMaxSequences + 1] = {};
  int64_t first_position[kMaxSequences] = {};

  Sequences() = default;
  // One sequence.
  Sequences(int64_t rows, int64_t position) { add(rows, position); }
  // REQUIRES: count < kMaxSequences.
  void add(int64_t rows, int64_t position) {
    first_position[count] = position;
    first_row[count + 1] = first_row[count] + rows;
    ++count;
  }

  int64_t rows() const { return first_row[count]; }
  int64_t rows_of(int s) const { return first_row[s + 1] - first_row[s]; }
  int64_t end_position(int s) const { return first_position[s] + rows_of(s); }
  int64_t position(int s, int64_t row) const { return first_position[s] + row - first_row[s]; }
  // Of a row in [0, rows()). Always inline: kernels of several instruction sets use it.
  [[gnu::always_inline]] int of_row(int64_t row) const {
    // Decode: one row each.
    if (row < count && first_row[row] == row && first_row[row + 1] == row + 1) return static_cast<int>(row);
    int s = 0;
    while (first_row[s + 1] <= row) ++s;
    return s;
  }
  // Rows [first, first + n) as a list of the same sequences, in which those without rows are empty.
  Sequences slice(int64_t first, int64_t n) const {
    const auto clip = [&](int64_t row) { return row < first ? 0 : row > first + n ? n : row - first; };
    Sequences part;
    for (int s = 0; s < count; ++s) {
      const int64_t begin = clip(first_row[s]), cut_off = first < first_row[s + 1] ? first : first_row[s + 1];
      part.add(clip(first_row[s + 1]) - begin, first_position[s] + (cut_off > first_row[s] ? cut_off - first_row[s] : 0));
    }
    return part;
  }
  // Are these `num_rows` rows, at positions within a cache of `capacity`?
  bool fit(int64_t num_rows, int64_t capacity) const {
    if (count < 1 || count > kMaxSequences || rows() != num_rows) return false;
    for (int s = 0; s < count; ++s) {
      if (first_position[s] < 0 || rows_of(s) < 0 || rows_of(s) > capacity - first_position[s]) return false;
    }
    return true;
  }
  // The furthest position that a row has, and one.
  int64_t longest() const {
    int64_t n = 0;
    for (int s = 0; s < count; ++s) n = end_position(s) > n ? end_position(s) : n;
    return n;
  }
};

// One device address of each sequence.
struct PerSequence {
  void* at[kMaxSequences] = {};

  PerSequence() = default;
  PerSequence(void* one) : at{one} {}  // NOLINT(google-explicit-constructor): a single sequence's reads as one
  void* operator[](int s) const { return at[s]; }
  template <class F>
  void each_address(int32_t count, F&& visit) {
    for (int32_t s = 0; s < count; ++s) visit(at[s]);
  }
};

}  // namespace pointsman::ops
