// SPDX-License-Identifier: Apache-2.0
//
// gpt-oss under the names and with the config of its first release: the committed checkpoint, renamed here, gives the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "pointsman/engine.h"
#include "support/golden.h"
#include "support/recorder.h"
#include "support/run_program.h"
#include "support/safetensors_builder.h"
#include "support/stored_tensors.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::run_program;
using testing::safetensors_of;
using testing::Stored;
using testing::TempDir;
using testing::tensors_of;
using testing::text_of;

// The names of the first release, written out again here: what the product's table says is under test.
std::vector<Stored> renamed(const std::vector<Stored>& hf, int layers) {
  std::vector<Stored> out;
  const auto take = [&](const std::string& from, const std::string& to) {
    const auto it = std::find_if(hf.begin(), hf.end(), [&](const Stored& t) { return t.name == from; });
    ASSERT_NE(it, hf.end()) << from;
    out.push_back(*it);
    out.back().name = to;
  };
  take("model.embed_tokens.weight", "embedding.weight");
  for (int i = 0; i < layers; ++i) {
    const std::string from = "model.layers." + std::to_string(i) + ".", to = "block." + std::to_string(i) + ".";
    take(from + "input_layernorm.weight", to + "attn.norm.scale");
    for (const char* kind : {"weight", "bias"}) {
      const size_t first = out.size();
      for (const char* part : {"q", "k", "v"}) take(from + "self_attn." + part + "_proj." + kind, to + "attn.qkv." + kind);
      for (size_t k = first + 1; k < first + 3; ++k) out[first].bytes += out[k].bytes, out[first].shape[0] += out[k].shape[0];
      out.resize(first + 1);
      take(from + "self_attn.o_proj." + kind, to + "attn.out." + kind);
      take(from + "mlp.router." + kind, to + "mlp.gate." + kind);
    }
    take(from + "self_attn.sinks", to + "attn.sinks");
    take(from + "post_attention_layernorm.weight", to + "mlp.norm.scale");
    for (const auto& [name, number] : {std::pair{"gate_up_proj", "1"}, {"down_proj", "2"}}) {
      const std::string experts = from + "mlp.experts." + name, mlp = to + "mlp.mlp" + number;
      take(experts + "_blocks", mlp + "_weight.blocks");
      take(experts + "_scales", mlp + "_weight.scales");
      take(experts + "_bias", mlp + "_bias");
    }
  }
  take("model.norm.weight", "norm.scale");
  take("lm_head.weight", "unembedding.weight");
  EXPECT_EQ(out.size(), hf.size() - static_cast<size_t>(4 * layers));  // q, k, v in one: weights and biases
  return out;
}

constexpr const char* kOriginalConfig = R"({"num_hidden_layers":4,"num_experts":8,"experts_per_token":2,"vocab_size":160,"hidden_size":64,"intermediate_size":32,
  "swiglu_limit":7.0,"head_dim":16,"num_attention_heads":4,"num_key_value_heads":2,"sliding_window":8,"initial_context_length":4096,"rope_theta":150000,
  "rope_scaling_factor":32.0,"rope_ntk_alpha":1,"rope_ntk_beta":32})";

std::string hf_folder() { return testing::source_path("tests/golden/gpt_oss_mxfp4"); }

std::vector<float> logits(const std::string& folder, Numerics numerics, const std::vector<int32_t>& tokens) {
  auto engine = Engine::load({.model_dir = folder, .memory_bytes = 64 << 20, .num_threads = 2, .context_length = 128, .numerics = numerics, .num_readers = 2, .load_tokenizer = false});
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  if (!engine.ok()) return {};
  auto session = (*engine)->new_session();
  testing::Recorder recorder;
  EXPECT_TRUE((*session)->trace(tokens, recorder).ok());
  return recorder.f32["logits"];
}

TEST(GptOssOriginal, GivesTheBitsOfTheNamesOfTransformers) {
  const auto stored = renamed(tensors_of(hf_folder() + "/model.safetensors"), 4);
  ASSERT_FALSE(HasFatalFailure());
  const std::vector<int32_t> tokens = testing::read_golden(hf_folder() + "/expected.safetensors").at("tokens").i32;
  const TempDir dir;
  for (const bool own_config : {false, true}) {
    for (const bool shards : {false, true}) {
      const std::string folder = dir.file(std::string(own_config ? "own" : "hf") + (shards ? "_shards" : ""));
      std::filesystem::create_directory(folder);
      std::ofstream(folder + "/config.json") << (own_config ? std::string(kOriginalConfig) : text_of(hf_folder() + "/config.json"));
      if (shards) {
        std::vector<Stored> half[2];
        std::vector<std::pair<std::string, std::string>> map;
        int64_t total = 0;
        for (size_t i = 0; i < stored.size(); ++i) {
          half[i % 2].push_back(stored[i]);
          map.emplace_back(stored[i].name, i % 2 == 0 ? "a.safetensors" : "b.safetensors");
          total += static_cast<int64_t>(stored[i].bytes.size());
        }
        std::ofstream(folder + "/a.safetensors", std::ios::binary) << safetensors_of(half[0]);
        std::ofstream(folder + "/b.safetensors", std::ios::binary) << safetensors_of(half[1]);
        std::ofstream(folder + "/model.safetensors.index.json") << testing::shard_index_json(map, total);
      } else {
        std::ofstream(folder + "/model.safetensors", std::ios::binary) << safetensors_of(stored);
      }
      for (const Numerics n : {Numerics::kFp32, Numerics::kBf16}) {
        const auto expected = logits(hf_folder(), n, tokens);
        ASSERT_FALSE(expected.empty());
        EXPECT_EQ(logits(folder, n, tokens), expected) << folder;
      }
    }
  }
}

TEST(GptOssOriginal, ToolsWorkAndLockNamesAreThoseOfTransformers) {
  const TempDir dir;
  const std::string folder = dir.file("m"), hf = dir.file("hf");
  std::filesystem::create_directory(folder);
  std::filesystem::create_directory(hf);
  for (const char* name : {"config.json", "model.safetensors"}) std::filesystem::copy(hf_folder() + "/" + name, hf + "/" + name);
  std::ofstream(folder + "/config.json") << kOriginalConfig;
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << safetensors_of(renamed(tensors_of(hf_folder() + "/model.safetensors"), 4));
  const auto json_of = [](const std::vector<std::string>& args) {
    const auto r = run_program(args);
    EXPECT_EQ(r.exit_code, 0) << r.err;
    auto j = parse_json(r.out);
    EXPECT_TRUE(j.ok()) << r.out;
    return j.ok() ? *j : Json::object();
  };
  const Json a = json_of({"inspect", folder, "--json"}), b = json_of({"inspect", hf, "--json"});
  EXPECT_EQ(a.find("model_type")->as_string(), "gpt_oss");
  EXPECT_TRUE(a.find("refusals")->as_array().empty());
  EXPECT_TRUE(*a.find("experts") == *b.find("experts")) << a.find("experts")->dump() << b.find("experts")->dump();
  const Json p = json_of({"plan", folder, "--memory", "64MiB", "-c", "128", "--json"}), q = json_of({"plan", hf, "--memory", "64MiB", "-c", "128", "--json"});
  for (const char* key : {"fits", "num_experts_total", "expert_bytes", "kv_bytes_per_token"}) {
    ASSERT_NE(p.find(key), nullptr) << key;
    EXPECT_TRUE(*p.find(key) == *q.find(key)) << key;
  }
  // A lock is bound to names and bytes, so that of one folder holds for the other, with the same config.json.
  EXPECT_EQ(run_program({"lock", hf}).exit_code, 0);
  std::filesystem::remove(folder + "/config.json");
  for (const auto& e : std::filesystem::directory_iterator(hf)) {
    const std::string name = e.path().filename().string();
    if (name != "model.safetensors") std::filesystem::copy(e.path(), folder + "/" + name);
  }
  const auto checked = run_program({"lock", "--check", folder});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
}

TEST(GptOssOriginal, WhatDoesNotFitIsNamed) {
  const auto stored = renamed(tensors_of(hf_folder() + "/model.safetensors"), 4);
  ASSERT_FALSE(HasFatalFailure());
  const auto message = [](std::vector<Stored> tensors) {
    const TempDir dir;
    dir.write("config.json", kOriginalConfig);
    dir.write("model.safetensors", safetensors_of(tensors));
    const auto r = run_program({"inspect", dir.path()});
    EXPECT_NE(r.exit_code, 0);
    return r.out + r.err;
  };
  auto without_out = stored;
  std::erase_if(without_out, [](const Stored& t) { return t.name == "block.2.attn.out.weight"; });
  EXPECT_THAT(message(without_out), HasSubstr("there is no block.2.attn.out.weight"));
  auto both = stored;
  both.push_back(both[0]);
  both.back().name = "model.embed_tokens.weight";
  EXPECT_THAT(message(both), HasSubstr("model.embed_tokens.weight is stored under the original name of gpt-oss and under this one, too"));
  auto unknown = stored;
  unknown[0].name = "embeddings.weight";
  EXPECT_THAT(message(unknown), HasSubstr("embeddings.weight"));
}

}  // namespace
}  // namespace pointsman
