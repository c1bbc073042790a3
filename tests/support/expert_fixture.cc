// SPDX-License-Identifier: Apache-2.0
#include "support/expert_fixture.h"

#include <numeric>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/philox.h"

namespace pointsman::testing {
namespace {

constexpr const char* kDirectory = "/model";
constexpr const char* kPartNames[] = {"gate_proj", "up_proj", "down_proj"};

std::string tensor_name(int layer, int expert, int part) {
  return format("model.layers.{}.mlp.experts.{}.{}.weight", layer + 1, expert, kPartNames[part]);
}

std::vector<int> layer_ids(int n) {
  std::vector<int> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 1);  // layer 0 is dense
  return ids;
}

}  // namespace

std::vector<std::byte> ExpertFixture::expected(int layer, int expert, ExpertPart part) const {
  std::vector<std::byte> bytes(static_cast<size_t>(shape.hidden) * static_cast<size_t>(shape.intermediate) * 2);
  for (size_t i = 0; i < bytes.size(); i += 16) {
    const PhiloxCounter block = philox4x32_10(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(layer), static_cast<uint32_t>(expert), static_cast<uint32_t>(part)},
        {1, 2});
    for (size_t j = 0; j < 16 && i + j < bytes.size(); ++j) bytes[i + j] = static_cast<std::byte>(block[j / 4] >> (j % 4 * 8));
  }
  return bytes;
}

ExpertFixture::ExpertFixture(ExpertFixtureShape s) : shape(s), catalogue(layer_ids(s.num_layers), s.num_experts) {
  struct Shard {
    Json header = Json::object();
    std::vector<std::byte> payload;
  };
  std::vector<Shard> shards(static_cast<size_t>(s.num_shards));
  Json weight_map = Json::object();
  const auto shard_name = [&](size_t i) { return format("model-{:05}-of-{:05}.safetensors", i + 1, s.num_shards); };
  const int orders[2][3] = {{2, 0, 1}, {0, 1, 2}};
  uint64_t total = 0;
  for (int layer = 0; layer < s.num_layers; ++layer) {
    for (int expert = 0; expert < s.num_experts; ++expert) {
      const size_t shard_idx = static_cast<size_t>((layer * s.num_experts + expert) % s.num_shards);
      Shard& shard = shards[shard_idx];
      for (const int part : orders[s.record_order]) {
        const auto bytes = expected(layer, expert, static_cast<ExpertPart>(part));
        const int rows = part == 2 ? s.hidden : s.intermediate;
        Json entry = Json::object();
        entry.set("dtype", "BF16");
        entry.set("shape", Json::Array{rows, s.hidden + s.intermediate - rows});
        entry.set("data_offsets", Json::Array{static_cast<int64_t>(shard.payload.size()),
                                              static_cast<int64_t>(shard.payload.size() + bytes.size())});
        shard.header.set(tensor_name(layer, expert, part), std::move(entry));
        shard.payload.insert(shard.payload.end(), bytes.begin(), bytes.end());
        weight_map.set(tensor_name(layer, expert, part), shard_name(shard_idx));
        total += bytes.size();
      }
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    std::string header = shards[i].header.dump();
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::vector<std::byte> file(8);
    for (size_t b = 0; b < 8; ++b) file[b] = static_cast<std::byte>(header.size() >> (8 * b));
    const auto text = std::as_bytes(std::span(header));
    file.insert(file.end(), text.begin(), text.end());
    file.insert(file.end(), shards[i].payload.begin(), shards[i].payload.end());
    fs.put(join_path(kDirectory, shard_name(i)), std::move(file));
  }
  Json index = Json::object();
  index.set("metadata", Json::object()).set("total_size", static_cast<int64_t>(total));
  index.set("weight_map", std::move(weight_map));
  const std::string text = index.dump();
  const auto index_bytes = std::as_bytes(std::span(text));
  fs.put(join_path(kDirectory, "model.safetensors.index.json"), {index_bytes.begin(), index_bytes.end()});

  auto opened = Checkpoint::open(fs, kDirectory, {.path_check_interval_ms = s.path_check_interval_ms});
  PM_CHECK(opened.ok(), "%s", opened.status().to_string().c_str());
  checkpoint = std::move(opened).value();
  for (int layer = 0; layer < s.num_layers; ++layer) {
    for (int expert = 0; expert < s.num_experts; ++expert) {
      ExpertInfo& info = catalogue.at(layer, expert);
      Sha256 hash;
      Xxh3 fast;
      for (int part = 0; part < kNumWeightParts; ++part) {
        const TensorEntry* t = checkpoint->find(tensor_name(layer, expert, part));
        PM_CHECK(t != nullptr);
        info.parts[static_cast<size_t>(part)] = {.dtype = t->dtype,
                                                 .file_idx = t->file_idx,
                                                 .offset = t->offset,
                                                 .size_bytes = t->size_bytes,
                                                 .rows = static_cast<int32_t>(t->shape[0]),
                                                 .cols = static_cast<int32_t>(t->shape[1])};
        hash.update(expected(layer, expert, static_cast<ExpertPart>(part)));
        fast.update(expected(layer, expert, static_cast<ExpertPart>(part)));
      }
      info.place_parts();
      if (s.with_digests) info.sha256 = hash.finish();
      if (s.with_digests) info.xxh3 = fast.finish();
    }
  }
  fs.reset_reads();
}

std::string ExpertFixture::shard_path(uint32_t file_idx) const {
  return join_path(kDirectory, checkpoint->files()[file_idx].name);
}

std::byte& ExpertFixture::byte_on_disk(int layer, int expert, ExpertPart part, uint64_t offset) {
  const ExpertPartInfo& info = catalogue.at(layer, expert).parts[static_cast<size_t>(part)];
  return fs.node(shard_path(info.file_idx)).bytes[info.offset + offset];
}

}  // namespace pointsman::testing
