// SPDX-License-Identifier: Apache-2.0
#include "verify/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/memory_fs.h"

namespace pointsman {
namespace {

using ::testing::ElementsAre;

ModelConfig config() {
  ModelConfig c;
  c.num_hidden_layers = 2;
  c.hidden_size = 3;
  c.vocab_size = 4;
  c.num_experts = 5;
  c.num_experts_per_tok = 2;
  c.layer_is_moe = {false, true};
  return c;
}

TEST(TraceSelection, ListsAndRefusals) {
  const auto s = parse_trace_selection("router,logits");
  ASSERT_TRUE(s.ok());
  EXPECT_TRUE(s->router && s->logits && !s->hidden);
  for (const char* bad : {"", "logit", "logits,", ",", "logits, router", "router,everything"}) {
    EXPECT_EQ(parse_trace_selection(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
}

TEST(TraceWriter, NamesShapesAndMetadata) {
  testing::MemoryFs fs;
  auto w = TraceWriter::create(fs, "/t", config(), {}, 2, {{"numerics", "fp32"}});
  ASSERT_TRUE(w.ok()) << w.status().to_string();
  EXPECT_TRUE((*w)->wants("layers.1.router.ids"));
  EXPECT_FALSE((*w)->wants("layers.0.router.ids"));  // a dense layer
  EXPECT_FALSE((*w)->wants("layers.0.attention"));
  const float f[10] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const int32_t ids[4] = {4, 0, 1, 2};
  ASSERT_TRUE((*w)->rows_f32("layers.0.hidden", 0, 1, 3, f).ok());
  ASSERT_TRUE((*w)->rows_f32("layers.0.hidden", 1, 1, 3, f + 3).ok());
  ASSERT_TRUE((*w)->rows_f32("layers.1.hidden", 0, 2, 3, f).ok());
  ASSERT_TRUE((*w)->rows_f32("layers.1.router.logits", 0, 2, 5, f).ok());
  ASSERT_TRUE((*w)->rows_i32("layers.1.router.ids", 0, 2, 2, ids).ok());
  ASSERT_TRUE((*w)->rows_f32("layers.1.router.weights", 0, 2, 2, f).ok());
  ASSERT_TRUE((*w)->rows_f32("logits", 1, 1, 4, f).ok());
  EXPECT_FALSE((*w)->commit().ok());  // row 0 of the logits never came
  ASSERT_TRUE((*w)->rows_f32("logits", 0, 1, 4, f).ok());
  EXPECT_EQ((*w)->rows_f32("logits", 2, 1, 4, f).code(), StatusCode::kInternal);
  EXPECT_EQ((*w)->rows_f32("logits", 0, 1, 3, f).code(), StatusCode::kInternal);
  EXPECT_EQ((*w)->rows_f32("layers.1.router.ids", 0, 1, 2, f).code(), StatusCode::kInternal);
  ASSERT_TRUE((*w)->commit().ok());

  auto r = TraceReader::open(fs, "/t");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ((*r)->metadata("numerics"), "fp32");
  EXPECT_EQ((*r)->metadata("absent"), "");
  std::vector<std::string> names;
  for (const TraceTensor& t : (*r)->tensors()) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("layers.0.hidden", "layers.1.hidden", "layers.1.router.ids", "layers.1.router.logits",
                                 "layers.1.router.weights", "logits"));
  std::vector<double> rows;
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("layers.0.hidden"), 1, 1, rows).ok());
  EXPECT_THAT(rows, ElementsAre(4, 5, 6));
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("layers.1.router.ids"), 0, 2, rows).ok());
  EXPECT_THAT(rows, ElementsAre(4, 0, 1, 2));
}

TEST(TraceReader, ConvertsTypesAndSkipsOthers) {
  testing::MemoryFs fs;
  auto w = SafetensorsWriter::create(
      fs, "/t", {{"a", DType::kBF16, {2}}, {"b", DType::kF64, {1}}, {"c", DType::kI64, {}}, {"d", DType::kU8, {8}}}, {});
  ASSERT_TRUE(w.ok());
  const bf16 a[2] = {to_bf16(1.5f), to_bf16(-2)};
  const double b = 0.1;
  const int64_t c = 1LL << 40;
  const uint8_t d[8] = {};
  ASSERT_TRUE((*w)->write("a", 0, std::as_bytes(std::span(a))).ok());
  ASSERT_TRUE((*w)->write("b", 0, std::as_bytes(std::span(&b, 1))).ok());
  ASSERT_TRUE((*w)->write("c", 0, std::as_bytes(std::span(&c, 1))).ok());
  ASSERT_TRUE((*w)->write("d", 0, std::as_bytes(std::span(d))).ok());
  ASSERT_TRUE((*w)->commit().ok());
  auto r = TraceReader::open(fs, "/t");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_THAT((*r)->skipped(), ElementsAre("d"));
  std::vector<double> v;
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("a"), 0, 1, v).ok());
  EXPECT_THAT(v, ElementsAre(1.5, -2));
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("b"), 0, 1, v).ok());
  EXPECT_THAT(v, ElementsAre(0.1));
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("c"), 0, 1, v).ok());
  EXPECT_THAT(v, ElementsAre(static_cast<double>(c)));
}

TEST(TraceReader, RefusesWhatIsNoSafetensors) {
  testing::MemoryFs fs;
  EXPECT_EQ(TraceReader::open(fs, "/none").status().code(), StatusCode::kNotFound);
  fs.put("/short", std::vector<std::byte>(5));
  EXPECT_EQ(TraceReader::open(fs, "/short").status().code(), StatusCode::kCorrupt);
}

}  // namespace
}  // namespace pointsman
