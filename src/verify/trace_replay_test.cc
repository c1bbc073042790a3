// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/memory_fs.h"
#include "verify/trace_file.h"

namespace pointsman {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<TraceReader> trace(testing::MemoryFs& fs, const std::string& tokens) {
  auto w = SafetensorsWriter::create(
      fs, "/t", {{"layers.0.hidden", DType::kF32, {3, 2}}, {"layers.0.router.ids", DType::kI32, {3, 2}}, {"tokens", DType::kI32, {3}}},
      {{"tokens", tokens}});
  const float hidden[6] = {1, 2, 3, 4, 5, 6};
  const int32_t ids[6] = {0, 1, 2, 3, 1, 0}, list[3] = {7, 8, 9};
  EXPECT_TRUE((*w)->write("layers.0.hidden", 0, std::as_bytes(std::span(hidden))).ok());
  EXPECT_TRUE((*w)->write("layers.0.router.ids", 0, std::as_bytes(std::span(ids))).ok());
  EXPECT_TRUE((*w)->write("tokens", 0, std::as_bytes(std::span(list))).ok());
  EXPECT_TRUE((*w)->commit().ok());
  return std::move(*TraceReader::open(fs, "/t"));
}

TEST(TraceReplay, GivesWhatWasAskedForAndNothingElse) {
  testing::MemoryFs fs;
  auto reader = trace(fs, "");
  auto inputs = *TraceReplay::create(*reader, true, false);
  float f[4];
  int32_t i[4];
  EXPECT_TRUE(*inputs->rows_f32("layers.0.hidden", 1, 2, 2, f));
  EXPECT_THAT(f, ElementsAre(3, 4, 5, 6));
  EXPECT_FALSE(*inputs->rows_f32("layers.1.hidden", 0, 1, 2, f));  // absent: the pass goes on with its own
  EXPECT_FALSE(*inputs->rows_i32("layers.0.router.ids", 0, 1, 2, i));  // not asked for
  auto routes = *TraceReplay::create(*reader, false, true);
  EXPECT_TRUE(*routes->rows_i32("layers.0.router.ids", 1, 2, 2, i));
  EXPECT_THAT(i, ElementsAre(2, 3, 1, 0));
  EXPECT_FALSE(*routes->rows_f32("layers.0.hidden", 0, 1, 2, f));
}

TEST(TraceReplay, AnotherModelOrALongerPromptIsRefused) {
  testing::MemoryFs fs;
  auto reader = trace(fs, "");
  auto inputs = *TraceReplay::create(*reader, true, false);
  float f[8];
  EXPECT_THAT(inputs->rows_f32("layers.0.hidden", 0, 1, 4, f).status().message(), HasSubstr("trace of this model"));
  EXPECT_THAT(inputs->rows_f32("layers.0.hidden", 2, 2, 2, f).status().message(), HasSubstr("3 positions"));
}

TEST(TraceTokens, MetadataThenTensor) {
  testing::MemoryFs fs;
  EXPECT_THAT(*trace_tokens(*trace(fs, "5,6,7")), ElementsAre(5, 6, 7));
  EXPECT_THAT(*trace_tokens(*trace(fs, "")), ElementsAre(7, 8, 9));
  EXPECT_EQ(trace_tokens(*trace(fs, "5,x")).status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace pointsman
