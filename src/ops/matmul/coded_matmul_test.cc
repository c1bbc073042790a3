// SPDX-License-Identifier: Apache-2.0
//
// Weights in stored formats: the kernels against the product with the decoded fp32 matrix, which must be equal bit for bit, for every
// format, instruction set, number of rows and odd size.
#include <gtest/gtest.h>

#include "ops/activation/swiglu.h"
#include "ops/matmul/matmul.h"
#include "support/coded_weight.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::all_formats;
using testing::all_same;
using testing::CodedFormat;
using testing::CodedWeight;
using testing::kernel_tables;
using testing::make_runners;
using testing::TestMatrix;

TEST(CodedMatmul, IsTheProductWithTheDecodedMatrixBitForBit) {
  auto runners = make_runners();
  for (const CodedFormat& format : all_formats()) {
    for (const auto& [in, out] : {std::pair{1, 3}, {16, 9}, {33, 17}, {100, 21}, {129, 40}, {200, 300}, {1100, 19}, {2070, 5}}) {
      for (const int64_t rows : {1, 2, 3, 4, 5, 7, 13, 97}) {
        if (in * out > 20000 && rows > 5 && rows != 13) continue;
        CodedWeight w(format, out, in, static_cast<uint64_t>(in + rows));
        TestMatrix<float> x(rows, in, 1, 3), plain = w.decoded(), y(rows, out, 0, 2), bias(1, out);
        x.fill(w.rng), bias.fill(w.rng);
        for (size_t i = 0; i < runners.size(); ++i) {
          ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = plain.tensor(), .bias = bias.tensor().as<float>(), .y = y.tensor()}).ok());
          const std::vector<float> expected = y.values();
          std::fill(y.raw().begin(), y.raw().end(), NAN);
          const Status status =
              ops::matmul(runners[i]->context, {.x = x.tensor(), .w = w.weight(), .bias = bias.tensor().as<float>(), .y = y.tensor()});
          ASSERT_TRUE(status.ok()) << status.to_string();
          ASSERT_TRUE(all_same(expected, y.values())) << format.name << " " << kernel_tables()[i].name << " " << rows << " x " << in << " x " << out;
          ASSERT_TRUE(y.untouched_outside());
        }
      }
    }
  }
}

TEST(CodedMatmul, ARowDoesNotDependOnTheRowsBesideItNorOnThreads) {
  auto one = make_runners(1), three = make_runners(3);
  for (const CodedFormat& format : all_formats()) {
    CodedWeight w(format, 150, 1300, 5);
    const int64_t rows = 100;
    TestMatrix<float> x(rows, 1300), y(rows, 150);
    x.fill(w.rng);
    for (size_t i = 0; i < one.size(); ++i) {
      ASSERT_TRUE(ops::matmul(one[i]->context, {.x = x.tensor(), .w = w.weight(), .y = y.tensor()}).ok());
      const std::vector<float> expected = y.values();
      ASSERT_TRUE(ops::matmul(three[i]->context, {.x = x.tensor(), .w = w.weight(), .y = y.tensor()}).ok());
      EXPECT_TRUE(all_same(expected, y.values()));
      for (const int64_t r : {0, 3, 95, 96, 99}) {
        ASSERT_TRUE(ops::matmul(three[i]->context, {.x = x.tensor().slice_rows(r, 1), .w = w.weight(), .y = y.tensor().slice_rows(r, 1)}).ok());
      }
      EXPECT_TRUE(all_same(expected, y.values())) << format.name << " " << kernel_tables()[i].name;
    }
  }
}

// A head's rows of a larger matrix: blocks run across the cut.
TEST(CodedMatmul, ASliceThatBeginsWithinABlockKeepsItsScales) {
  auto runners = make_runners();
  for (const CodedFormat& format : all_formats()) {
    CodedWeight w(format, 400, 200, 9);
    TestMatrix<float> x(3, 200), all(3, 400), part(3, 77);
    x.fill(w.rng);
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = w.weight(), .y = all.tensor()}).ok());
      const Weight slice = w.weight().slice_out(100, 200).slice_out(41, 77);
      ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = slice, .y = part.tensor()}).ok());
      for (int64_t r = 0; r < 3; ++r) {
        for (int64_t o = 0; o < 77; ++o) ASSERT_TRUE(testing::same(part.at(r, o), all.at(r, 141 + o))) << format.name << " " << o;
      }
      ASSERT_TRUE(testing::same(weight_value(slice, 3, 130), weight_value(w.weight(), 144, 130)));
    }
  }
}

// Every code at every place of a vector, all scales of E8M0 that keep the product finite, NaN blocks.
TEST(CodedMatmul, EveryCodeDecodesInEveryLane) {
  auto runners = make_runners();
  for (const CodedFormat& format : all_formats()) {
    const int64_t cols = 288;
    CodedWeight w(format, 256, cols, 1);
    w.every_code();
    TestMatrix<float> unit(1, cols), y(1, 256);
    for (size_t i = 0; i < runners.size(); ++i) {
      for (const int64_t c : {0, 1, 15, 16, 31, 100, 127, 128, 255, 287}) {
        for (int64_t k = 0; k < cols; ++k) unit.at(0, k) = k == c ? 1.0f : 0.0f;
        ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = unit.tensor(), .w = w.weight(), .y = y.tensor()}).ok());
        for (int64_t r = 0; r < 256; ++r) {
          // Zero times NaN is NaN: a row with a NaN anywhere is NaN everywhere, as in IEEE arithmetic.
          const float value = w.row_has_nan(r) ? NAN : weight_value(w.weight(), r, c) + 0.0f;
          ASSERT_TRUE(testing::same(y.at(0, r), value)) << format.name << " " << kernel_tables()[i].name << " [" << r << ", " << c << "]";
        }
      }
    }
  }
}

TEST(TransposedMatmul, IsTheProductWithTheTurnedMatrixBitForBit) {
  auto runners = make_runners();
  std::mt19937_64 rng(3);
  const auto check = [&]<class T>(T) {
    for (const auto& [in, out] : {std::pair{1, 3}, {17, 16}, {40, 33}, {129, 70}, {1100, 19}}) {
      for (const int64_t rows : {1, 2, 4, 5, 31, 100}) {
        TestMatrix<T> w(out, in), turned(in, out, 0, 5);
        w.fill(rng);
        for (int64_t o = 0; o < out; ++o) {
          for (int64_t k = 0; k < in; ++k) turned.at(k, o) = w.at(o, k);
        }
        Weight stored(turned.tensor());
        stored.layout = WeightLayout::kInOut, stored.rows = out, stored.cols = in;
        TestMatrix<float> x(rows, in), y(rows, out);
        x.fill(rng);
        for (size_t i = 0; i < runners.size(); ++i) {
          ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()}).ok());
          const std::vector<float> expected = y.values();
          ASSERT_TRUE(ops::matmul(runners[i]->context, {.x = x.tensor(), .w = stored, .y = y.tensor()}).ok());
          ASSERT_TRUE(all_same(expected, y.values())) << kernel_tables()[i].name << " " << rows << " x " << in << " x " << out;
        }
      }
    }
  };
  check(float{}), check(bf16{}), check(f16{});
}

TEST(CodedMatmul, NamesWhatItCannotDecode) {
  auto runners = make_runners();
  CodedWeight w(all_formats()[0], 8, 64, 1);
  TestMatrix<float> x(1, 64), y(1, 8);
  Weight bare = w.weight();
  bare.format = {};
  Status s = ops::matmul(runners[0]->context, {.x = x.tensor(), .w = bare, .y = y.tensor()});
  EXPECT_EQ(s.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(s.message().find("F8_E4M3"), std::string::npos) << s.message();
  TestMatrix<bf16> narrow(1, 64);
  EXPECT_EQ(ops::matmul(runners[0]->context, {.x = narrow.tensor(), .w = w.weight(), .y = y.tensor()}).code(), StatusCode::kInvalidArgument);
}

// gate, up and down in stored formats against the same FFN on decoded matrices.
TEST(CodedSwiglu, IsTheFfnOfTheDecodedMatricesBitForBit) {
  auto runners = make_runners();
  for (const CodedFormat& format : all_formats()) {
    for (const int64_t rows : {1, 4, 9, 100}) {
      const int64_t hidden = 160, intermediate = 75;
      CodedWeight gate(format, intermediate, hidden, 1), up(format, intermediate, hidden, 2), down(format, hidden, intermediate, 3);
      TestMatrix<float> x(rows, hidden), act(rows, intermediate), out(rows, hidden), g = gate.decoded(), u = up.decoded(), d = down.decoded();
      TestMatrix<float> gb(1, intermediate), ub(1, intermediate), db(1, hidden);
      x.fill(gate.rng), gb.fill(gate.rng), ub.fill(gate.rng), db.fill(gate.rng);
      ops::SwigluFfnArgs args{.x = x.tensor(), .form = {.alpha = 1.702f, .limit = 7, .up_offset = 1}, .act = act.tensor(), .out = out.tensor(),
                              .experts = {{.w_gate = g.tensor(), .w_up = u.tensor(), .w_down = d.tensor(), .gate_bias = gb.tensor().as<float>(),
                                           .up_bias = ub.tensor().as<float>(), .down_bias = db.tensor().as<float>(), .rows = rows}}};
      for (size_t i = 0; i < runners.size(); ++i) {
        ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, args).ok());
        const std::vector<float> expected = out.values();
        ops::SwigluFfnArgs coded = args;
        coded.experts[0].w_gate = gate.weight(), coded.experts[0].w_up = up.weight(), coded.experts[0].w_down = down.weight();
        ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, coded).ok());
        ASSERT_TRUE(all_same(expected, out.values())) << format.name << " " << kernel_tables()[i].name << " " << rows;
      }
    }
  }
}

// A group of coded experts, as stored and with the vendor's activations, against each expert alone.
TEST(CodedSwiglu, AGroupIsItsExpertsOneByOne) {
  auto runners = make_runners(2);
  const std::vector<int64_t> counts = {2, 0, 1, 9, 100};
  const int64_t hidden = 160, intermediate = 75, num_slots = 112;
  for (const CodedFormat& format : all_formats()) {
    std::vector<CodedWeight> weights;
    for (uint64_t e = 0; e < counts.size(); ++e) {
      weights.emplace_back(format, intermediate, hidden, 3 * e), weights.emplace_back(format, intermediate, hidden, 3 * e + 1);
      weights.emplace_back(format, hidden, intermediate, 3 * e + 2);
    }
    TestMatrix<float> x(num_slots, hidden), act(num_slots, intermediate), out(num_slots, hidden), slot_weights(1, num_slots);
    x.fill(weights[0].rng), slot_weights.fill(weights[0].rng);
    std::vector<int32_t> to(static_cast<size_t>(num_slots));
    for (int32_t r = 0; r < num_slots; ++r) to[static_cast<size_t>(r)] = (r * 5 + 3) % static_cast<int32_t>(num_slots);
    for (const int32_t act_block : {0, 32}) {
      ops::SwigluFfnArgs group{.x = x.tensor(), .act_weights = act_block > 0 ? slot_weights.tensor().as<float>() : nullptr, .act_block = act_block,
                               .act = act.tensor(), .out = out.tensor(), .out_rows = to.data(), .num_experts = static_cast<int>(counts.size())};
      int64_t first = 0;
      for (size_t e = 0; e < counts.size(); ++e) {
        group.experts[e] = {.w_gate = weights[3 * e].weight(), .w_up = weights[3 * e + 1].weight(), .w_down = weights[3 * e + 2].weight(),
                            .first = first, .rows = counts[e]};
        first += counts[e];
      }
      for (size_t i = 0; i < runners.size(); ++i) {
        std::fill(out.raw().begin(), out.raw().end(), NAN);
        for (int e = 0; e < group.num_experts; ++e) {
          ops::SwigluFfnArgs alone = group;
          alone.experts[0] = group.experts[e], alone.num_experts = 1;
          ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, alone).ok());
        }
        const std::vector<float> expected = out.values();
        std::fill(out.raw().begin(), out.raw().end(), NAN);
        ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, group).ok());
        ASSERT_TRUE(all_same(expected, out.values())) << format.name << " " << kernel_tables()[i].name << " act_block " << act_block;
      }
    }
  }
}

// gpt-oss: outputs of gate and up in turn, in MXFP4 rows and in transposed BF16.
TEST(CodedSwiglu, InterleavedGateAndUpAreTheEvenAndOddOutputs) {
  auto runners = make_runners();
  const int64_t hidden = 96, intermediate = 45;
  const CodedFormat format = all_formats().back();
  CodedWeight both(format, 2 * intermediate, hidden, 1), down(format, hidden, intermediate, 2);
  TestMatrix<float> gate(intermediate, hidden), up(intermediate, hidden), d = down.decoded();
  TestMatrix<float> bias(1, 2 * intermediate), gb(1, intermediate), ub(1, intermediate);
  TestMatrix<bf16> both_turned(hidden, 2 * intermediate), down_turned(intermediate, hidden);
  bias.fill(both.rng);
  for (int64_t i = 0; i < intermediate; ++i) {
    gb.at(0, i) = bias.at(0, 2 * i), ub.at(0, i) = bias.at(0, 2 * i + 1);
    for (int64_t k = 0; k < hidden; ++k) {
      gate.at(i, k) = weight_value(both.weight(), 2 * i, k), up.at(i, k) = weight_value(both.weight(), 2 * i + 1, k);
      both_turned.at(k, 2 * i) = to_bf16(gate.at(i, k)), both_turned.at(k, 2 * i + 1) = to_bf16(up.at(i, k));  // exact
      down_turned.at(i, k) = to_bf16(d.at(k, i));
    }
  }
  const auto turned = [](TestMatrix<bf16>& m, int64_t out, int64_t in) {
    Weight w(m.tensor());
    w.layout = WeightLayout::kInOut, w.rows = out, w.cols = in;
    return w;
  };
  for (const int64_t rows : {1, 3, 8, 9, 100}) {
    TestMatrix<float> x(rows, hidden), act(rows, intermediate), out(rows, hidden);
    x.fill(both.rng);
    for (size_t i = 0; i < runners.size(); ++i) {
      ops::SwigluFfnArgs args{.x = x.tensor(), .form = {.alpha = 1.702f, .limit = 7, .up_offset = 1}, .act = act.tensor(), .out = out.tensor(),
                              .experts = {{.w_gate = gate.tensor(), .w_up = up.tensor(), .w_down = d.tensor(), .gate_bias = gb.tensor().as<float>(),
                                           .up_bias = ub.tensor().as<float>(), .rows = rows}}};
      ops::FfnExpert& expert = args.experts[0];
      ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, args).ok());
      const std::vector<float> expected = out.values();
      expert.w_up = {}, expert.up_bias = nullptr, expert.gate_bias = bias.tensor().as<float>();
      expert.w_gate = both.weight(), expert.w_down = down.weight();
      ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, args).ok());
      ASSERT_TRUE(all_same(expected, out.values())) << kernel_tables()[i].name << " " << rows;
      expert.w_gate = turned(both_turned, 2 * intermediate, hidden), expert.w_down = turned(down_turned, hidden, intermediate);
      ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, args).ok());
      ASSERT_TRUE(all_same(expected, out.values())) << kernel_tables()[i].name << " " << rows;
    }
  }
}

// One channel, identity weights: act = (clamp(u) + offset) * min(g, limit) * sigmoid(alpha * min(g, limit)), with g = x and u = up * x.
TEST(Swiglu, ClampsScalesAndOffsetsAsItsFormSays) {
  auto runners = make_runners();
  const std::vector<float> points = {0, -0.5f, 1, 6.99f, 7, 7.01f, 30, -7, -8, -30, 1e30f, -1e30f, NAN};
  const int64_t rows = static_cast<int64_t>(points.size());
  TestMatrix<float> x(rows, 1), gate(1, 1), up(1, 1), act(rows, 1), out(rows, 1);
  for (int64_t r = 0; r < rows; ++r) x.at(r, 0) = points[static_cast<size_t>(r)];
  gate.at(0, 0) = 1, up.at(0, 0) = -1.5f;
  for (const ops::SwigluForm form : {ops::SwigluForm{}, {.limit = 10}, {.alpha = 1.702f, .limit = 7, .up_offset = 1}}) {
    for (size_t i = 0; i < runners.size(); ++i) {
      ASSERT_TRUE(ops::swiglu_ffn(runners[i]->context, {.x = x.tensor(), .form = form, .act = act.tensor(), .out = out.tensor(),
                                                        .experts = {{.w_gate = gate.tensor(), .w_up = up.tensor(), .w_down = gate.tensor(), .rows = rows}}}).ok());
      for (int64_t r = 0; r < rows; ++r) {
        double g = points[static_cast<size_t>(r)], u = -1.5 * g;
        if (std::isnan(g)) {
          EXPECT_TRUE(std::isnan(act.at(r, 0))) << "a clamp hides a NaN";
          continue;
        }
        if (form.limit > 0) g = std::min(g, double{form.limit}), u = std::clamp(u, -double{form.limit}, double{form.limit});
        const double exact = (u + double{form.up_offset}) * g / (1 + std::exp(-double{form.alpha} * g));
        if (std::fabs(exact) < 1e30) {
          EXPECT_NEAR(act.at(r, 0), exact, 1e-6 * std::max(1.0, std::fabs(exact))) << g << " limit " << form.limit;
        }
      }
    }
  }
}

}  // namespace
}  // namespace pointsman
