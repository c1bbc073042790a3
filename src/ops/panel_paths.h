// SPDX-License-Identifier: Apache-2.0
//
// How a panel of packed weights meets some rows of x. Three ways that do the same operations on a row in the same order, so the choice changes
// no bit, only the time:
//
//   row dot      one row after the other streams by the panel
//   small tile   up to six rows at once stream by it
//   packed tile  a stretch of the panel is expanded into the first-level cache, then all rows pass over it
//
// The built-in rule was found on one machine. `bench ops --tune` measures another (path_table.h). What is inline here is part of kernels of every
// instruction set.
#pragma once

#include <cstdint>
#include <iterator>
#include <string_view>

#include "tensor/dtype.h"

namespace pointsman::ops {

enum class PanelPath : uint8_t { kRowDot, kSmallTile, kPackedTile };
inline constexpr int kNumPanelPaths = 3;
std::string_view panel_path_name(PanelPath path);  // "row_dot", "small_tile", "packed_tile"

// Rows of x that meet a panel at once; more come in blocks of so many.
inline constexpr int64_t kPanelRowBlock = 96;
// Formats of weights with a choice.
inline constexpr DType kPanelFormats[] = {DType::kBF16, DType::kF8E4M3, DType::kI8, DType::kF4};
// A choice holds for rows up to this bound, from the one before on.
inline constexpr int64_t kPathRows[] = {1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, kPanelRowBlock};
inline constexpr int kNumPathRows = static_cast<int>(std::size(kPathRows));

// Measured on Zen 5, K = 1024, one thread: up to 18 rows the small tile equals expanding (I8, E4M3) or is 8 to 10 % faster (F4); plain bf16 has
// nothing to expand and gains from a whole pass at 8 rows already.
[[gnu::always_inline]] constexpr PanelPath built_in_path(DType w, int64_t rows) {
  return rows <= 1 ? PanelPath::kRowDot : rows <= (w == DType::kBF16 ? 6 : 18) ? PanelPath::kSmallTile : PanelPath::kPackedTile;
}

// The choice for every format and number of rows.
struct PanelPaths {
  PanelPath of[std::size(kPanelFormats)][kNumPathRows];

  PanelPaths();  // the built-in rule
  [[gnu::always_inline]] static int format_index(DType w) {
    for (int i = 0; i < static_cast<int>(std::size(kPanelFormats)); ++i) {
      if (kPanelFormats[i] == w) return i;
    }
    return -1;
  }
  [[gnu::always_inline]] static int bound_index(int64_t rows) {
    int i = 0;
    while (i + 1 < kNumPathRows && kPathRows[i] < rows) ++i;
    return i;
  }
  [[gnu::always_inline]] PanelPath path(DType w, int64_t rows) const {
    const int format = format_index(w);
    return format < 0 ? built_in_path(w, rows) : of[format][bound_index(rows)];
  }
  friend bool operator==(const PanelPaths&, const PanelPaths&);
};
// `paths` null: the built-in rule.
[[gnu::always_inline]] inline PanelPath choose_path(const PanelPaths* paths, DType w, int64_t rows) { return paths != nullptr ? paths->path(w, rows) : built_in_path(w, rows); }

}  // namespace pointsman::ops
