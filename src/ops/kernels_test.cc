// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels.h"

#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "support/ops_fixture.h"

namespace pointsman {
namespace {

using testing::kernel_tables;
using testing::OpRunner;
using testing::TestMatrix;

TEST(Kernels, NamesAreSortedAndEveryTableIsComplete) {
  const auto names = ops::op_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_LE(names.size(), static_cast<size_t>(ops::FallbackCounters::kMaxOps));
  for (const auto& [isa, table] : kernel_tables()) {
#define PM_OP(op, Args) EXPECT_NE(table.op, nullptr) << isa << " has no " #op;
#include "ops/op_list.inc"
#undef PM_OP
  }
}

TEST(Kernels, WithoutOpsTakesOutWhatIsNamedAndRefusesTheUnknown) {
  const ops::KernelTable& full = kernel_tables().back().table;
  const std::string_view names[] = {"rms_norm", "matmul_f32_f32"};
  const ops::KernelTable less = std::move(ops::without_ops(full, names)).value();
  EXPECT_EQ(less.rms_norm, nullptr);
  EXPECT_EQ(less.matmul_f32_f32, nullptr);
  EXPECT_EQ(less.matmul_f32_bf16, full.matmul_f32_bf16);
  const std::string_view unknown[] = {"matmul_f64"};
  const auto refused = ops::without_ops(full, unknown);
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("matmul_f64"), std::string::npos);
}

TEST(Kernels, AMissingKernelIsCountedLoggedOnceAndGivesTheSameNumbers) {
  const ops::KernelTable& full = kernel_tables().back().table;
  const std::string_view names[] = {"matmul_f32_f32"};
  const ops::KernelTable less = std::move(ops::without_ops(full, names)).value();
  std::mt19937_64 rng(1);
  TestMatrix<float> x(3, 40), w(7, 40), expected(3, 7), y(3, 7);
  x.fill(rng), w.fill(rng);
  OpRunner with(full), without(less);
  without.fallbacks.forbidden = false;
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel level, std::string_view line) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  ASSERT_TRUE(ops::matmul(with.context, {.x = x.tensor(), .w = w.tensor(), .y = expected.tensor()}).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(ops::matmul(without.context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()}).ok());
  set_log_sink({});
  EXPECT_TRUE(testing::all_same(expected.values(), y.values()));
  const auto all = ops::op_names();
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(without.fallbacks.count[i].load(), all[i] == "matmul_f32_f32" ? 3u : 0u) << all[i];
    EXPECT_EQ(without.fallbacks.launches[i].load(), all[i] == "matmul_f32_f32" ? 3u : 0u) << all[i];
    EXPECT_EQ(with.fallbacks.launches[i].load(), all[i] == "matmul_f32_f32" ? 1u : 0u) << all[i];
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("matmul_f32_f32"), std::string::npos);
}

TEST(Kernels, AMissingKernelIsRefusedWhenFallbacksAreForbidden) {
  const std::string_view names[] = {"matmul_f32_f32"};
  const ops::KernelTable less = std::move(ops::without_ops(kernel_tables().back().table, names)).value();
  OpRunner run(less);
  TestMatrix<float> x(1, 4), w(2, 4), y(1, 2);
  const Status s = ops::matmul(run.context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()});
  EXPECT_EQ(s.code(), StatusCode::kUnavailable);
  EXPECT_NE(s.message().find("matmul_f32_f32"), std::string::npos) << s.message();
  EXPECT_TRUE(std::isnan(y.at(0, 0)));
}

TEST(Kernels, AMissingKernelIsRefusedWhenNobodyCounts) {
  const std::string_view names[] = {"matmul_f32_f32"};
  const ops::KernelTable less = std::move(ops::without_ops(kernel_tables().back().table, names)).value();
  OpRunner run(less);
  run.context.fallbacks = nullptr;
  TestMatrix<float> x(1, 4), w(2, 4), y(1, 2);
  const Status s = ops::matmul(run.context, {.x = x.tensor(), .w = w.tensor(), .y = y.tensor()});
  EXPECT_EQ(s.code(), StatusCode::kUnavailable);
  EXPECT_NE(s.message().find("matmul_f32_f32"), std::string::npos) << s.message();
}

}  // namespace
}  // namespace pointsman
