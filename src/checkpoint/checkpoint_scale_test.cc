// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint of the size that this project is for: 61 layers x 384 experts x 3 parts, each with its scales, in 160 sparse
// shards that claim 822 GB. Only headers exist.
#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "checkpoint/checkpoint.h"
#include "memory/memory_limit.h"
#include "support/safetensors_builder.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

constexpr int kLayers = 61, kExperts = 384, kShards = 160;
constexpr uint64_t kWeightBytes = uint64_t{3072} * 3584, kScaleBytes = uint64_t{3072} * 224;

// Appends one tensor to a header and returns where it ends.
uint64_t append(std::string& header, const std::string& name, const char* dtype, const char* shape, uint64_t begin,
                uint64_t bytes) {
  header += (header.empty() ? "{\"" : ",\"") + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
            ",\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(begin + bytes) + "]}";
  return begin + bytes;
}

TEST(CheckpointScale, HundredAndFortyThousandTensorsOpenInASecondAndLittleMemory) {
  const testing::TempDir dir;
  std::string index;
  uint64_t total = 0;
  for (int shard = 0; shard < kShards; ++shard) {
    const std::string file = "model-" + std::to_string(shard) + ".safetensors";
    std::string header;
    uint64_t end = 0;
    for (int i = kLayers * kExperts * shard / kShards; i < kLayers * kExperts * (shard + 1) / kShards; ++i) {
      for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
        const std::string name = "model.layers." + std::to_string(i / kExperts) + ".mlp.experts." +
                                 std::to_string(i % kExperts) + "." + part + ".weight";
        end = append(header, name, "U8", "[3072,3584]", end, kWeightBytes);
        end = append(header, name + "_scale_inv", "F8_E8M0", "[3072,224]", end, kScaleBytes);
        index += (index.empty() ? "\"" : ",\"") + name + "\":\"" + file + "\",\"" + name + "_scale_inv\":\"" + file + "\"";
      }
    }
    header += "}";
    dir.write(file, testing::raw_safetensors(header, ""));
    std::error_code error;
    std::filesystem::resize_file(dir.file(file), 8 + header.size() + end, error);
    if (error) GTEST_SKIP() << "no sparse files of this size here: " << error.message();
    total += end;
  }
  dir.write("model.safetensors.index.json",
            "{\"metadata\":{\"total_size\":" + std::to_string(total) + "},\"weight_map\":{" + index + "}}");
  index = {};

  const uint64_t rss_before = peak_rss_bytes();
  const std::clock_t start = std::clock();  // CPU time: other work on the machine does not fail this test
  const auto c = Checkpoint::open(FileSystem::real(), dir.path());
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ((*c)->tensors().size(), size_t{kLayers} * kExperts * 6);
  EXPECT_EQ((*c)->files().size(), size_t{kShards});
  EXPECT_GT(total, uint64_t{800'000'000'000});
  const TensorEntry* t = (*c)->find("model.layers.60.mlp.experts.383.down_proj.weight_scale_inv");
  ASSERT_NE(t, nullptr);
  EXPECT_EQ(t->offset + t->size_bytes, (*c)->files()[t->file_idx].info.size_bytes);
  EXPECT_LT((*c)->table_bytes(), uint64_t{32} << 20);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(seconds, 1.5);
  EXPECT_LT(peak_rss_bytes() - rss_before, uint64_t{200} << 20);
#endif
  RecordProperty("open_ms", static_cast<int>(seconds * 1000));
  RecordProperty("peak_growth_mib", static_cast<int>((peak_rss_bytes() - rss_before) >> 20));
}

// Headers as long as this reader takes, made to cost as much as possible before they can be refused.
TEST(CheckpointScale, TheLongestHostileHeadersAreRefusedInLittleMemory) {
  const testing::TempDir dir;
  const std::string file = dir.file("model.safetensors");
  const auto refuse = [&](std::string header, StatusCode code) {
    {
      std::ofstream out(file, std::ios::binary);
      const uint64_t n = header.size();
      out.write(reinterpret_cast<const char*>(&n), sizeof n).write(header.data(), static_cast<std::streamsize>(n));
    }
    header = {};
    header.shrink_to_fit();
    const auto c = Checkpoint::open(FileSystem::real(), dir.path());
    ASSERT_FALSE(c.ok());
    EXPECT_EQ(c.status().code(), code) << c.status().to_string();
    EXPECT_NE(c.status().message().find(file), std::string::npos);
  };
  const uint64_t rss_before = peak_rss_bytes();
  std::string brackets = "{" + std::string(kMaxReadHeaderBytes - 2, '[') + "}";
  refuse(std::move(brackets), StatusCode::kCorrupt);
  // Entries as short as they can be, the last of them wrong.
  std::string entries = "{";
  entries.reserve(kMaxReadHeaderBytes);
  for (int i = 0; entries.size() < kMaxReadHeaderBytes - 100; ++i) {
    entries += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  }
  entries += R"("x":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}})";
  refuse(std::move(entries), StatusCode::kCorrupt);
  refuse("{" + std::string(kMaxReadHeaderBytes, '[') + "}", StatusCode::kUnsupported);
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(peak_rss_bytes() - rss_before, uint64_t{190} << 20);
#endif
  RecordProperty("peak_growth_mib", static_cast<int>((peak_rss_bytes() - rss_before) >> 20));
}

TEST(CheckpointScale, HundredAndFortyThousandTensorsMayLieInOneFile) {
  const testing::TempDir dir;
  std::string header;
  uint64_t end = 0;
  for (int i = 0; i < kLayers * kExperts * 6; ++i) {
    end = append(header,
                 "model.layers." + std::to_string(i / 6 / kExperts) + ".mlp.experts." + std::to_string(i / 6 % kExperts) +
                     ".projection_" + std::to_string(i % 6) + ".weight",
                 "U8", "[3072,3584]", end, kWeightBytes);
  }
  header += "}";
  EXPECT_LT(header.size(), kMaxReadHeaderBytes);
  dir.write("model.safetensors", testing::raw_safetensors(header, ""));
  std::error_code error;
  std::filesystem::resize_file(dir.file("model.safetensors"), 8 + header.size() + end, error);
  if (error) GTEST_SKIP() << "no sparse files of this size here: " << error.message();
  const auto c = Checkpoint::open(FileSystem::real(), dir.path());
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ((*c)->tensors().size(), size_t{kLayers} * kExperts * 6);
}

}  // namespace
}  // namespace pointsman
