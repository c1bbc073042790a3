// SPDX-License-Identifier: Apache-2.0
//
// pointsman compare and trace --replay as they are used: seeded faults against our own engine, shadow runs, reports, reproductions, memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "cli/args.h"
#include "support/golden.h"
#include "support/run_shell.h"
#include "support/sanitizer.h"
#include "support/temp_dir.h"

namespace pointsman::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::run_shell;
using testing::ShellResult;
using testing::TempDir;

const std::string kModel = "tests/golden/compare_model";
const std::string kFaults = "tests/golden/compare_faults/";
const std::string kReference = kFaults + "reference.safetensors";

Json json_of(const ShellResult& r) {
  auto j = parse_json(r.out);
  EXPECT_TRUE(j.ok()) << r.out << r.err;
  return j.ok() ? *j : Json();
}
const Json& at(const Json& j, std::string_view key) {
  static const Json null;
  const Json* found = j.find(key);
  if (found == nullptr) ADD_FAILURE() << key << " in " << j.dump();
  return found != nullptr ? *found : null;
}
std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
std::string trace(const std::string& replay, const std::string& out, const std::string& more = "") {
  return "$P trace " + kModel + " --replay " + replay + " --what all --numerics fp32 -c 64 --log-level error --out " + out + " " + more;
}

// The reference computed by our engine: other sums, fewer points. What is named does not change.
TEST(CompareProgram, SeededFaultsAgainstOurOwnEngine) {
  const TempDir dir;
  const std::string ours = dir.file("ours.safetensors");
  // Of the reference's tokens, with nothing replayed that could differ.
  ASSERT_EQ(run_shell(trace(kReference, ours, "--replay-what routes")).exit_code, kExitOk);
  const ShellResult same = run_shell("$P compare " + ours + " " + kReference + " --common");
  ASSERT_EQ(same.exit_code, kExitOk) << same.out;
  struct Case {
    const char* file;
    const char* kind;
    const char* tensor;
  };
  for (const Case& c : {Case{"router_logits_bf16", "dtype", "layers.1.router.logits"}, Case{"softmax_after_topk", "gate", "layers.1.router.weights"},
                        Case{"gumbel_noise", "gate", "layers.1.router.ids"}, Case{"expert_gate_up_swapped", "expert", "layers.1.experts.act"},
                        Case{"expert_of_another_layer", "expert", "layers.2.experts.act"}, Case{"expert_scales_transposed", "scale", "layers.1.experts.act"},
                        Case{"rope_interleaved", "RoPE", "layers.1.attention.q_rotated"}, Case{"epsilon_1e5", "norm", "layers.0.attention.input"},
                        Case{"kv_cache_off_by_one", "attention", "layers.1.attention.context"}, Case{"fp16_overflow", "dtype", "layers.1.experts.act"}}) {
    const ShellResult r = run_shell("$P compare " + kFaults + c.file + ".safetensors " + ours + " --common --json --model " + kModel);
    EXPECT_EQ(r.exit_code, kExitFindings) << c.file;
    const Json d = at(json_of(r), "diagnosis");
    EXPECT_EQ(at(d, "kind").as_string(), c.kind) << c.file << d.dump(1);
    EXPECT_EQ(at(d, "tensor").as_string(), c.tensor) << c.file << d.dump(1);
    EXPECT_FALSE(at(d, "cause").as_string().empty()) << c.file << d.dump(1);
  }
}

// A fault of the judged engine itself: another config, run by our engine.
TEST(CompareProgram, AnEngineWithAnotherConfigIsNamed) {
  const TempDir dir;
  const std::string model = dir.file("model");
  std::filesystem::copy(testing::source_path(kModel), model);
  std::string config = read(model + "/config.json");
  const auto change = [&](const std::string& from, const std::string& to) {
    ASSERT_NE(config.find(from), config.npos) << from;
    std::string changed = config;
    changed.replace(changed.find(from), from.size(), to);
    std::ofstream(model + "/config.json") << changed;
  };
  const auto diagnosed = [&] {
    const std::string out = dir.file("t.safetensors");
    EXPECT_EQ(run_shell("$P trace " + model + " --replay " + kReference + " --what all --numerics fp32 -c 64 --log-level error --out " + out).exit_code, kExitOk);
    return at(json_of(run_shell("$P compare " + out + " " + kReference + " --common --json --model " + kModel)), "diagnosis");
  };
  change("\"norm_topk_prob\": false", "\"norm_topk_prob\": true");
  Json d = diagnosed();
  EXPECT_EQ(at(d, "kind").as_string(), "gate") << d.dump(1);
  EXPECT_EQ(at(d, "tensor").as_string(), "layers.0.router.weights");
  change("\"rms_norm_eps\": 1e-06", "\"rms_norm_eps\": 1e-05");
  d = diagnosed();
  EXPECT_EQ(at(d, "kind").as_string(), "norm") << d.dump(1);
  EXPECT_THAT(at(d, "cause").as_string(), HasSubstr("1e-05 instead of 1e-06"));
  change("\"rope_theta\": 1000000.0", "\"rope_theta\": 10000.0");
  d = diagnosed();
  EXPECT_EQ(at(d, "kind").as_string(), "RoPE") << d.dump(1);
  EXPECT_THAT(at(d, "cause").as_string(), HasSubstr("other angles"));
}

// Replay feeds every layer the recorded inputs: a fault in layer 1 is no longer in layer 2.
TEST(TraceReplayProgram, AShadowRunPartsLocalFromInherited) {
  const TempDir dir;
  const std::string bad = kFaults + "expert_gate_up_swapped.safetensors", shadow = dir.file("s.safetensors");
  ASSERT_EQ(run_shell(trace(bad, shadow)).exit_code, kExitOk);
  const Json j = json_of(run_shell("$P compare " + bad + " " + kReference + " --common --json --shadow " + shadow));
  EXPECT_EQ(at(j, "first_local").as_string(), "layers.1.experts.act");
  bool seen = false;
  for (const Json& t : at(j, "tensors").as_array()) {
    const std::string name = at(t, "name").as_string();
    if (!name.starts_with("layers.2.") || at(t, "local_row_relative").is_null()) continue;
    seen = true;
    EXPECT_LT(at(t, "local_row_relative").as_double(), 1e-5) << name;
    if (name == "layers.2.hidden") {
      EXPECT_GT(at(t, "row_relative").as_double(), 1e-2);
    }
  }
  EXPECT_TRUE(seen);
}

TEST(TraceReplayProgram, ForcedRoutesPartGateFromExperts) {
  const TempDir dir;
  const std::string bad = kFaults + "gumbel_noise.safetensors", own = dir.file("own.safetensors"), forced = dir.file("forced.safetensors");
  ASSERT_EQ(run_shell(trace(bad, own)).exit_code, kExitOk);
  ASSERT_EQ(run_shell(trace(bad, forced, "--replay-what inputs,routes --prefill-chunk 7")).exit_code, kExitOk);
  // Alone on its inputs a layer still chooses other experts; with the routes forced nothing is wrong.
  EXPECT_EQ(run_shell("$P compare " + bad + " " + own + " --common").exit_code, kExitFindings);
  const ShellResult c = run_shell("$P compare " + bad + " " + forced + " --common");
  EXPECT_EQ(c.exit_code, kExitOk) << c.out;
  EXPECT_THAT(run_shell("$P compare " + bad + " " + kReference + " --common --shadow " + forced).out, HasSubstr("experts are not at fault, the choice is"));
  // And with a wrong expert it is still wrong.
  const std::string expert = kFaults + "expert_of_another_layer.safetensors";
  ASSERT_EQ(run_shell(trace(expert, forced, "--replay-what inputs,routes")).exit_code, kExitOk);
  EXPECT_EQ(run_shell("$P compare " + expert + " " + forced + " --common").exit_code, kExitFindings);
}

TEST(TraceReplayProgram, WhatCannotBeReplayedIsRefused) {
  const TempDir dir;
  EXPECT_THAT(run_shell("$P trace " + kModel + " --replay tests/golden/qwen3_moe_odd/expected.safetensors --tokens 1,2 --log-level error --out " + dir.file("x")).err,
              HasSubstr("is it a trace of this model?"));
  const ShellResult r = run_shell(trace(kReference, dir.file("x"), "--replay-what everything"));
  EXPECT_EQ(r.exit_code, kExitUsage);
  EXPECT_THAT(r.err, HasSubstr("inputs,routes"));
  EXPECT_FALSE(std::filesystem::exists(dir.file("x")));
}

TEST(CompareProgram, ReportsHoldWhatTheyShould) {
  const TempDir dir;
  const std::string html = dir.file("r.html"), junit = dir.file("r.xml");
  std::filesystem::copy(testing::source_path(kFaults + "gumbel_noise.safetensors"), dir.file("<a&b>.safetensors"));
  const ShellResult r = run_shell("$P compare '" + dir.file("<a&b>.safetensors") + "' " + kReference + " --html " + html + " --junit " + junit);
  EXPECT_EQ(r.exit_code, kExitFindings);
  EXPECT_THAT(r.out, HasSubstr("first bad: layers.1.router.ids (layer 1)"));
  EXPECT_THAT(r.out, HasSubstr("gate margin of the flips"));
  const std::string page = read(html), xml = read(junit);
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("first bad: layers.1.router.ids (gate)"));
  EXPECT_THAT(page, HasSubstr("routing flips"));
  EXPECT_THAT(page, HasSubstr("&lt;a&amp;b&gt;"));
  for (const char* never : {"<a&b>", "<script", "http://", "https://"}) EXPECT_THAT(page, Not(HasSubstr(never)));
  EXPECT_THAT(xml, HasSubstr("name=\"layers.1.router\"><failure message=\"gate: the choice of experts is random"));
  EXPECT_THAT(xml, Not(HasSubstr("<a&b>")));
}

// The file alone is enough to compute what was expected.
TEST(CompareProgram, AReproductionStandsAlone) {
  const TempDir dir;
  const std::string repro = dir.file("repro.safetensors");
  ASSERT_EQ(run_shell("$P compare " + kFaults + "expert_of_another_layer.safetensors " + kReference + " --model " + kModel + " --repro " + repro).exit_code, kExitFindings);
  const testing::GoldenFile f = testing::read_golden(repro);
  const testing::GoldenTensor &x = f.at("input.mlp.input"), &w = f.at("weight.gate"), &expected = f.at("expected"), &found = f.at("found");
  ASSERT_EQ(x.rows(), expected.rows());
  double right = 0, wrong = 0;
  for (int64_t r = 0; r < x.rows(); ++r) {
    for (int64_t o = 0; o < w.rows(); ++o) {
      double sum = 0;
      for (int64_t i = 0; i < w.cols(); ++i) sum += double{x.f32[static_cast<size_t>(r * x.cols() + i)]} * w.f32[static_cast<size_t>(o * w.cols() + i)];
      right = std::max(right, std::fabs(sum - expected.f32[static_cast<size_t>(r * w.rows() + o)]));
      wrong = std::max(wrong, std::fabs(sum - found.f32[static_cast<size_t>(r * w.rows() + o)]));
    }
  }
  EXPECT_LT(right, 1e-5);
  EXPECT_GT(wrong, 0.1);
  EXPECT_THAT(read(repro), HasSubstr("y = x gate^T"));
}

TEST(CompareProgram, AscendL1JudgesByAThirdRun) {
  const std::string bf16 = kFaults + "router_logits_bf16.safetensors";
  const ShellResult none = run_shell("$P compare " + bf16 + " " + kReference + " --profile ascend-l1");
  EXPECT_EQ(none.exit_code, kExitUsage);
  EXPECT_THAT(none.err, HasSubstr("--baseline"));
  EXPECT_EQ(run_shell("$P compare " + bf16 + " " + kReference + " --profile ascend-l1 --baseline " + bf16).exit_code, kExitOk);
  const ShellResult worse = run_shell("$P compare " + bf16 + " " + kReference + " --profile ascend-l1 --json --baseline " + kReference);
  EXPECT_EQ(worse.exit_code, kExitFindings);
  EXPECT_EQ(at(json_of(worse), "first_divergence").as_string(), "layers.1.router.logits");
}

// Close tensors, far distributions: one logit that was small becomes the largest of its row.
TEST(CompareProgram, CloseTensorsAndFarKlAreBothShown) {
  const Json j = json_of(run_shell("$P compare " + kFaults + "router_logits_bf16.safetensors " + kReference + " --json"));
  EXPECT_GT(at(at(j, "logits"), "kl_p99").as_double(), 0);
  EXPECT_EQ(at(at(at(j, "logits"), "perplexity"), "tokens").as_int(), 23);
  EXPECT_GT(at(at(at(j, "logits"), "perplexity"), "ratio_standard_error").as_double(), 0);
}

// 768 MiB on each side, sparse on disk, in less than a tenth of it.
TEST(CompareProgram, MemoryDoesNotGrowWithTheTraces) {
  if (testing::kSanitized) GTEST_SKIP() << "shadow memory is no measure";
  const TempDir dir;
  const int64_t layers = 12, bytes = int64_t{64} << 20;
  for (const char* name : {"a", "b"}) {
    std::string header = "{";
    for (int64_t i = 0; i < layers; ++i) {
      header += (i > 0 ? "," : "") + std::string("\"layers.") + std::to_string(i) + ".hidden\":{\"dtype\":\"F32\",\"shape\":[8192,2048],\"data_offsets\":[" +
                std::to_string(i * bytes) + "," + std::to_string((i + 1) * bytes) + "]}";
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t length = header.size();
    std::ofstream out(dir.file(name), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&length), 8);
    out << header;
    const float one = 1;
    if (name[0] == 'a') out.seekp(static_cast<std::streamoff>(8 + length) + (layers - 1) * bytes), out.write(reinterpret_cast<const char*>(&one), 4);
    out.close();
    std::filesystem::resize_file(dir.file(name), 8 + length + static_cast<uint64_t>(layers * bytes));
  }
  // The address space is bounded, so that no page can hide.
  const ShellResult r = run_shell("ulimit -v 200000; $P compare " + dir.file("a") + " " + dir.file("b") + " --json");
  EXPECT_EQ(r.exit_code, kExitFindings) << r.err;
  EXPECT_EQ(at(json_of(r), "first_divergence").as_string(), "layers.11.hidden");
}

}  // namespace
}  // namespace pointsman::cli
