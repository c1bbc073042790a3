// SPDX-License-Identifier: Apache-2.0
//
// Ten faults, each made in a copy of transformers' own code while it ran (python/golden/make_compare_faults.py): the diagnosis must
// find layer, tensor and kind from the numbers. The files hold no hint of what was done.
#include "verify/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/golden.h"
#include "support/memory_fs.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;

struct Expected {
  const char* file;
  int layer;
  FaultKind kind;
  const char* tensor;
  const char* cause;
};
std::ostream& operator<<(std::ostream& out, const Expected& e) { return out << e.file; }

class SeededFault : public ::testing::TestWithParam<Expected> {};

std::unique_ptr<TraceReader> open_trace(const std::string& name) {
  auto r = TraceReader::open(FileSystem::real(), testing::source_path("tests/golden/compare_faults/" + name + ".safetensors"));
  EXPECT_TRUE(r.ok()) << r.status().to_string();
  return std::move(*r);
}

std::string all(const Diagnosis& d) {
  std::string text = std::string(fault_kind_name(d.kind)) + " at " + d.tensor + ": " + d.cause + "\n";
  for (const std::string& line : d.evidence) text += "  " + line + "\n";
  return text;
}

Diagnosis diagnosis_of(const std::string& name, bool with_model = true) {
  auto a = open_trace(name), b = open_trace("reference");
  auto model = ModelTensors::open(FileSystem::real(), testing::source_path("tests/golden/compare_model"));
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  auto c = compare_traces(*a, *b, {.limits = *compare_profile("fp32", "")});
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  auto d = diagnose({.a = *a, .b = *b, .comparison = *c, .model = with_model ? model->get() : nullptr});
  EXPECT_TRUE(d.ok()) << d.status().to_string();
  EXPECT_TRUE(d->has_value());
  return d->value_or(Diagnosis{});
}

TEST_P(SeededFault, IsNamed) {
  const Expected e = GetParam();
  const Diagnosis d = diagnosis_of(e.file);
  EXPECT_EQ(d.layer, e.layer) << all(d);
  EXPECT_EQ(fault_kind_name(d.kind), fault_kind_name(e.kind)) << all(d);
  EXPECT_EQ(d.tensor, e.tensor) << all(d);
  EXPECT_THAT(d.cause, HasSubstr(e.cause)) << all(d);
  EXPECT_GE(d.evidence.size(), 2u) << all(d);
}

INSTANTIATE_TEST_SUITE_P(
    All, SeededFault,
    ::testing::Values(
        Expected{"router_logits_bf16", 1, FaultKind::kDtype, "layers.1.router.logits", "router gate is stored in bf16"},
        Expected{"softmax_after_topk", 1, FaultKind::kGate, "layers.1.router.weights", "softmax over the chosen experts only"},
        Expected{"gumbel_noise", 1, FaultKind::kGate, "layers.1.router.ids", "noise (Gumbel)"},
        Expected{"expert_gate_up_swapped", 1, FaultKind::kExpert, "layers.1.experts.gate", "expert 5: its gate and up projections are exchanged"},
        Expected{"expert_of_another_layer", 2, FaultKind::kExpert, "layers.2.experts.gate", "expert 6 has the weights of layer 0 expert 6"},
        Expected{"expert_scales_transposed", 1, FaultKind::kScale, "layers.1.experts.gate", "expert 1: the grid of block scales of the gate projection is transposed (2 x 3 blocks of 16)"},
        Expected{"rope_interleaved", 1, FaultKind::kRope, "layers.1.attention.q_rotated", "turns pairs (2i, 2i + 1) (interleaved)"},
        Expected{"epsilon_1e5", 0, FaultKind::kNorm, "layers.0.attention.input", "is 1e-05 instead of 1e-06"},
        Expected{"kv_cache_off_by_one", 1, FaultKind::kAttention, "layers.1.attention.context", "the KV cache is off by one: from row 10 on"},
        Expected{"fp16_overflow", 1, FaultKind::kDtype, "layers.1.experts.act", "overflowed fp16"}),
    [](const auto& p) { return std::string(p.param.file); });

// A reference that has not every point: the SwiGLU is the first that is wrong, and the down projection tells of the scales.
TEST(Diagnose, ScalesAreFoundWithoutGateAndUp) {
  testing::MemoryFs fs;
  std::unique_ptr<TraceReader> readers[2];
  for (int i = 0; i < 2; ++i) {
    auto from = open_trace(i == 0 ? "expert_scales_transposed" : "reference");
    std::vector<SafetensorsWriter::Declaration> kept;
    for (const TraceTensor& t : from->tensors()) {
      if (!t.name.ends_with("experts.gate") && !t.name.ends_with("experts.up")) kept.push_back({t.name, t.dtype, t.shape});
    }
    const std::string path = i == 0 ? "/a" : "/b";
    auto w = SafetensorsWriter::create(fs, path, kept, {});
    std::vector<std::byte> raw;
    for (const auto& d : kept) {
      const TraceTensor* t = from->find(d.name);
      ASSERT_TRUE(from->read_bytes(*t, 0, t->rows, raw).ok());
      ASSERT_TRUE((*w)->write(d.name, 0, raw).ok());
    }
    ASSERT_TRUE((*w)->commit().ok());
    readers[i] = std::move(*TraceReader::open(fs, path));
  }
  auto model = *ModelTensors::open(FileSystem::real(), testing::source_path("tests/golden/compare_model"));
  auto c = compare_traces(*readers[0], *readers[1], {.limits = *compare_profile("fp32", "")});
  auto d = diagnose({.a = *readers[0], .b = *readers[1], .comparison = *c, .model = model.get()});
  ASSERT_TRUE(d.ok() && d->has_value());
  EXPECT_EQ((*d)->tensor, "layers.1.experts.act");
  EXPECT_EQ((*d)->kind, FaultKind::kScale) << all(**d);
  EXPECT_THAT((*d)->cause, HasSubstr("expert 1: the grid of block scales of the down projection is transposed")) << all(**d);
}

TEST(Diagnose, NothingToSayOfTheSame) {
  auto a = open_trace("reference"), b = open_trace("reference");
  auto c = compare_traces(*a, *b, {.limits = *compare_profile("strict", "")});
  EXPECT_TRUE(c->ok);
  EXPECT_FALSE(diagnose({.a = *a, .b = *b, .comparison = *c})->has_value());
}

TEST(Diagnose, WithoutAModelTheExpertIsStillNamed) {
  const Diagnosis d = diagnosis_of("expert_gate_up_swapped", false);
  EXPECT_EQ(d.kind, FaultKind::kExpert) << all(d);
  EXPECT_THAT(d.experts, ::testing::ElementsAre(5));
  EXPECT_THAT(d.advice, HasSubstr("--model"));
}

}  // namespace
}  // namespace pointsman
