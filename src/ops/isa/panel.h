// SPDX-License-Identifier: Apache-2.0
//
// Panels of packed weights (tensor/panel_layout.h) against rows of x, in the order of ops/context.h: 32 outputs in lanes, along the inputs.
//
// Few rows (decode): codes are expanded in registers as the panel streams by. Many: a stretch of the panel and its scales are expanded once into a
// buffer that the first-level cache holds, then every tile of rows passes over it; the fp32 sums wait in memory between stretches. Both do the same
// operations on a row in the same order.
// Include a panel_vec_*.h, isa/tile.h, isa/weight_rows.h, matmul/matmul_isa.h and quant/quantise_isa.h first.
#pragma once

#include "ops/panel_paths.h"
#include "tensor/panel_layout.h"

namespace pointsman::ops {
namespace {

// Where a panel is, codes and scales (null: none).
struct PanelAt {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
};

// The panels of a weight and their scales.
struct Panels {
  explicit Panels(const Weight& w)
      : data(static_cast<const uint8_t*>(w.data)), scales(static_cast<const uint8_t*>(w.scales)), scale_dtype(w.format.scale_dtype),
        blocks(w.cols / 32), panel_bytes(w.cols * dtype_bytes8(w.dtype) * kPanelRows / 8) {
    const BlockFormat& f = w.format;
    first_panel = w.first_row / kPanelRows;
    if (f.block_rows == 0) return;
    is_fine = f.block_rows == 1;
    if (is_fine) {
      // 32 inputs, or kWideQuantBlock, whose last block may be shorter.
      fine_shift = f.block_cols == kQuantBlock ? 0 : 2;
      fine_blocks = (blocks + (1 << fine_shift) - 1) >> fine_shift;
      return;
    }
    panels_per_block = f.block_rows / kPanelRows, block_width = f.block_cols / 32;
    const int64_t of_rows = w.grid_of_rows > 0 ? w.grid_of_rows : w.rows;
    row_step = f.transposed ? 1 : (w.cols + f.block_cols - 1) / f.block_cols;
    col_step = f.transposed ? (of_rows + f.block_rows - 1) / f.block_rows : 1;
  }
  int64_t scale_bytes_per_block() const { return is_fine ? kPanelRows * dtype_bytes8(scale_dtype) / 8 : 0; }
  PanelAt at(int64_t panel) const {
    return {data + panel * panel_bytes, is_fine ? scales + (first_panel + panel) * fine_blocks * scale_bytes_per_block() : nullptr};
  }
  static int64_t dtype_bytes8(DType d) { return d == DType::kF4 ? 4 : d == DType::kF32 ? 32 : d == DType::kBF16 || d == DType::kF16 ? 16 : 8; }

  // Scales of 32 inputs for the 32 outputs of a panel. `block` counts in 32 inputs whatever the blocks of the scales are.
  [[gnu::always_inline]] void scales_of(int64_t panel, int64_t block, Vec* s) const {
    if (is_fine) {
      const int64_t at = ((first_panel + panel) * fine_blocks + (block >> fine_shift)) * kPanelRows;
      switch (scale_dtype) {
        case DType::kF8E8M0: s[0] = vload_e8m0(scales + at), s[1] = vload_e8m0(scales + at + 16); return;
        case DType::kBF16: {
          const auto* p = reinterpret_cast<const bf16*>(scales) + at;
          s[0] = vload(p), s[1] = vload(p + 16);
          return;
        }
        default: {
          const auto* p = reinterpret_cast<const float*>(scales) + at;
          s[0] = vload(p), s[1] = vload(p + 16);
          return;
        }
      }
    }
    s[0] = s[1] = vset(load_scale(scales, scale_dtype, (first_panel + panel) / panels_per_block * row_step + block / block_width * col_step));
  }

  const uint8_t* data;
  const uint8_t* scales;
  DType scale_dtype;
  int64_t blocks, panel_bytes;
  int64_t first_panel = 0;
  bool is_fine = false;
  int fine_shift = 0;       // log2 of the 32-input blocks under one scale
  int64_t fine_blocks = 0;  // scales of an output
  int64_t panels_per_block = 1, block_width = 1, row_step = 0, col_step = 0;
};

// A stream of one panel: the processor's own prefetcher stops at pages.
inline constexpr int64_t kPanelAhead = 4096;

// What is asked for while a panel is read from memory: codes kPanelAhead further on, and the beginning of the panel that comes next once this one has
// no more; the scales of the next panel along the way, block by block. Gate and up take turns, so that neither follows where the processor expects it: a
// first line of scales that nobody asked for stops everything for the 0.1 us that memory takes, in a panel that takes 0.7.
struct Fetch {
  Fetch(const uint8_t* panel, int64_t panel_bytes, const PanelAt& next, int64_t scale_bytes_per_block)
      : turn(panel + panel_bytes - kPanelAhead), to_next(next.codes != nullptr ? next.codes - turn : kPanelAhead), scales(next.scales),
        scale_step(next.scales != nullptr ? scale_bytes_per_block : 0) {}
  template <int64_t kBytes>
  [[gnu::always_inline]] void ask(const uint8_t* at) const {
    const uint8_t* const line = at + (at < turn ? kPanelAhead : to_next);
    for (int64_t i = 0; i < kBytes; i += 64) __builtin_prefetch(line + i);
  }
  [[gnu::always_inline]] void ask_scales(int64_t block) const { __builtin_prefetch(scales + block * scale_step); }
  const uint8_t* turn;
  int64_t to_next;
  const uint8_t* scales;
  int64_t scale_step;
};
struct NoFetch {
  template <int64_t kBytes>
  void ask(const uint8_t*) const {}
  void ask_scales(int64_t) const {}
};

// Lines of the panel that comes next, asked for while this one is multiplied by many rows.
struct Ahead {
  const uint8_t* at = nullptr;
  const uint8_t* end = nullptr;
  void ask(int lines) {
    for (int i = 0; i < lines && at < end; ++i, at += 64) __builtin_prefetch(at, 0, 2);
  }
};

// Where the scales of the 32 outputs for block b are: in the weight, or expanded.
template <bool kHalved>
struct StoredScales {
  const Panels& w;
  int64_t panel;
  // Inline: a call for each block is a sixth of the time when the panel comes from the second-level cache.
  [[gnu::always_inline]] void load(int64_t b, Vec* s) const {
    w.scales_of(panel, b, s);
    if constexpr (kHalved) s[0] = vmul(s[0], vset(0.5f)), s[1] = vmul(s[1], vset(0.5f));
  }
};
struct ExpandedScales {
  const float* at;
  int64_t first;
  void load(int64_t b, Vec* s) const { s[0] = vload(at + (b - first) * 32), s[1] = vload(at + (b - first) * 32 + 16); }
};
struct NoScales {
  const Panels& w;
  int64_t panel;
};

// --- 8-bit codes of x: integer dot products of 32 inputs, then one fused multiply-add with the product of both scales ---

// What supplies the codes of a panel, eight inputs at a time: [two groups of four][two halves of the outputs].
struct I8Panel {
  static constexpr bool kStreams = true;  // from memory
  static constexpr bool kHalves = false;  // are codes twice the values?
  static constexpr int64_t kBlockBytes = 32 * kPanelRows;
  static void load(const uint8_t* block, int i, Lanes w[2][2]) {
    const uint8_t* p = block + i * 256;
    w[0][0] = lanes_i8(p), w[0][1] = lanes_i8(p + 64), w[1][0] = lanes_i8(p + 128), w[1][1] = lanes_i8(p + 192);
  }
};
struct F4Panel {
  static constexpr bool kStreams = true;
  static constexpr bool kHalves = true;
  static constexpr int64_t kBlockBytes = 16 * kPanelRows;
  static void load(const uint8_t* block, int i, Lanes w[2][2]) {
    const uint8_t* p = block + i * 128;
    lanes_e2m1(p, w[0][0], w[1][0]), lanes_e2m1(p + 64, w[0][1], w[1][1]);
  }
};
struct ExpandedCodes {
  static constexpr bool kStreams = false;
  static constexpr int64_t kBlockBytes = 32 * kPanelRows;
  static void load(const uint8_t* block, int i, Lanes w[2][2]) {
    const uint8_t* p = block + i * 256;
    w[0][0] = lanes_load(p), w[0][1] = lanes_load(p + 64), w[1][0] = lanes_load(p + 128), w[1][1] = lanes_load(p + 192);
  }
};

// acc[m][32] over blocks of 32 inputs [first, last); `block` is where the codes of block `first` are, scales(b, s) gives those of block b. The integer
// sums run over kBlocks of them, those under one scale, then meet both scales once. No sum can overflow: codes of weights with 128 added reach 255,
// codes of x 127, and 128 * 255 * 127 < 2^22; what it starts from, 128 * 128 * 127, is less.
template <class Source, int64_t kBlocks, int MR, class Scales, class Asks>
void quant_tile(const uint8_t* block, const Scales& scales, const QuantRow* x, int64_t first, int64_t last, float* acc, const Asks& fetch, Ahead& ahead,
                int lines) {
  Vec sum[MR][2];
  for (int m = 0; m < MR; ++m) sum[m][0] = vload(acc + m * 32), sum[m][1] = vload(acc + m * 32 + 16);
  for (int64_t b = first; b < last; b += kBlocks, block += kBlocks * Source::kBlockBytes) {
    const int64_t whole = b / kBlocks, end = kBlocks == 1 ? b + 1 : smaller(last, b + kBlocks);
    Sums dot[MR][2];
    for (int m = 0; m < MR; ++m) dot[m][0] = dot[m][1] = sum_begin(x[m].offsets + whole);
    const int steps = static_cast<int>(4 * (end - b));
#pragma GCC unroll 1
    for (int i = 0; i < steps; ++i) {
      Lanes w[2][2];
      Source::load(block, i, w);
      if constexpr (Source::kStreams) fetch.template ask<Source::kBlockBytes / 4>(block + i * (Source::kBlockBytes / 4));
      for (int g = 0; g < 2; ++g) {
        for (int m = 0; m < MR; ++m) {
          const int8_t* four = x[m].codes + 32 * b + 8 * i + 4 * g;
          dot[m][0] = sum_add(dot[m][0], w[g][0], four);
          dot[m][1] = sum_add(dot[m][1], w[g][1], four);
        }
      }
    }
    ahead.ask(lines * static_cast<int>(end - b));
    fetch.ask_scales(whole);
    Vec s[2];
    scales.load(b, s);
    for (int m = 0; m < MR; ++m) {
      const Vec sx = vset(x[m].scales[whole]);
      for (int h = 0; h < 2; ++h) sum[m][h] = vfma(to_vec(dot[m][h]), vmul(sx, s[h]), sum[m][h]);
    }
  }
  for (int m = 0; m < MR; ++m) vstore(acc + m * 32, sum[m][0]), vstore(acc + m * 32 + 16, sum[m][1]);
}

// kWide: one scale for kWideQuantBlock inputs of x and of the weight, or for 32.
template <class Panel, bool kWide = false>
struct QuantDot {
  static constexpr bool kWideAct = kWide;
  static constexpr int64_t kBlocks = kWide ? kWideBlocks : 1;
  using Denormals = KeepDenormals;
  using X = QuantRow;
  static constexpr int kTile = 6;        // 12 integer and 12 fp32 sums, four registers of weights, one of x
  static constexpr int64_t kStretch = 16;  // blocks: 16 KiB of codes, half a first-level cache

  template <int MR>
  static void direct(const Panels& w, int64_t panel, const X* x, float* acc, const Fetch& fetch) {
    Ahead none;
    const uint8_t* codes = w.data + panel * w.panel_bytes;
    const StoredScales<Panel::kHalves> scales{w, panel};
    quant_tile<Panel, kBlocks, MR>(codes, scales, x, 0, w.blocks, acc, fetch, none, 0);
  }
  struct Expanded {
    alignas(64) uint8_t codes[kStretch * 1024];
    alignas(64) float scales[kStretch * 32];
  };
  static void expand(const Panels& w, int64_t panel, int64_t first, int64_t last, Expanded& e) {
    const uint8_t* block = w.data + panel * w.panel_bytes + first * Panel::kBlockBytes;
    for (int64_t b = first; b < last; ++b, block += Panel::kBlockBytes) {
      for (int i = 0; i < 4; ++i) {
        Lanes l[2][2];
        Panel::load(block, i, l);
        uint8_t* to = e.codes + (b - first) * 1024 + i * 256;
        lanes_store(to, l[0][0]), lanes_store(to + 64, l[0][1]), lanes_store(to + 128, l[1][0]), lanes_store(to + 192, l[1][1]);
      }
      Vec s[2];
      StoredScales<Panel::kHalves>{w, panel}.load(b, s);
      vstore(e.scales + (b - first) * 32, s[0]), vstore(e.scales + (b - first) * 32 + 16, s[1]);
    }
  }
  template <int MR>
  static void tile(const Panels&, int64_t, const Expanded& e, const X* x, int64_t first, int64_t last, float* acc, Ahead& ahead, int lines) {
    const ExpandedScales scales{e.scales, first};
    quant_tile<ExpandedCodes, kBlocks, MR>(e.codes, scales, x, first, last, acc, NoFetch(), ahead, lines);
  }
};

// --- bf16 x: bf16 dot products ---

// Four inputs at a time: [two pairs][two halves of the outputs].
struct Bf16Panel {
  static constexpr bool kStreams = true;
  static constexpr bool kScaled = false;
  static constexpr int64_t kBlockBytes = 64 * kPanelRows;
  static void load(const uint8_t* block, int i, Pairs w[2][2]) {
    const auto* p = reinterpret_cast<const bf16*>(block + i * 256);
    w[0][0] = pload(p), w[0][1] = pload(p + 32), w[1][0] = pload(p + 64), w[1][1] = pload(p + 96);
  }
};
// Expanded, or a stretch of bf16 that has been read before.
struct Bf16Stretch : Bf16Panel {
  static constexpr bool kStreams = false;
};
struct E4m3Panel {
  static constexpr bool kStreams = true;
  static constexpr bool kScaled = true;
  static constexpr int64_t kBlockBytes = 32 * kPanelRows;
  static void load(const uint8_t* block, int i, Pairs w[2][2]) {
    const uint8_t* p = block + i * 128;
    pairs_e4m3(p, w[0][0], w[1][0]), pairs_e4m3(p + 64, w[0][1], w[1][1]);
  }
};

template <class Source, bool kScaled, int MR, class Scales, class Asks>
void bf16_tile(const uint8_t* block, const Scales& scales, const bf16* const* x, int64_t first, int64_t last, float* acc, const Asks& fetch, Ahead& ahead,
               int lines) {
  Vec sum[MR][2];
  for (int m = 0; m < MR; ++m) sum[m][0] = vload(acc + m * 32), sum[m][1] = vload(acc + m * 32 + 16);
  for (int64_t b = first; b < last; ++b, block += Source::kBlockBytes) {
    Vec dot[MR][2];
    for (int m = 0; m < MR; ++m) {
      for (int h = 0; h < 2; ++h) dot[m][h] = kScaled ? vzero() : sum[m][h];
    }
#pragma GCC unroll 1
    for (int i = 0; i < 8; ++i) {
      Pairs w[2][2];
      Source::load(block, i, w);
      if constexpr (Source::kStreams) fetch.template ask<Source::kBlockBytes / 8>(block + i * (Source::kBlockBytes / 8));
      for (int g = 0; g < 2; ++g) {
        for (int m = 0; m < MR; ++m) {
          const Pairs two = pairs_of(x[m] + 32 * b + 4 * i + 2 * g);
          dot[m][0] = pdot(dot[m][0], two, w[g][0]);
          dot[m][1] = pdot(dot[m][1], two, w[g][1]);
        }
      }
    }
    ahead.ask(lines);
    if constexpr (kScaled) {
      fetch.ask_scales(b);
      Vec s[2];
      scales.load(b, s);
      for (int m = 0; m < MR; ++m) sum[m][0] = vfma(dot[m][0], s[0], sum[m][0]), sum[m][1] = vfma(dot[m][1], s[1], sum[m][1]);
    } else {
      for (int m = 0; m < MR; ++m) sum[m][0] = dot[m][0], sum[m][1] = dot[m][1];
    }
  }
  for (int m = 0; m < MR; ++m) vstore(acc + m * 32, sum[m][0]), vstore(acc + m * 32 + 16, sum[m][1]);
}

template <class Panel>
struct Bf16PanelDot {
  using Denormals = FlushDenormals;
  using X = const bf16*;
  using Scales = std::conditional_t<Panel::kScaled, StoredScales<false>, NoScales>;
  static constexpr int kTile = 6;
  static constexpr int64_t kStretch = 8;  // blocks: 16 KiB of bf16

  template <int MR>
  static void direct(const Panels& w, int64_t panel, const X* x, float* acc, const Fetch& fetch) {
    Ahead none;
    bf16_tile<Panel, Panel::kScaled, MR>(
        w.data + panel * w.panel_bytes, Scales{w, panel}, x, 0, w.blocks, acc, fetch, none, 0);
  }
  struct Expanded {
    alignas(64) bf16 codes[Panel::kScaled ? kStretch * 1024 : 1];
    alignas(64) float scales[Panel::kScaled ? kStretch * 32 : 1];
  };
  static void expand(const Panels& w, int64_t panel, int64_t first, int64_t last, Expanded& e) {
    if constexpr (Panel::kScaled) {
      const uint8_t* block = w.data + panel * w.panel_bytes + first * Panel::kBlockBytes;
      for (int64_t b = first; b < last; ++b, block += Panel::kBlockBytes) {
        for (int i = 0; i < 8; ++i) {
          Pairs l[2][2];
          Panel::load(block, i, l);
          bf16* to = e.codes + (b - first) * 1024 + i * 128;
          pstore(to, l[0][0]), pstore(to + 32, l[0][1]), pstore(to + 64, l[1][0]), pstore(to + 96, l[1][1]);
        }
        Vec s[2];
        w.scales_of(panel, b, s);
        vstore(e.scales + (b - first) * 32, s[0]), vstore(e.scales + (b - first) * 32 + 16, s[1]);
      }
    }
  }
  template <int MR>
  static void tile(const Panels& w, int64_t panel, const Expanded& e, const X* x, int64_t first, int64_t last, float* acc, Ahead& ahead, int lines) {
    const auto scales = [&] {
      if constexpr (Panel::kScaled) return ExpandedScales{e.scales, first};
      else return NoScales{w, panel};
    }();
    const uint8_t* codes = Panel::kScaled ? reinterpret_cast<const uint8_t*>(e.codes) : w.data + panel * w.panel_bytes + first * Panel::kBlockBytes;
    bf16_tile<Bf16Stretch, Panel::kScaled, MR>(
        codes, scales, x, first, last, acc, NoFetch(), ahead, lines);
  }
};

// --- fp32 x: elements decoded to fp32, code * scale rounded once, then one fused multiply-add per input ---

// Thirty-two inputs of a panel as [input][32 outputs].
using DecodeBlock = void (*)(const uint8_t* block, float* out);
template <Vec (*kLoad)(const uint8_t*)>
void decode_bytes(const uint8_t* block, float* out) {
  for (int g = 0; g < 8; ++g) {
    for (int h = 0; h < 2; ++h) {
      uint8_t turned[64];
      turn_lanes(block + g * 128 + h * 64, turned);
      for (int j = 0; j < 4; ++j) vstore(out + (4 * g + j) * 32 + 16 * h, kLoad(turned + 16 * j));
    }
  }
}
inline void decode_nibbles(const uint8_t* block, float* out) {
  for (int g = 0; g < 4; ++g) {
    for (int h = 0; h < 2; ++h) {
      uint8_t turned[64];
      turn_lanes(block + g * 128 + h * 64, turned);
      for (int j = 0; j < 4; ++j) {
        uint8_t twice[32];
        e2m1_bytes(turned + 16 * j, twice);
        vstore(out + (8 * g + j) * 32 + 16 * h, vmul(vload_i8(twice), vset(0.5f)));
        vstore(out + (8 * g + 4 + j) * 32 + 16 * h, vmul(vload_i8(twice + 16), vset(0.5f)));
      }
    }
  }
}
template <class Half>
void decode_halves(const uint8_t* block, float* out) {
  const auto* p = reinterpret_cast<const Half*>(block);
  for (int g = 0; g < 16; ++g) {
    for (int h = 0; h < 2; ++h) {
      Half turned[32];
      for (int i = 0; i < 32; ++i) turned[i % 2 * 16 + i / 2] = p[g * 64 + h * 32 + i];
      vstore(out + 2 * g * 32 + 16 * h, vload(turned)), vstore(out + (2 * g + 1) * 32 + 16 * h, vload(turned + 16));
    }
  }
}
inline void decode_floats(const uint8_t* block, float* out) { __builtin_memcpy(out, block, 32 * 32 * 4); }
inline DecodeBlock decode_of(DType dtype) {
  switch (dtype) {
    case DType::kF4: return decode_nibbles;
    case DType::kF8E4M3: return decode_bytes<vload_e4m3>;
    case DType::kF8E5M2: return decode_bytes<vload_e5m2>;
    case DType::kI8: return decode_bytes<vload_i8>;
    case DType::kBF16: return decode_halves<bf16>;
    case DType::kF16: return decode_halves<f16>;
    default: return decode_floats;
  }
}

struct F32PanelDot {
  using Denormals = KeepDenormals;
  using X = const float*;

  template <int MR>
  static void tile(const float* decoded, const X* x, int64_t b, float* acc) {
    Vec sum[MR][2];
    for (int m = 0; m < MR; ++m) sum[m][0] = vload(acc + m * 32), sum[m][1] = vload(acc + m * 32 + 16);
    for (int k = 0; k < 32; ++k) {
      const Vec w0 = vload(decoded + k * 32), w1 = vload(decoded + k * 32 + 16);
      for (int m = 0; m < MR; ++m) {
        const Vec xv = vset(x[m][32 * b + k]);
        sum[m][0] = vfma(xv, w0, sum[m][0]), sum[m][1] = vfma(xv, w1, sum[m][1]);
      }
    }
    for (int m = 0; m < MR; ++m) vstore(acc + m * 32, sum[m][0]), vstore(acc + m * 32 + 16, sum[m][1]);
  }
  static void rows(const Panels& w, DecodeBlock decode, int64_t panel, const X* x, int64_t m, float* acc) {
    alignas(64) float decoded[32 * 32];
    const int64_t block_bytes = w.panel_bytes / w.blocks;
    for (int64_t b = 0; b < w.blocks; ++b) {
      decode(w.data + panel * w.panel_bytes + b * block_bytes, decoded);
      if (w.scales != nullptr) {
        Vec s[2];
        w.scales_of(panel, b, s);
        for (int i = 0; i < 64; ++i) vstore(decoded + 16 * i, vmul(vload(decoded + 16 * i), s[i % 2]));
      }
      int64_t i = 0;
      for (; i + 8 <= m; i += 8) tile<8>(decoded, x + i, b, acc + i * 32);
      for (; i < m; ++i) tile<1>(decoded, x + i, b, acc + i * 32);
    }
  }
};

template <class Dot>
void direct_rows(const Panels& w, int64_t panel, const typename Dot::X* x, int64_t m, float* acc, const Fetch& fetch) {
  switch (m) {
    case 1: return Dot::template direct<1>(w, panel, x, acc, fetch);
    case 2: return Dot::template direct<2>(w, panel, x, acc, fetch);
    case 3: return Dot::template direct<3>(w, panel, x, acc, fetch);
    case 4: return Dot::template direct<4>(w, panel, x, acc, fetch);
    case 5: return Dot::template direct<5>(w, panel, x, acc, fetch);
    case 6: return Dot::template direct<6>(w, panel, x, acc, fetch);
  }
}

// acc[i * 32 + j] = x[i] . output 32 panel + j, for i < m <= kPanelRowBlock. `next`: the panel that this thread is likely to come to next, or null.
template <class Dot>
void panel_rows(const Panels& w, int64_t panel, const typename Dot::X* x, int64_t m, float* acc, const PanelAt& next, PanelPath path) {
  __builtin_memset(acc, 0, static_cast<size_t>(m) * 32 * sizeof(float));
  if (path != PanelPath::kPackedTile) {
    // In equal parts of at most six rows; from the second on they find the panel in the cache.
    const int64_t parts = path == PanelPath::kRowDot ? m : (m + 5) / 6;
    const Fetch fetch(w.data + panel * w.panel_bytes, w.panel_bytes, next, w.scale_bytes_per_block());
    for (int64_t i = 0, left = parts; left > 0; --left) {
      const int64_t count = (m - i + left - 1) / left;
      direct_rows<Dot>(w, panel, x + i, count, acc + i * 32, fetch);
      i += count;
    }
    return;
  }
  typename Dot::Expanded expanded;
  constexpr int kTile = Dot::kTile;
  const int64_t tiles = (m + kTile - 1) / kTile;
  Ahead ahead;
  if (next.codes != nullptr) ahead.at = next.codes, ahead.end = next.codes + w.panel_bytes;
  const int lines = static_cast<int>((w.panel_bytes / 64 + tiles * w.blocks - 1) / (tiles * w.blocks));
  for (int64_t first = 0; first < w.blocks; first += Dot::kStretch) {
    const int64_t last = smaller(w.blocks, first + Dot::kStretch);
    Dot::expand(w, panel, first, last, expanded);
    int64_t i = 0;
    for (; i + kTile <= m; i += kTile) Dot::template tile<kTile>(w, panel, expanded, x + i, first, last, acc + i * 32, ahead, lines);
    // What is left in tiles of 4, 2 and 1: the expanded codes are near, and fewer kinds of tiles keep the program small.
    if (m - i >= 4) Dot::template tile<4>(w, panel, expanded, x + i, first, last, acc + i * 32, ahead, lines), i += 4;
    if (m - i >= 2) Dot::template tile<2>(w, panel, expanded, x + i, first, last, acc + i * 32, ahead, lines), i += 2;
    if (m - i >= 1) Dot::template tile<1>(w, panel, expanded, x + i, first, last, acc + i * 32, ahead, lines);
  }
}

// acc as panel_rows has it, for any kind of x.
template <class Dot>
void panel_values(const Weight& weight, const Panels& w, int64_t panel, const typename Dot::X* x, int64_t m, float* acc, const PanelAt& next,
                  const PanelPaths* paths) {
  if constexpr (__is_same(Dot, F32PanelDot)) {
    __builtin_memset(acc, 0, static_cast<size_t>(m) * 32 * sizeof(float));
    F32PanelDot::rows(w, decode_of(weight.dtype), panel, x, m, acc);
  } else {
    panel_rows<Dot>(w, panel, x, m, acc, next, choose_path(paths, weight.dtype, m));
  }
}
template <class X>
X x_row_as(const Tensor& x, int64_t row) {
  if constexpr (__is_same(X, QuantRow)) return quant_row(x, row);
  else return static_cast<X>(x.data) + row * x.row_stride;
}

// Columns of a range of for_each_range: few rows read 128 KiB of weights (with 64 KiB, two threads lose 6 % of MXFP4's bandwidth to the beginnings of
// ranges, where no line has been asked for yet), more compute for some ten microseconds on one panel.
// `multiple`: panels that stay together.
inline constexpr int64_t kPanelRangeBytes = 128 * 1024;
inline constexpr int64_t kFewPanelRows = 8;
inline int64_t panel_columns(int64_t rows, int64_t panel_bytes, int64_t multiple = 1) {
  const int64_t panels = rows > kFewPanelRows ? 1 : larger(1, kPanelRangeBytes / panel_bytes);
  return kPanelRows * ((panels + multiple - 1) / multiple * multiple);
}

// Calls store(g, m, n, values) for every row m and 32 outputs from n on of x_g . W_g^T, g < num: see for_each_tile.
template <class Dot, class RowsOf, class WOf, class XRow, class Store>
void for_each_panel(ThreadPool& pool, const PanelPaths* paths, int num, RowsOf&& rows_of, WOf&& w_of, XRow&& x_row, Store&& store) {
  for_each_range<Ranges::kRuns>(
      pool, num,
      [&](int g) {
        const Weight& w = w_of(g);
        const int64_t rows = rows_of(g);
        return RangeGrid{.rows = rows, .cols = w.rows, .m_step = kPanelRowBlock, .n_step = panel_columns(rows, Panels(w).panel_bytes)};
      },
      [&](int g, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
        [[maybe_unused]] const typename Dot::Denormals denormals;
        alignas(64) float values[kPanelRowBlock * 32];
        const Weight& weight = w_of(g);
        const Panels w(weight);
        typename Dot::X x[kPanelRowBlock];
        for (int64_t m = m0; m < m1; ++m) x[m - m0] = x_row(g, m);
        for (int64_t n = n0; n < n1; n += kPanelRows) {
          // Ranges of a thread follow one another, from one matrix into the next.
          const PanelAt next = m0 != 0                                ? PanelAt()
                               : n + kPanelRows < weight.rows         ? w.at(n / kPanelRows + 1)
                               : g + 1 < num && rows_of(g + 1) > 0    ? Panels(w_of(g + 1)).at(0)
                                                                      : PanelAt();
          panel_values<Dot>(weight, w, n / kPanelRows, x, m1 - m0, values, next, paths);
          for (int64_t m = m0; m < m1; ++m) store(g, m, n, values + (m - m0) * 32);
        }
      });
}

template <class Dot>
void matmul_panel_kernel(ThreadPool& pool, const MatmulArgs& a) {
  for_each_panel<Dot>(
      pool, a.paths, 1 + a.num_more, [&](int) { return a.y.rows; }, [&](int p) -> const Weight& { return a.w_of(p); },
      [&](int, int64_t m) { return x_row_as<typename Dot::X>(a.x, a.x_rows != nullptr ? a.x_rows[m] : m); },
      [&](int p, int64_t m, int64_t n, const float* values) { store_product(a, p, m, n, 32, values); });
}
inline void matmul_panel_i8_kernel(ThreadPool& pool, const MatmulArgs& a) {
  if (a.w.dtype == DType::kF4) matmul_panel_kernel<QuantDot<F4Panel>>(pool, a);
  else if (quant_block_of(a.x) == kWideQuantBlock) matmul_panel_kernel<QuantDot<I8Panel, true>>(pool, a);
  else matmul_panel_kernel<QuantDot<I8Panel>>(pool, a);
}
inline void matmul_panel_bf16_kernel(ThreadPool& pool, const MatmulArgs& a) {
  if (a.w.dtype == DType::kBF16) matmul_panel_kernel<Bf16PanelDot<Bf16Panel>>(pool, a);
  else matmul_panel_kernel<Bf16PanelDot<E4m3Panel>>(pool, a);
}

}  // namespace
}  // namespace pointsman::ops
