// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "audit/cpp/file.h"

namespace pointsman::audit::cpp {
namespace {

struct Parsed {
  Unit unit;
  std::unique_ptr<File> file;
  explicit Parsed(std::string text) {
    unit.kind = FileKind::kCpp;
    unit.text = std::move(text);
    index_lines(unit);
    file = parse(unit);
  }
  const Call* call(std::string_view name) const {
    for (const Call& c : file->calls()) {
      if (c.name == name) return &c;
    }
    return nullptr;
  }
};

TEST(CppCalls, QualifiedNamesTemplatesAndArguments) {
  const Parsed p(
      "void f(int n) {\n  cub::DeviceRadixSort::SortPairs<int, float>(tmp, g(1, 2), {3, 4});\n  obj.run(n)->go();\n  ::cudaFree(p);\n  if (n) return;\n  sizeof(n);\n}\n");
  const Call* c = p.call("cub::DeviceRadixSort::SortPairs");
  ASSERT_NE(c, nullptr);
  ASSERT_EQ(c->arguments.size(), 3u);
  EXPECT_EQ(p.file->text(c->arguments[1]), "g(1, 2)");
  EXPECT_EQ(c->last, "SortPairs");
  EXPECT_NE(p.call("cudaFree"), nullptr);
  EXPECT_TRUE(p.call("run")->is_member);
  EXPECT_TRUE(p.call("go")->is_member);
  EXPECT_EQ(p.call("if"), nullptr);
  EXPECT_EQ(p.call("sizeof"), nullptr);
  EXPECT_EQ(p.call("f"), nullptr) << "a definition is no call";
}

TEST(CppLexer, CommentsStringsAndRawStringsHoldNoCalls) {
  const Parsed p("// cudaMalloc(1)\n/* cudaFree(2) */\nvoid f() { const char* s = \"cudaMemcpy(3)\"; auto r = R\"x(cudaSet(4) \" )x\"; char c = '\"'; real(5); }\n");
  ASSERT_EQ(p.file->calls().size(), 1u);
  EXPECT_EQ(p.file->calls()[0].name, "real");
  EXPECT_EQ(p.file->comments().size(), 2u);
}

TEST(CppPreprocessor, IncludesAndConditionsAroundTokens) {
  const Parsed p(
      "#include <nccl.h>\n#include \"a/b.h\"\n#ifdef USE_ROCM\nvoid a() { x(); }\n#else\nvoid b() { y(); }\n#endif\n#if defined(USE_CUDA) && \\\n  !defined(USE_NPU)\nvoid c() { z(); }\n#endif\n");
  ASSERT_EQ(p.file->includes().size(), 2u);
  EXPECT_EQ(p.file->includes()[0].path, "nccl.h");
  EXPECT_TRUE(p.file->includes()[0].is_angled);
  const auto condition = [&](const char* name) { return p.file->tokens()[p.call(name)->token].condition; };
  EXPECT_TRUE(p.file->runs_under(condition("x"), {"USE_ROCM"}));
  EXPECT_FALSE(p.file->runs_under(condition("y"), {"USE_ROCM"}));
  EXPECT_TRUE(p.file->runs_under(condition("z"), {"USE_CUDA"}));
  EXPECT_FALSE(p.file->runs_under(condition("z"), {"USE_NPU"}));
  EXPECT_FALSE(p.file->runs_under(condition("z"), {"USE"})) << "whole names only";
}

TEST(CppStructure, FunctionsKernelsLaunchesAndLoops) {
  const Parsed p(
      "template <int N> __global__ void __launch_bounds__(256) gate(float* x) { for (int i = 0; i < N; ++i) { inner(i); } }\n"
      "namespace n { struct S { S() : a_(1) { made(); } int get() const { return a_; } int a_; }; }\n"
      "void host() { gate<32><<<dim3(1, 2), 64, 0, stream>>>(p, q); while (true) step(); after(); }\n");
  ASSERT_EQ(p.file->functions().size(), 4u);
  EXPECT_EQ(p.file->functions()[0].name, "gate");
  EXPECT_TRUE(p.file->functions()[0].is_kernel);
  EXPECT_EQ(p.unit.slice(p.file->functions()[0].name_span), "gate");
  EXPECT_EQ(p.file->functions()[1].name, "S");
  ASSERT_EQ(p.file->launches().size(), 1u);
  EXPECT_EQ(p.file->launches()[0].configuration.size(), 4u);
  EXPECT_EQ(p.file->launches()[0].arguments.size(), 2u);
  const auto loop = [&](const char* name) { return p.file->tokens()[p.call(name)->token].loop; };
  EXPECT_GE(loop("inner"), 0);
  EXPECT_GE(loop("step"), 0);
  EXPECT_EQ(loop("after"), -1);
  EXPECT_EQ(p.file->function_of(p.call("step")->token)->name, "host");
}

TEST(CppBroken, AnyBytesAreRead) {
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "f(";
  std::string conditions;
  for (int i = 0; i < 5'000; ++i) conditions += "#if A" + std::to_string(i) + "\n";
  for (const std::string& text : {deep, std::string(100'000, '{'), conditions + "x();", std::string("\"abc\nint x = R\"(no end"), std::string("/* no end"), std::string("#"), std::string("a<b<c<d<e<<<<<<"),
                                  std::string("} ) ] >>> <<<"), std::string(50'000, '<')}) {
    const Parsed p(text);
    EXPECT_FALSE(p.file->truncated());
  }
}

}  // namespace
}  // namespace pointsman::audit::cpp
