// SPDX-License-Identifier: Apache-2.0
//
// O2 (QuintinShaw/openasr#73): the header's length prefix sized an allocation. Files whose prefix lies are refused after one
// small read, with no memory taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/checkpoint.h"
#include "memory/memory_limit.h"
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
  uint64_t claimed;
  uint64_t file_bytes;
  const char* says;
};
constexpr Variant kVariants[] = {
    {"LargestSigned", (uint64_t{1} << 63) - 1, 16, "claims 9223372036854775807 bytes, more than the limit of 100000000"},
    {"LargestUnsigned", ~uint64_t{0}, 16, "more than the limit"},
    {"FileSizePlusOne", 17, 16, "claims 17 bytes, but only 8 follow"},
    {"FileSize", 16, 16, "claims 16 bytes, but only 8 follow"},
    {"OneTooMany", 9, 16, "claims 9 bytes, but only 8 follow"},
    {"Zero", 0, 16, "claims 0 bytes"},
    {"NinetyMegabytesOfNothing", 90'000'000, 16, "claims 90000000 bytes, but only 8 follow"},
    // The file is as large as it says, but no header is.
    {"BeyondTheLimitInALargeFile", 200'000'000, 300'000'000, "more than the limit"},
};

class O2 : public ::testing::TestWithParam<Variant> {};

TEST_P(O2, IsRefusedBeforeAllocating) {
  const Variant& v = GetParam();
  const testing::TempDir dir;
  dir.write("model.safetensors", raw_safetensors(v.claimed, "{}      ", ""));
  std::filesystem::resize_file(dir.file("model.safetensors"), v.file_bytes);  // sparse
  FaultyFs fs(FileSystem::real());
  const uint64_t peak_before = peak_rss_bytes();
  const auto c = Checkpoint::open(fs, dir.path());
  ASSERT_FALSE(c.ok());
  EXPECT_EQ(c.status().code(), StatusCode::kCorrupt);
  EXPECT_THAT(c.status().message(), AllOf(HasSubstr(dir.file("model.safetensors")), HasSubstr(v.says)));
  EXPECT_EQ(fs.calls(FaultyFs::Op::kRead), 1u);
  EXPECT_LT(peak_rss_bytes(), peak_before + (8 << 20));
}

INSTANTIATE_TEST_SUITE_P(Variants, O2, ::testing::ValuesIn(kVariants), [](const auto& p) { return p.param.name; });

}  // namespace
}  // namespace pointsman
