// SPDX-License-Identifier: Apache-2.0
//
// O1 (ml-explore/mlx#3363, QuintinShaw/openasr#73): a declared shape larger than the byte range led to an out-of-bounds read.
// Every variant is refused, naming file and tensor, before a byte of payload is read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "checkpoint/checkpoint.h"
#include "support/faulty_fs.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::AllOf;
using testing::FaultyFs;
using ::testing::HasSubstr;
using testing::raw_safetensors;

struct Variant {
  const char* name;
  const char* shape;
  const char* offsets;
  const char* says;
};
constexpr Variant kVariants[] = {
    {"ShapeLargerThanRange", "[1000,1000]", "[0,4]", "need 4000000 bytes, but \"data_offsets\" span 4"},
    {"ShapeSmallerThanRange", "[]", "[0,8]", "need 4 bytes, but \"data_offsets\" span 8"},
    {"Reversed", "[1]", "[4,0]", "reversed: begin 4 is after end 0"},
    {"NegativeDimension", "[-1000,-1000]", "[0,4]", "dimension 0 of \"shape\" is -1000"},
    {"NegativeOffset", "[1]", "[-4,0]", "\"data_offsets\" holds -4"},
    {"ThreeOffsets", "[1]", "[0,4,8]", "more than two numbers"},
    {"PastTheEnd", "[1000,1000]", "[0,4000000]", "ends at byte 4000000 of the data, but the file has 8 data bytes"},
    {"EndNearTheLimit", "[1]", "[18446744073709551611,18446744073709551615]", "ends at byte 18446744073709551615"},
    {"ProductWrapsToZero", "[4611686018427387904,4]", "[0,0]", "overflows"},
    {"ProductWrapsToTheRange", "[4611686018427387905]", "[0,4]", "overflows"},
    {"Fraction", "[0.5]", "[0,4]", "dimension 0 of \"shape\" is 0.5"},
};

class O1 : public ::testing::TestWithParam<Variant> {};

TEST_P(O1, IsRefusedByName) {
  const Variant& v = GetParam();
  const testing::TempDir dir;
  const std::string header =
      std::string(R"({"layer.weight":{"dtype":"F32","shape":)") + v.shape + R"(,"data_offsets":)" + v.offsets + "}}";
  dir.write("model.safetensors", raw_safetensors(header, "12345678"));
  FaultyFs fs(FileSystem::real());
  const auto c = Checkpoint::open(fs, dir.path());
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(c.status().message(),
              AllOf(HasSubstr(dir.file("model.safetensors")), HasSubstr("tensor layer.weight"), HasSubstr(v.says)));
  EXPECT_EQ(fs.calls(FaultyFs::Op::kRead), 2u);  // the head and the header
}

INSTANTIATE_TEST_SUITE_P(Variants, O1, ::testing::ValuesIn(kVariants), [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace pointsman
