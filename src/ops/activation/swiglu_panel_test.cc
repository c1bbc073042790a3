// SPDX-License-Identifier: Apache-2.0
//
// The feed-forward of packed weights is, bit for bit, the chain of its parts: products with panels, the gate, quantise_rows, a product.
#include <gtest/gtest.h>

#include "ops/activation/swiglu.h"
#include "ops/matmul/matmul.h"
#include "ops/quant/quantise.h"
#include "support/panel_weight.h"

namespace pointsman {
namespace {

using testing::all_same;
using testing::CodedFormat;
using testing::CodedWeight;
using testing::kernel_tables;
using testing::make_runners;
using testing::PanelWeight;
using testing::TestMatrix;

// In blocks of 128 inputs: a whole one and a part.
constexpr int64_t kHidden = 160, kWide = 192;  // width of act

std::vector<CodedFormat> formats() {
  constexpr DType kE8m0 = DType::kF8E8M0;
  return {{"int8", DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 32}},
          {"int8-128", DType::kI8, {.scale_dtype = DType::kBF16, .block_rows = 1, .block_cols = 128}},
          {"mxfp4", DType::kF4, {.scale_dtype = kE8m0, .block_rows = 1, .block_cols = 32}},
          {"mxfp8", DType::kF8E4M3, {.scale_dtype = kE8m0, .block_rows = 1, .block_cols = 32}}};
}
DType input_of(DType w, bool fp32) { return fp32 ? DType::kF32 : w == DType::kF8E4M3 ? DType::kBF16 : DType::kI8; }
int64_t block_of(const CodedFormat& f) { return f.format.block_cols == 128 ? ops::kWideQuantBlock : ops::kQuantBlock; }

struct Expert {
  Expert(const CodedFormat& f, bool interleaved, uint64_t seed)
      : gate_rows(f, interleaved ? 2 * kWide : kWide, kHidden, seed), up_rows(f, kWide, kHidden, seed + 1), down_rows(f, kHidden, kWide, seed + 2),
        gate(gate_rows.weight()), up(up_rows.weight()), down(down_rows.weight()), gate_bias(1, 2 * kWide), up_bias(1, kWide), down_bias(1, kHidden) {
    gate_bias.fill(gate_rows.rng), up_bias.fill(up_rows.rng), down_bias.fill(up_rows.rng);
  }
  CodedWeight gate_rows, up_rows, down_rows;
  PanelWeight gate, up, down;
  TestMatrix<float> gate_bias, up_bias, down_bias;
};

// Memory for rows of any input type.
struct Rows {
  Rows(int64_t rows, int64_t cols) : bytes(static_cast<size_t>(rows * cols * 4)), num_rows(rows), num_cols(cols) {}
  Tensor as(DType t, int64_t block) { return t == DType::kI8 ? ops::quantised_matrix(bytes.data(), num_rows, num_cols, block) : Tensor::matrix(bytes.data(), t, num_rows, num_cols); }
  std::vector<uint8_t> bytes;
  int64_t num_rows, num_cols;
};
// `x` in type `t`.
Tensor converted(ops::OpContext& ctx, TestMatrix<float>& x, DType t, int64_t block, Rows& to) {
  const Tensor out = to.as(t, block);
  if (t == DType::kI8) {
    EXPECT_TRUE(ops::quantise_rows(ctx, {.x = x.tensor(), .out = out}).ok());
  }
  for (int64_t r = 0; r < x.tensor().rows && t != DType::kI8; ++r) {
    for (int64_t c = 0; c < x.tensor().cols; ++c) {
      if (t == DType::kF32) out.row<float>(r)[c] = x.at(r, c);
      else out.row<bf16>(r)[c] = to_bf16(x.at(r, c));
    }
  }
  return out;
}

// act of gate and up outputs: the op on fp32 rows [gate | up] with weights that pick one of each.
TestMatrix<float> act_of(ops::OpContext& ctx, const ops::SwigluForm& form, TestMatrix<float>& gate, TestMatrix<float>& up) {
  const int64_t rows = gate.tensor().rows;
  TestMatrix<float> both(rows, 2 * kWide), pick_gate(kWide, 2 * kWide), pick_up(kWide, 2 * kWide), down(1, kWide), act(rows, kWide), out(rows, 1);
  for (int64_t i = 0; i < kWide; ++i) {
    for (int64_t j = 0; j < 2 * kWide; ++j) pick_gate.at(i, j) = j == i ? 1 : 0, pick_up.at(i, j) = j == kWide + i ? 1 : 0;
    down.at(0, i) = 0;
    for (int64_t r = 0; r < rows; ++r) both.at(r, i) = gate.at(r, i), both.at(r, kWide + i) = up.at(r, i);
  }
  EXPECT_TRUE(ops::swiglu_ffn(ctx, {.x = both.tensor(), .form = form, .act = act.tensor(), .out = out.tensor(),
                                    .experts = {{.w_gate = pick_gate.tensor(), .w_up = pick_up.tensor(), .w_down = down.tensor(), .rows = rows}}})
                  .ok());
  return act;
}

TestMatrix<float> product(ops::OpContext& ctx, const Tensor& x, const Weight& w, const float* bias, int64_t rows) {
  TestMatrix<float> y(rows, w.rows);
  EXPECT_TRUE(ops::matmul(ctx, {.x = x, .w = w, .bias = bias, .y = y.tensor()}).ok());
  return y;
}

void expect_chain(const CodedFormat& format, bool interleaved, const ops::SwigluForm& form, bool fp32) {
  SCOPED_TRACE(format.name + (interleaved ? " interleaved" : "") + (fp32 ? " fp32" : ""));
  const DType type = input_of(format.dtype, fp32);
  const int64_t block = block_of(format);
  const int64_t counts[] = {1, 0, 3, 25, 100};
  std::vector<Expert> experts;
  for (uint64_t e = 0; e < 5; ++e) experts.emplace_back(format, interleaved, 10 * e + 1);
  const int64_t total = 129;
  std::mt19937_64 rng(8);
  TestMatrix<float> x(40, kHidden);
  x.fill(rng);
  std::vector<int32_t> x_rows, out_rows;
  for (int32_t i = 0; i < total; ++i) x_rows.push_back(i * 7 % 40), out_rows.push_back(total - 1 - i);
  auto runners = make_runners(3);
  std::vector<float> first;
  for (size_t i = 0; i < runners.size(); ++i) {
    ops::OpContext& ctx = runners[i]->context;
    Rows x_memory(40, kHidden), act_memory(total, kWide);
    TestMatrix<float> out(total, kHidden);
    ops::SwigluFfnArgs args{.x = converted(ctx, x, type, block, x_memory), .x_rows = x_rows.data(), .form = form, .act = act_memory.as(type, block), .out = out.tensor(),
                            .out_rows = out_rows.data(), .num_experts = 5};
    int64_t begin = 0;
    for (int e = 0; e < 5; ++e) {
      Expert& w = experts[static_cast<size_t>(e)];
      args.experts[e] = {.w_gate = w.gate.weight(), .w_up = interleaved ? Weight() : w.up.weight(), .w_down = w.down.weight(),
                         .gate_bias = w.gate_bias.tensor().as<float>(), .up_bias = interleaved ? nullptr : w.up_bias.tensor().as<float>(),
                         .down_bias = w.down_bias.tensor().as<float>(), .first = begin, .rows = counts[e]};
      begin += counts[e];
    }
    const Status status = ops::swiglu_ffn(ctx, args);
    ASSERT_TRUE(status.ok()) << status.to_string();
    if (i == 0) first = out.values();
    ASSERT_TRUE(all_same(first, out.values())) << kernel_tables()[i].name;
    for (int e = 0; e < 5; ++e) {
      const int64_t rows = counts[e];
      if (rows == 0) continue;
      Expert& w = experts[static_cast<size_t>(e)];
      TestMatrix<float> mine(rows, kHidden);
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < kHidden; ++c) mine.at(r, c) = x.at(x_rows[static_cast<size_t>(args.experts[e].first + r)], c);
      }
      Rows mine_memory(rows, kHidden), act_rows(rows, kWide);
      const Tensor in = converted(ctx, mine, type, block, mine_memory);
      TestMatrix<float> gate = product(ctx, in, w.gate.weight(), w.gate_bias.tensor().as<float>(), rows);
      TestMatrix<float> up = interleaved ? TestMatrix<float>(rows, kWide) : product(ctx, in, w.up.weight(), w.up_bias.tensor().as<float>(), rows);
      if (interleaved) {
        TestMatrix<float> apart(rows, kWide);
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < kWide; ++c) apart.at(r, c) = gate.at(r, 2 * c), up.at(r, c) = gate.at(r, 2 * c + 1);
        }
        gate = apart;
      }
      TestMatrix<float> act = act_of(ctx, form, gate, up);
      TestMatrix<float> y = product(ctx, converted(ctx, act, type, block, act_rows), w.down.weight(), w.down_bias.tensor().as<float>(), rows);
      for (int64_t r = 0; r < rows; ++r) {
        const int32_t to = out_rows[static_cast<size_t>(args.experts[e].first + r)];
        for (int64_t c = 0; c < kHidden; ++c) ASSERT_EQ(out.at(to, c), y.at(r, c)) << kernel_tables()[i].name << " expert " << e << " row " << r;
      }
    }
  }
}

TEST(SwigluPanels, IsTheChainOfItsParts) {
  for (const CodedFormat& f : formats()) {
    for (const bool fp32 : {false, true}) {
      expect_chain(f, false, {}, fp32);
      expect_chain(f, true, {.alpha = 1.702f, .limit = 7, .up_offset = 1}, fp32);
    }
  }
}

TEST(SwigluPanels, NanInOneRowStaysThere) {
  for (const CodedFormat& f : formats()) {
    Expert w(f, false, 3);
    std::mt19937_64 rng(1);
    TestMatrix<float> x(7, kHidden);
    x.fill(rng);
    x.at(4, 50) = NAN;
    for (const auto& runner : make_runners()) {
      Rows x_memory(7, kHidden), act_memory(7, kWide);
      const DType type = input_of(f.dtype, false);
      const int64_t block = block_of(f);
      TestMatrix<float> out(7, kHidden);
      ASSERT_TRUE(ops::swiglu_ffn(runner->context, {.x = converted(runner->context, x, type, block, x_memory), .act = act_memory.as(type, block), .out = out.tensor(),
                                                    .experts = {{.w_gate = w.gate.weight(), .w_up = w.up.weight(), .w_down = w.down.weight(), .rows = 7}}})
                      .ok());
      for (int64_t r = 0; r < 7; ++r) {
        for (int64_t c = 0; c < kHidden; ++c) EXPECT_EQ(std::isnan(out.at(r, c)), r == 4);
      }
    }
  }
}

TEST(SwigluPanels, OtherInputsAreNamed) {
  const CodedFormat f = formats()[0];
  Expert w(f, false, 3);
  auto runners = make_runners();
  TestMatrix<bf16> x(1, kHidden), act(1, kWide);
  TestMatrix<float> out(1, kHidden);
  const Status status = ops::swiglu_ffn(runners[0]->context, {.x = x.tensor(), .act = act.tensor(), .out = out.tensor(),
                                                              .experts = {{.w_gate = w.gate.weight(), .w_up = w.up.weight(), .w_down = w.down.weight(), .rows = 1}}});
  ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.to_string().find("BF16 with W I8 in panels"), std::string::npos) << status.to_string();
}

// Blocks of x and act are those of the weights that read them, matrix by matrix; others are refused.
TEST(SwigluPanels, BlocksOfTheInputsAreThoseOfTheWeights) {
  const CodedFormat narrow = formats()[0], wide = formats()[1];
  Expert a(wide, false, 3), b(narrow, false, 5);
  std::mt19937_64 rng(1);
  TestMatrix<float> x(3, kHidden), out(3, kHidden);
  x.fill(rng);
  auto runners = make_runners();
  ops::OpContext& ctx = runners.back()->context;
  const auto run = [&](int64_t x_block, int64_t act_block, const Weight& gate, const Weight& up, const Weight& down) {
    Rows x_memory(3, kHidden), act_memory(3, kWide);
    return ops::swiglu_ffn(ctx, {.x = converted(ctx, x, DType::kI8, x_block, x_memory), .act = act_memory.as(DType::kI8, act_block), .out = out.tensor(),
                                 .experts = {{.w_gate = gate, .w_up = up, .w_down = down, .rows = 3}}});
  };
  EXPECT_TRUE(run(128, 128, a.gate.weight(), a.up.weight(), a.down.weight()).ok());
  EXPECT_TRUE(run(32, 32, b.gate.weight(), b.up.weight(), b.down.weight()).ok());
  const Status status = run(32, 128, a.gate.weight(), a.up.weight(), a.down.weight());
  ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.to_string().find("x in blocks of 32, act in blocks of 128: gate needs 128"), std::string::npos) << status.to_string();
  EXPECT_FALSE(run(128, 32, a.gate.weight(), a.up.weight(), a.down.weight()).ok());
  EXPECT_FALSE(run(128, 128, b.gate.weight(), b.up.weight(), b.down.weight()).ok());
  EXPECT_FALSE(run(128, 128, a.gate.weight(), b.up.weight(), a.down.weight()).ok());
  // One of both kinds in one expert: a feed-forward has one kind of block.
  EXPECT_FALSE(run(128, 32, a.gate.weight(), a.up.weight(), b.down.weight()).ok());
  EXPECT_FALSE(run(32, 128, b.gate.weight(), b.up.weight(), a.down.weight()).ok());
}

}  // namespace
}  // namespace pointsman
