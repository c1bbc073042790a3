// SPDX-License-Identifier: Apache-2.0
//
// From fp32 to block-scaled codes: INT8 with BF16 scales, MXFP8 (E4M3) and MXFP4 (E2M1) with E8M0 scales, one scale for every 32 values
// along a row; INT8-128 is INT8 with one for every 128. The inverse is block_format.h. Exact and the same on every machine: no step depends on the instruction set.
//
//   INT8   scale = amax / 127, rounded up to BF16, so that no value clips; code = value / scale, to nearest, ties to even
//   MX     scale = 2^e. kUp: e = ceil(log2(amax / largest)), nothing saturates. kDown: e = floor(log2(amax)) - floor(log2(largest)), as the
//          OCP Microscaling specification v1.0 §6.3 has it, and what is beyond the largest code saturates. e is held in [-127, 127].
//          code = value * 2^-e, to nearest, ties to even code, saturating at 448 or 6
//   A block of zeros has codes 0 and scale 1. The sign of a zero is kept, except in INT8, which has none.
#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/block_format.h"

namespace pointsman {

enum class BlockCode : uint8_t { kInt8, kInt8Wide, kMxfp8, kMxfp4 };
inline constexpr BlockCode kBlockCodes[] = {BlockCode::kInt8, BlockCode::kInt8Wide, BlockCode::kMxfp8, BlockCode::kMxfp4};
enum class ScaleRule : uint8_t { kUp, kDown };  // of E8M0

inline constexpr int64_t kCodeBlock = 32, kWideCodeBlock = 128;

std::string_view block_code_name(BlockCode code);  // "int8", "int8-128", "mxfp8", "mxfp4"
DType code_dtype(BlockCode code);
BlockFormat code_format(BlockCode code);

// What was lost, of as many values as were added.
struct QuantisationError {
  double max_abs = 0;
  double sum_squares = 0;        // of the errors
  double value_squares = 0;      // of the values
  uint64_t count = 0;

  void add(const QuantisationError& other);
  // Root mean square of the errors over that of the values; 0 for zeros.
  double relative_rms() const;
  double value_rms() const;
};

// One row. `codes`: n bytes, or n / 2 with the even element in the low nibble; `scales`: one of the format's scale type for every block. The last
// block may be partial. Returns the index of the first value that is NaN or infinite, or -1; then codes and scales mean nothing.
// REQUIRES: n is even for kMxfp4.
int64_t quantise_row(BlockCode code, ScaleRule rule, const float* values, int64_t n, uint8_t* codes, uint8_t* scales, QuantisationError& error);

// Rows [first, first + count) of a weight in host memory as fp32, [count, cols]: what weight_value() gives, faster.
void decode_rows(const Weight& w, int64_t first, int64_t count, float* out);

// Adds one row's values to error.value_squares and count, without decoding them: squares of codes are looked up, some 1.5 GB/s of codes. NaN and
// infinity leave value_squares not finite. REQUIRES: coded, in host memory, kOutIn; F4 with an even number of columns and blocks of an even width.
void add_value_squares(const Weight& w, int64_t row, QuantisationError& error);

}  // namespace pointsman
