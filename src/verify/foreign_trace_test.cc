// SPDX-License-Identifier: Apache-2.0
#include "verify/foreign_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/golden.h"
#include "support/temp_dir.h"
#include "verify/npy.h"

namespace pointsman {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Result<NpyHeader> golden_header(const std::string& name) {
  auto file = FileSystem::real().open(testing::source_path("tests/golden/npy/" + name + ".npy"));
  EXPECT_TRUE(file.ok()) << name;
  return read_npy_header(**file);
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(Npy, WhatNumpyWrites) {
  EXPECT_EQ(golden_header("f4")->dtype, DType::kF32);
  EXPECT_THAT(golden_header("f4")->shape, ElementsAre(3, 4));
  EXPECT_EQ(golden_header("f2")->dtype, DType::kF16);
  EXPECT_EQ(golden_header("f8")->size_bytes, 96u);
  EXPECT_EQ(golden_header("i8")->dtype, DType::kI64);
  EXPECT_TRUE(golden_header("scalar")->shape.empty());
  EXPECT_THAT(golden_header("vector")->shape, ElementsAre(12));
  EXPECT_THAT(golden_header("empty")->shape, ElementsAre(0, 4));
  EXPECT_THAT(golden_header("version2")->shape, ElementsAre(3, 4));
  EXPECT_THAT(golden_header("version3")->shape, ElementsAre(3, 4));
}

TEST(Npy, WhatIsRefusedAndWhy) {
  EXPECT_THAT(golden_header("columns").status().message(), HasSubstr("column-major"));
  EXPECT_THAT(golden_header("big_endian").status().message(), HasSubstr(">f4"));
  EXPECT_EQ(golden_header("complex").status().code(), StatusCode::kUnsupported);
  const std::string good = bytes_of(testing::source_path("tests/golden/npy/f4.npy"));
  for (size_t n = 0; n < good.size(); ++n)
    EXPECT_FALSE(parse_npy_header(std::string_view(good).substr(0, n), n).ok()) << n;
  EXPECT_FALSE(parse_npy_header(good, good.size() + 1).ok());
  const auto with_shape = [&](const std::string& shape) {
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n";
    std::string file = std::string("\x93NUMPY\x01\x00", 8) + static_cast<char>(header.size()) + '\0' + header;
    return parse_npy_header(file, file.size() + 48);
  };
  EXPECT_TRUE(with_shape("(3, 4)").ok());
  for (const char* bad : {"(4294967296, 4294967296)", "(9223372036854775807, 2)", "(99999999999999999999, 1)", "(-3, 4)", "(3 4)", "3", "(3,", "(3, 5)",
                          "(1,1,1,1,1,1,1,3,4)"})
    EXPECT_FALSE(with_shape(bad).ok()) << bad;
}

TEST(PointOfDump, KnownModules) {
  EXPECT_EQ(point_of_dump("Module.model.layers.3.self_attn.q_proj.Linear.forward.0.output.0"), "layers.3.attention.q");
  EXPECT_EQ(point_of_dump("Module.model.layers.12.Qwen3MoeDecoderLayer.forward.0.output.0"), "layers.12.hidden");
  EXPECT_EQ(point_of_dump("Module.model.layers.0.self_attn.o_proj.Linear.forward.0.input.0"), "layers.0.attention.context");
  EXPECT_EQ(point_of_dump("Module.model.layers.0.mlp.gate.Qwen3MoeTopKRouter.forward.0.output.2"), "layers.0.router.ids");
  EXPECT_EQ(point_of_dump("Cell.model.embed_tokens.Embedding.forward.0.output.0"), "embedding");
  EXPECT_EQ(point_of_dump("Module.lm_head.Linear.forward.0.output.0"), "logits");
  EXPECT_EQ(point_of_dump("model.layers.3.post_attention_layernorm.output"), "layers.3.mlp.input");
  EXPECT_EQ(point_of_dump("layers.3.router.logits"), "layers.3.router.logits");
  // A second call is another token; what is not known keeps its name.
  for (const char* same : {"Module.model.layers.3.self_attn.q_proj.Linear.forward.1.output.0", "Tensor.permute.1.forward", "x", "",
                           "Module.model.layers.99999999999.A.forward.0.output.0"})
    EXPECT_EQ(point_of_dump(same), same);
}

TEST(ForeignTrace, AFolderOfArrays) {
  testing::TempDir dir;
  const auto copy = [&](const std::string& from, const std::string& to) {
    dir.write(to, bytes_of(testing::source_path("tests/golden/npy/" + from + ".npy")));
  };
  copy("batch", "layers.0.hidden.npy");
  copy("f4", "model.layers.1.output.0.npy");
  copy("i8", "other.npy");
  copy("columns", "bad.npy");
  dir.write("readme.txt", "x");
  auto r = TraceReader::open(FileSystem::real(), dir.path());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  std::vector<std::string> names;
  for (const TraceTensor& t : (*r)->tensors()) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("layers.0.hidden", "layers.1.hidden", "other"));
  EXPECT_THAT((*r)->find("layers.0.hidden")->shape, ElementsAre(3, 4));  // without the batch
  EXPECT_THAT((*r)->notes(), Contains(HasSubstr("column-major")));
  std::vector<double> v;
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("layers.1.hidden"), 2, 1, v).ok());
  EXPECT_THAT(v, ElementsAre(1, 1.125, 1.25, 1.375));
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("other"), 0, 1, v).ok());
  EXPECT_THAT(v, ElementsAre(0, 1, 2, 3));
}

constexpr const char* kDump = R"({"task": "tensor", "level": "L0", "dump_data_dir": "/elsewhere", "data": {
 "Module.model.layers.0.input_layernorm.RMSNorm.forward.0": {"input_args": [], "input_kwargs": {}, "output": [
   {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1, 3, 4], "Max": 1.5, "Min": 0.0, "Mean": 0.7, "Norm": 3.0, "data_name": "a.npy"}]},
 "Module.model.layers.0.self_attn.q_proj.Linear.forward.0": {"output": [
   {"Max": 1.5, "Min": 0.0, "Mean": 0.7, "Norm": 3.0, "data_name": "q.pt"}]},
 "Tensor.add.0.forward": {"output": [{"data_name": "../../etc/passwd"}, {"type": "int", "value": 3}, null]},
 "Module.x": 7}})";

TEST(ForeignTrace, AnMsprobeFolder) {
  testing::TempDir dir;
  std::filesystem::create_directories(dir.file("step0/rank0/dump_tensor_data"));
  dir.write("step0/rank0/dump.json", kDump);
  dir.write("step0/rank0/dump_tensor_data/a.npy", bytes_of(testing::source_path("tests/golden/npy/batch.npy")));
  auto r = TraceReader::open(FileSystem::real(), dir.path());
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  std::vector<std::string> names;
  for (const TraceTensor& t : (*r)->tensors()) names.push_back(t.name);
  EXPECT_THAT(names, ElementsAre("layers.0.attention.input", "layers.0.attention.q#statistics"));
  EXPECT_THAT((*r)->notes(), Contains(HasSubstr("pickles")));
  EXPECT_THAT((*r)->notes(), Contains(HasSubstr("not at hand to confirm")));
  std::vector<double> v;
  ASSERT_TRUE((*r)->read_rows(*(*r)->find("layers.0.attention.q#statistics"), 0, 1, v).ok());
  EXPECT_THAT(v, ElementsAre(1.5, 0, 0.7, 3));
}

TEST(ForeignTrace, SeveralRanksAreNotGuessed) {
  testing::TempDir dir;
  for (const char* rank : {"rank0", "rank1"}) {
    std::filesystem::create_directories(dir.file(std::string("step0/") + rank));
    dir.write(std::string("step0/") + rank + "/dump.json", kDump);
  }
  EXPECT_THAT(TraceReader::open(FileSystem::real(), dir.path()).status().message(), HasSubstr("2 dumps"));
  testing::TempDir empty;
  EXPECT_EQ(TraceReader::open(FileSystem::real(), empty.path()).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace pointsman
