// SPDX-License-Identifier: Apache-2.0
//
// What benchmarks print for programs is an object with their figures in it; and every case of theirs runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cpu_features.h"
#include "base/thread_pool.h"
#include "ops/bench/moe_bench.h"
#include "ops/bench/op_bench.h"

namespace pointsman::ops {
namespace {

TEST(BenchJson, HoldsLimitsAndOps) {
  const MachineLimits limits{.threads = 2, .read_gb_s = 30, .copy_gb_s_one = 11, .copy_gb_s = 22};
  const Json j = op_bench_json(limits, {{.op = "matmul", .shape = "1 x 2", .bytes = 3, .best_s = 0.5, .limit_s = 0.25}});
  ASSERT_TRUE(j.find("limits") != nullptr && j.find("ops") != nullptr);
  EXPECT_EQ(j.find("limits")->find("threads")->as_int(), 2);
  EXPECT_EQ(j.find("limits")->find("copy_gb_s")->as_double(), 22);
  EXPECT_EQ(j.find("limits")->find("copy_gb_s_one")->as_double(), 11);
  ASSERT_EQ(j.find("ops")->as_array().size(), 1u);
  EXPECT_EQ(j.find("ops")->as_array()[0].find("op")->as_string(), "matmul");
  EXPECT_EQ(j.find("ops")->as_array()[0].find("fraction")->as_double(), 0.5);
  EXPECT_THAT(op_bench_table(limits, {}), ::testing::HasSubstr("copy GB/s       11.0       22.0"));
  EXPECT_THAT(op_bench_markdown(limits, {}), ::testing::HasSubstr("| copy past the caches GB/s | 11.0 | 22.0 |"));
}

TEST(BenchJson, HoldsComparisonsAndTheLayer) {
  Json j = Json::object();
  add_moe_bench({.comparisons = {{.op = "route", .shape = "s", .other = "o", .median_s = 1, .other_median_s = 3}},
                 .layer = "one",
                 .shares = {{.step = "norms", .median_s = 1, .share = 0.5}}},
                j);
  ASSERT_EQ(j.find("comparisons")->as_array().size(), 1u);
  EXPECT_EQ(j.find("comparisons")->as_array()[0].find("ratio")->as_double(), 3);
  EXPECT_EQ(j.find("layer")->find("shape")->as_string(), "one");
  EXPECT_EQ(j.find("layer")->find("steps")->as_array()[0].find("share")->as_double(), 0.5);
}

// Reading goes over memory that is larger than the caches, copying too: neither can be faster than what both directions share by much.
TEST(MachineLimits, ACopyPastTheCachesIsMeasuredOnEveryInstructionSet) {
  const auto device = make_cpu_device();
  ThreadPool pool(2);
  const CpuFeatures cpu = detect_cpu_features();
  const Isa best = *choose_isa("", cpu);
  for (const Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa > best) continue;
    const auto limits = measure_machine_limits(*device, pool, isa, cpu, {.read_bytes = 64 << 20, .repeats = 1});
    ASSERT_TRUE(limits.ok());
    EXPECT_GT(limits->copy_gb_s_one, 0.1);
    EXPECT_GE(limits->copy_gb_s, limits->copy_gb_s_one);
  }
}

TEST(BenchCases, EveryOpAndTheLayerRun) {
  ThreadPool pool(2);
  const CpuFeatures cpu = detect_cpu_features();
  const KernelTable table = make_cpu_kernels(cpu.best_isa(), cpu);
  const std::unique_ptr<Device> device = make_cpu_device();
  const auto ops = bench_ops(*device, pool, table, {.threads = 2, .read_gb_s = 30, .fma_gflop_s = 100}, {.repeats = 1});
  ASSERT_TRUE(ops.ok()) << ops.status().message();
  EXPECT_GE(ops->size(), 60u);
  for (const OpTiming& t : *ops) EXPECT_GT(t.best_s, 0) << t.op << " " << t.shape;
  const auto layer = bench_moe(*device, pool, table, {.repeats = 1, .filter = "layer"});
  ASSERT_TRUE(layer.ok()) << layer.status().message();
  ASSERT_GE(layer->shares.size(), 8u);
  double sum = 0;
  for (const LayerShare& s : layer->shares) sum += s.share;
  EXPECT_GT(sum, 0.99);
}

}  // namespace
}  // namespace pointsman::ops
