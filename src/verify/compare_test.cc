// SPDX-License-Identifier: Apache-2.0
#include "verify/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/memory_fs.h"

namespace pointsman {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A trace of one MoE layer: 3 tokens, 4 experts, 2 of them used.
struct Trace {
  std::vector<float> gate = {4, 3, 2, 1, 1, 2, 3, 4, 5, 4.9999f, 4.9998f, 0};
  std::vector<int32_t> ids = {0, 1, 3, 2, 0, 1};
  std::vector<float> weights = {0.7f, 0.3f, 0.7f, 0.3f, 0.5f, 0.5f};
  std::vector<float> hidden = {1, 2, 3, 4, 5, 6};
  std::vector<float> logits = {0, 1, 2, 3, 9, 0, 0, 0, 5, 5.00001f, 0, 0};
  std::string numerics = "fp32";
  bool with_hidden = true;

  std::unique_ptr<TraceReader> open(testing::MemoryFs& fs, const std::string& path) const {
    std::vector<SafetensorsWriter::Declaration> d = {{"layers.0.router.logits", DType::kF32, {3, 4}},
                                                     {"layers.0.router.ids", DType::kI32, {3, 2}},
                                                     {"layers.0.router.weights", DType::kF32, {3, 2}},
                                                     {"logits", DType::kF32, {3, 4}}};
    if (with_hidden) d.push_back({"layers.0.hidden", DType::kF32, {3, 2}});
    auto w = SafetensorsWriter::create(fs, path, d, {{"numerics", numerics}, {"model_digest", "d"}});
    EXPECT_TRUE(w.ok()) << w.status().to_string();
    const auto write = [&](const char* name, const auto& v) {
      EXPECT_TRUE((*w)->write(name, 0, std::as_bytes(std::span(v))).ok());
    };
    write("layers.0.router.logits", gate);
    write("layers.0.router.ids", ids);
    write("layers.0.router.weights", weights);
    write("logits", logits);
    if (with_hidden) write("layers.0.hidden", hidden);
    EXPECT_TRUE((*w)->commit().ok());
    auto r = TraceReader::open(fs, path);
    EXPECT_TRUE(r.ok()) << r.status().to_string();
    return std::move(*r);
  }
};

Comparison compare(const Trace& a, const Trace& b, const CompareLimits& limits, bool common_only = false) {
  testing::MemoryFs fs;
  auto ra = a.open(fs, "/a"), rb = b.open(fs, "/b");
  auto c = compare_traces(*ra, *rb, {.limits = limits, .common_only = common_only});
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  return std::move(*c);
}
Comparison compare(const Trace& a, const Trace& b, const char* profile = "fp32") {
  return compare(a, b, *compare_profile(profile, a.numerics));
}

const TensorDistance& tensor(const Comparison& c, std::string_view name) {
  for (const TensorDistance& t : c.tensors) {
    if (t.name == name) return t;
  }
  ADD_FAILURE() << name;
  return c.tensors.front();
}

TEST(Compare, TheSameIsBitIdentical) {
  for (const char* profile : {"fp32", "bf16", "strict", "torch", "ascend-community"}) {
    const Comparison c = compare(Trace(), Trace(), profile);
    EXPECT_TRUE(c.ok) << profile;
    for (const TensorDistance& t : c.tensors) EXPECT_TRUE(t.bit_identical) << t.name;
    EXPECT_EQ(c.logits->kl_max, 0);
    EXPECT_EQ(c.logits->top1_same, 3);
    EXPECT_EQ(c.routers.front().different, 0);
  }
}

TEST(Compare, OrderOfTheDataFlow) {
  std::vector<std::string> names;
  for (const TensorDistance& t : compare(Trace(), Trace()).tensors) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("layers.0.router.logits", "layers.0.router.ids", "layers.0.router.weights", "layers.0.hidden",
                                 "logits"));
  EXPECT_TRUE(before_in_data_flow("layers.2.hidden", "layers.10.router.logits"));
  EXPECT_TRUE(before_in_data_flow("layers.10.hidden", "logits"));
  EXPECT_TRUE(before_in_data_flow("embed", "layers.0.hidden"));
}

TEST(Compare, ALogitBeyondItsLimit) {
  Trace a;
  a.logits[5] += 1.5e-4f;
  const Comparison c = compare(a, Trace());
  EXPECT_FALSE(c.ok);
  EXPECT_EQ(c.first_divergence, "logits");
  EXPECT_THAT(tensor(c, "logits").failure, HasSubstr("max abs"));
  EXPECT_EQ(tensor(c, "logits").worst_row, 1);
  EXPECT_EQ(tensor(c, "logits").worst_col, 1);
  CompareLimits wide = *compare_profile("fp32", "");
  wide.logits_abs = 1e-3;
  EXPECT_TRUE(compare(a, Trace(), wide).ok);
}

TEST(Compare, FirstDivergenceIsTheFirstLayer) {
  Trace a;
  a.hidden[3] *= 1.1f;
  a.logits[0] = 7;
  EXPECT_EQ(compare(a, Trace()).first_divergence, "layers.0.hidden");
}

TEST(Compare, NearTieOfTheMostLikelyTokenIsExcused) {
  Trace a;
  std::swap(a.logits[8], a.logits[9]);
  const Comparison c = compare(a, Trace());
  EXPECT_TRUE(c.ok) << tensor(c, "logits").failure << c.logits->failure;
  EXPECT_EQ(c.logits->top1_same, 2);
  EXPECT_EQ(c.logits->near_ties, 1);
  std::swap(a.logits[4], a.logits[5]);
  EXPECT_FALSE(compare(a, Trace()).ok);
}

TEST(Compare, ExpertsAreSets) {
  Trace a;
  std::swap(a.ids[0], a.ids[1]);
  std::swap(a.weights[0], a.weights[1]);
  const Comparison c = compare(a, Trace());
  EXPECT_TRUE(c.ok);
  EXPECT_EQ(c.routers.front().different, 0);
  EXPECT_EQ(tensor(c, "layers.0.router.weights").max_abs, 0);
}

TEST(Compare, FlipsAreExcusedByTheGateOnly) {
  Trace near;
  near.ids[5] = 2;  // the gate's second and third differ by 1e-4
  Comparison c = compare(near, Trace());
  EXPECT_FALSE(c.ok);
  EXPECT_EQ(c.first_divergence, "layers.0.router.ids");
  EXPECT_EQ(c.routers.front().first_row, 2);
  EXPECT_NEAR(c.routers.front().max_margin, 1e-4, 1e-6);
  CompareLimits limits = *compare_profile("fp32", "");
  limits.router_margin = 2e-4;
  c = compare(near, Trace(), limits);
  EXPECT_TRUE(c.ok);
  EXPECT_EQ(c.routers.front().excused, 1);
  // What follows in that row is left out, but for NaN; the most likely token is judged all the same.
  near.hidden[4] = 50;
  c = compare(near, Trace(), limits);
  EXPECT_TRUE(c.ok);
  EXPECT_EQ(tensor(c, "layers.0.hidden").rows_left_out, 1);
  near.hidden[3] = 50;
  EXPECT_FALSE(compare(near, Trace(), limits).ok);
  near.hidden = Trace().hidden;
  near.hidden[4] = std::nanf("");
  EXPECT_FALSE(compare(near, Trace(), limits).ok);
  near.hidden = Trace().hidden;
  near.logits[11] = 9;
  EXPECT_EQ(compare(near, Trace(), limits).first_divergence, "logits");
  Trace far;
  far.ids[1] = 3;
  c = compare(far, Trace(), limits);
  EXPECT_FALSE(c.ok);
  EXPECT_EQ(c.routers.front().max_margin, 1);
}

TEST(Compare, FlipsLoadsAndWeightSums) {
  Trace a;
  a.ids = {1, 0, 3, 1, 0, 1};  // another order; a flip with a margin of 1; the same
  a.weights = {0.3f, 0.7f, 0.7f, 0.5f, 0.5f, 0.5f};
  const RouterDistance r = compare(a, Trace()).routers.front();
  EXPECT_EQ(r.order_different, 1);
  EXPECT_EQ(r.different, 1);
  EXPECT_NEAR(r.flip_rate(), 1.0 / 3, 1e-12);
  ASSERT_EQ(r.flips.size(), 1u);
  EXPECT_EQ(r.flips[0].row, 1);
  EXPECT_THAT(r.flips[0].ids, ElementsAre(3, 1));
  EXPECT_THAT(r.flips[0].reference_ids, ElementsAre(3, 2));
  EXPECT_EQ(r.flips[0].margin, 1);
  EXPECT_NEAR(r.weight_sum_deviation, 0.2, 1e-6);
  EXPECT_NEAR(r.weight_sum_max_a, 1.2, 1e-6);
  EXPECT_EQ(r.logit_max_a, 5);
  EXPECT_EQ(r.logit_min_b, 0);
  EXPECT_THAT(r.load_a, ElementsAre(2, 3, 0, 1));
  EXPECT_THAT(r.load_b, ElementsAre(2, 2, 1, 1));
  EXPECT_THAT(r.starved, ElementsAre(2));
  EXPECT_THAT(r.overloaded, IsEmpty());
  EXPECT_NEAR(r.max_violation_a, 3 * 4.0 / 6 - 1, 1e-12);
}

// The ratio of perplexities, by hand from two tokens.
TEST(Compare, PerplexityAndPercentiles) {
  testing::MemoryFs fs;
  std::unique_ptr<TraceReader> readers[2];
  const float log2 = std::log(2.0f);
  const std::vector<float> rows[2] = {{0, 0, 0, 0, log2, 0}, {log2, 0, 0, 0, log2, 0}};  // a and b; the tokens are 1, 0, 1
  for (int i = 0; i < 2; ++i) {
    const std::string path = i == 0 ? "/a" : "/b";
    auto w = SafetensorsWriter::create(fs, path, {{"logits", DType::kF32, {3, 2}}}, {{"tokens", "1,0,1"}});
    ASSERT_TRUE((*w)->write("logits", 0, std::as_bytes(std::span(rows[i]))).ok());
    ASSERT_TRUE((*w)->commit().ok());
    readers[i] = std::move(*TraceReader::open(fs, path));
  }
  const auto c = compare_traces(*readers[0], *readers[1], {.limits = *compare_profile("bf16", "")});
  const LogitsDistance& l = *c->logits;
  EXPECT_EQ(l.scored, 2);
  // Probabilities of the next tokens: a 1/2 and 1/2, b 2/3 and 1/2.
  EXPECT_NEAR(l.perplexity_a, 2, 1e-6);
  EXPECT_NEAR(l.perplexity_b, std::sqrt(1.5 * 2), 1e-6);
  EXPECT_NEAR(l.ratio, 2 / std::sqrt(3.0), 1e-6);
  const double d = std::log(4.0 / 3);  // paired differences d and 0
  EXPECT_NEAR(l.ratio_error, l.ratio * std::sqrt(d * d / 2 / 2), 1e-6);
  EXPECT_EQ(l.kl_median, 0);
  EXPECT_NEAR(l.kl_max, 2.0 / 3 * std::log(4.0 / 3) + 1.0 / 3 * std::log(2.0 / 3), 1e-6);
  EXPECT_EQ(l.kl_p99, l.kl_max);
}

TEST(Compare, CloseAsATensorAndFarAsADistributionIsSaid) {
  testing::MemoryFs fs;
  std::unique_ptr<TraceReader> readers[2];
  std::vector<float> v(4000, 10);
  v[7] = 14;
  for (int i = 0; i < 2; ++i) {
    const std::string path = i == 0 ? "/a" : "/b";
    if (i == 0) v[9] = 22;
    if (i == 1) v[9] = 10;
    auto w = SafetensorsWriter::create(fs, path, {{"logits", DType::kF32, {1, 4000}}}, {});
    ASSERT_TRUE((*w)->write("logits", 0, std::as_bytes(std::span(v))).ok());
    ASSERT_TRUE((*w)->commit().ok());
    readers[i] = std::move(*TraceReader::open(fs, path));
  }
  CompareLimits limits = *compare_profile("fp32", "");
  limits.min_cosine = 0.999;
  const auto c = compare_traces(*readers[0], *readers[1], {.limits = limits});
  EXPECT_GT(c->tensors.front().cosine, 0.999);
  EXPECT_GT(c->logits->kl_max, 1);
  EXPECT_THAT(c->notes, ElementsAre(HasSubstr("judge by the KL")));
}

TEST(Compare, NanIsNeverWithinLimits) {
  Trace a;
  a.hidden[2] = std::nanf("");
  for (const char* profile : {"fp32", "bf16", "torch", "ascend-community", "strict"})
    EXPECT_FALSE(compare(a, Trace(), profile).ok) << profile;
  const TensorDistance t = tensor(compare(a, Trace()), "layers.0.hidden");
  EXPECT_EQ(t.nonfinite_a, 1u);
  EXPECT_EQ(t.nonfinite_b, 0u);
  // The same NaN on both sides is a fault of both, not a difference.
  EXPECT_TRUE(compare(a, a).ok);
}

TEST(Compare, StrictSeesTheSignOfZero) {
  Trace a;
  a.logits[0] = -0.0f;
  EXPECT_FALSE(compare(a, Trace(), "strict").ok);
  EXPECT_TRUE(compare(a, Trace()).ok);
}

TEST(Compare, MissingTensorsAreFindingsUnlessAllowed) {
  Trace a;
  a.with_hidden = false;
  Comparison c = compare(a, Trace());
  EXPECT_FALSE(c.ok);
  EXPECT_THAT(c.only_b, ElementsAre("layers.0.hidden"));
  EXPECT_THAT(c.first_divergence, IsEmpty());
  EXPECT_TRUE(compare(a, Trace(), *compare_profile("fp32", ""), true).ok);
}

TEST(Compare, DifferentNumericsAreNoted) {
  Trace a;
  a.numerics = "bf16";
  EXPECT_THAT(compare(a, Trace()).notes, ElementsAre(HasSubstr("numerics differs: bf16 against fp32")));
}

TEST(Compare, NothingInCommonIsAnError) {
  testing::MemoryFs fs;
  auto w = SafetensorsWriter::create(fs, "/x", {{"other", DType::kF32, {1}}}, {});
  const float v = 1;
  ASSERT_TRUE((*w)->write("other", 0, std::as_bytes(std::span(&v, 1))).ok());
  ASSERT_TRUE((*w)->commit().ok());
  auto x = TraceReader::open(fs, "/x");
  auto a = Trace().open(fs, "/a");
  EXPECT_EQ(compare_traces(*a, **x, {.limits = *compare_profile("fp32", "")}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Compare, BlocksOfManyRowsGiveTheSame) {
  // More rows than one block holds, one difference in the last.
  testing::MemoryFs fs;
  constexpr int64_t kRows = 70000, kCols = 4;
  std::vector<float> v(kRows * kCols, 1.0f);
  std::unique_ptr<TraceReader> readers[2];
  for (int i = 0; i < 2; ++i) {
    const std::string path = i == 0 ? "/a" : "/b";
    auto w = SafetensorsWriter::create(fs, path, {{"layers.3.hidden", DType::kF32, {kRows, kCols}}}, {});
    if (i == 1) v.back() = 3;
    ASSERT_TRUE((*w)->write("layers.3.hidden", 0, std::as_bytes(std::span(v))).ok());
    ASSERT_TRUE((*w)->commit().ok());
    readers[i] = std::move(*TraceReader::open(fs, path));
  }
  const auto c = compare_traces(*readers[0], *readers[1], {.limits = *compare_profile("fp32", "")});
  ASSERT_TRUE(c.ok());
  EXPECT_EQ(c->tensors.front().worst_row, kRows - 1);
  EXPECT_EQ(c->tensors.front().max_abs, 2);
  EXPECT_EQ(c->tensors.front().compared, static_cast<uint64_t>(kRows * kCols));
  EXPECT_FALSE(c->tensors.front().bit_identical);
}

TEST(CompareProfile, UnknownNamesTheKnown) {
  const auto p = compare_profile("nvidia", "");
  ASSERT_FALSE(p.ok());
  EXPECT_THAT(p.status().message(), HasSubstr("ascend-community"));
  EXPECT_EQ(compare_profile("torch", "bf16")->rtol, 1.6e-2);
  EXPECT_EQ(compare_profile("torch", "fp32")->rtol, 1.3e-6);
}

}  // namespace
}  // namespace pointsman
