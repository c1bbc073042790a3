// SPDX-License-Identifier: Apache-2.0
//
// What stored codes mean: quantization_config of config.json, and the rule that turns the dtypes and shapes of a weight and its scales
// into a BlockFormat. Tensors decide, the config only says what shapes cannot: block sizes. docs/formats/quantized.md has the rules.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "pointsman/status.h"
#include "tensor/block_format.h"

namespace pointsman {

inline constexpr std::string_view kPackedMethod = "pointsman";
inline constexpr int64_t kPackedVersion = 2;  // that pack writes; 1 is read too
// Names of the padding tensors of a packed folder begin like this; nothing else may.
inline constexpr std::string_view kPaddingPrefix = "pointsman.pad.";

struct QuantizationConfig {
  std::string method;              // "fp8", "mxfp4", "mxfp8", "pointsman", or empty: none
  int32_t block_rows = 0;          // weight_block_size; 0: not said
  int32_t block_cols = 0;
  bool power_of_two_scales = false;  // scale_fmt ue8m0: so were activations scaled in training
  // Of a packed folder (docs/formats/packed.md).
  bool panels = false;             // layout "panel32"; false: "rows"
  bool wide_panels = false;        // so does FP8 with blocks of 32 x 32 and larger: from version 2 on

  bool is_packed() const { return method == kPackedMethod; }
};

// How `pack` stores matrices that are computed with together (the projections of one expert or MLP; or one alone), and how they are read: in
// panels when the folder is in panels and the kernels have a form for every one of them, else in rows.
// `interleaved` experts (gate and up outputs in turn) of plain numbers are transposed then, as kernels take them and gpt-oss publishes them.
WeightLayout packed_layout(const QuantizationConfig& config, std::span<const Weight> together, bool interleaved = false);

// Two things that look alike in a square grid. One checkpoint has one orientation: the caller collects what its tensors show.
enum class GridOrientation : uint8_t { kStraight, kTransposed, kUndecided };

struct ScaleDescription {
  BlockFormat format;            // `transposed` set when the grid can only be read that way
  GridOrientation orientation = GridOrientation::kUndecided;
};

// The code type of a stored weight [rows, cols]: kF8E4M3, kF8E5M2, or kF4 for I8, U8 and F4 (two to a byte, low nibble first). In a packed
// folder I8 is INT8, and shapes are in elements.
// `shape` is the stored one, `dtype` the stored one. kUnsupported names what else it is; kCorrupt when the shape does not fit.
Result<DType> describe_codes(std::string_view name, DType dtype, std::span<const int64_t> shape, int64_t rows, int64_t cols,
                             const QuantizationConfig& config = {});

// The format of the scales of a [rows, cols] weight with elements of type `code`.
//   blocks: FP4 1 x 32. FP8 as weight_block_size says; mxfp8 1 x 32; not said: the one of 128 x 128, 32 x 32, 1 x 32, 1 x 128, one per row,
//     one in all that the grid's shape allows, refused when several do.
//   scale type: F32, BF16, F8_E8M0. U8 is E8M0 (every published format with byte scales in blocks of 32 or 128 uses it); with 16 elements to
//     a block it would be E4M3 (NVFP4), and is refused.
//   packed folder: 1 x 32 when the grid has that shape, else as weight_block_size says or as above; INT8 is 1 x 32. A grid that several
//     block sizes explain when 1 x 32 is one of them has one block along some side: they mean the same.
//   grid: [ceil(rows / block_rows), ceil(cols / block_cols)], or its transpose.
// kCorrupt: no block size explains the grid. kUnsupported: the type, or several block sizes explain it.
Result<ScaleDescription> describe_scales(std::string_view name, DType code, int64_t rows, int64_t cols, DType scale_dtype,
                                         std::span<const int64_t> scale_shape, const QuantizationConfig& config);

}  // namespace pointsman
