// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints with made routes, seen from outside: make_checkpoint writes one, the engine runs it and records its routes, and these are
// held against the law that was asked for. Frequencies are counted here, not by the code that made them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "base/fs.h"
#include "base/hash.h"
#include "base/json.h"
#include "cli/routing_trace_file.h"
#include "experts/policy.h"
#include "support/run_program.h"
#include "support/run_shell.h"
#include "support/temp_dir.h"

namespace pointsman {
namespace {

using ::testing::HasSubstr;
using testing::run_shell;
using testing::ShellResult;
using testing::TempDir;

constexpr int kLayers = 3, kExperts = 16, kTopK = 2, kVocab = 2000;
const std::string kShape = " --layers 3 --hidden 128 --experts 16 --top-k 2 --moe-intermediate 32 --heads 4 --kv-heads 2 --head-dim 32 --vocab 2000 --context 1024 --no-progress";

ShellResult make(const std::string& args) { return run_shell("'" + std::string(PM_BINARY_DIR) + "/make_checkpoint' " + args); }

std::string hash_of(const std::string& path) {
  const std::string bytes = read_text_file(FileSystem::real(), path, 1 << 24).value();
  return to_hex(sha256(std::as_bytes(std::span(bytes))));
}

// Routes of so many runs of 700 tokens, drawn over the vocabulary.
RoutingTrace record(const std::string& model, const TempDir& dir, int runs = 3, int vocab = kVocab) {
  const std::string folder = dir.file("routes");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  uint64_t state = 12345;
  for (int run = 0; run < runs; ++run) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 700; ++i) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      ids.push_back(static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
    }
    const std::string out = folder + "/" + std::to_string(run) + ".safetensors";
    const testing::ProgramResult r = testing::run_program({"trace", model, "--tokens", testing::join_ids(ids), "--what", "router", "-o", out, "--no-progress", "--threads", "1"});
    EXPECT_EQ(r.exit_code, 0) << r.err;
  }
  const auto routes = cli::read_routes(FileSystem::real(), folder);
  EXPECT_TRUE(routes.ok()) << routes.status().message();
  return routes.ok() ? routes->trace : RoutingTrace{};
}

struct Counted {
  std::vector<std::vector<double>> shares;  // by layer and expert, of the layer's choices
  std::vector<double> by_rank;              // mean of the layers
  double kept = 0, chance = 0;
};

Counted count(const RoutingTrace& t) {
  Counted c;
  c.by_rank.resize(static_cast<size_t>(t.num_experts));
  for (int layer = 0; layer < t.num_layers; ++layer) {
    std::vector<double> share(static_cast<size_t>(t.num_experts));
    double kept = 0, pairs = 0;
    for (int64_t token = 0; token < t.num_tokens(); ++token) {
      const auto now = t.experts(token, layer);
      for (const int32_t id : now) share[static_cast<size_t>(id)] += 1 / static_cast<double>(t.num_tokens() * t.top_k);
      if (std::count(t.run_starts.begin(), t.run_starts.end(), token) > 0) continue;
      const auto before = t.experts(token - 1, layer);
      for (const int32_t id : now) kept += static_cast<double>(std::count(before.begin(), before.end(), id));
      pairs += t.top_k;
    }
    double squares = 0;
    for (const double s : share) squares += s * s;
    c.kept += kept / pairs / t.num_layers;
    c.chance += squares * t.top_k / t.num_layers;
    c.shares.push_back(share);
    std::sort(share.begin(), share.end(), std::greater<>());
    for (size_t i = 0; i < share.size(); ++i) c.by_rank[i] += share[i] / t.num_layers;
  }
  return c;
}

// Half the sum of the differences: 0 is the same, 1 has nothing in common.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]) / 2;
  return sum;
}

// Shares by rank when two experts are drawn one after the other with weights rank^-s.
std::vector<double> zipf_of_two(double s) {
  std::vector<double> p, share;
  double total = 0;
  for (int rank = 1; rank <= kExperts; ++rank) total += p.emplace_back(std::pow(rank, -s));
  for (double& x : p) x /= total;
  for (size_t i = 0; i < p.size(); ++i) {
    double f = p[i];
    for (size_t j = 0; j < p.size(); ++j) f += j == i ? 0 : p[j] * p[i] / (1 - p[j]);
    share.push_back(f / 2);
  }
  return share;
}

// Of a made_routes checkpoint's distance to its law; other laws and routes without any are farther.
constexpr double kNear = 0.04, kFar = 0.12;

TEST(MadeRoutes, FollowTheZipfLawAndPlainRandomWeightsDoNot) {
  const TempDir dir;
  for (const std::string stored : {"bf16", "fp8"}) {
    const ShellResult made = make(dir.file(stored) + kShape + " --format " + stored + " --routing zipf:s=1,stay=0");
    ASSERT_EQ(made.exit_code, 0) << made.err;
    EXPECT_THAT(made.out, HasSubstr("made routes, zipf:s=1,stay=0"));
    const Counted c = count(record(dir.file(stored), dir));
    EXPECT_LT(distance(c.by_rank, zipf_of_two(1)), kNear) << stored;
    EXPECT_GT(distance(c.by_rank, zipf_of_two(0.3)), kFar);
    EXPECT_NEAR(c.kept, c.chance, 0.02) << stored;
    // Each layer has an order of its own.
    EXPECT_GT(distance(c.shares[0], c.shares[1]), kFar);
    EXPECT_GT(distance(c.shares[1], c.shares[2]), kFar);
  }
  ASSERT_EQ(make(dir.file("plain") + kShape).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir.file("plain/routing.json")));
  EXPECT_GT(distance(count(record(dir.file("plain"), dir)).by_rank, zipf_of_two(1)), kFar);
}

// Persistence is that of drawn Zipf-Markov routes with the same arguments; caches profit.
TEST(MadeRoutes, StayFromTokenToToken) {
  const TempDir dir;
  for (const double stay : {0.2, 0.5, 0.8}) {
    const std::string routing = "zipf:s=0.7,stay=" + std::to_string(stay);
    const std::string model = dir.file(std::to_string(stay));
    ASSERT_EQ(make(model + kShape + " --routing " + routing + (stay == 0.5 ? " --format fp8" : "")).exit_code, 0);
    const Counted c = count(record(model, dir));
    const Counted drawn = count(make_trace({.num_layers = 1, .num_experts = kExperts, .top_k = kTopK, .num_tokens = 50000, .exponent = 0.7, .stay = stay}));
    EXPECT_NEAR(c.kept, drawn.kept, 0.03) << stay;
    EXPECT_GT(c.kept, c.chance + 0.6 * stay);
    // Routes that stay long are few independent ones, so that frequencies scatter.
    EXPECT_LT(distance(c.by_rank, drawn.by_rank), stay < 0.8 ? kNear : 3 * kNear) << stay;
    const ShellResult r = run_shell("$P bench cache " + dir.file("routes") + " --sizes 4,8,12 --json");
    ASSERT_EQ(r.exit_code, 0) << r.err;
    const Json j = parse_json(r.out).value();
    EXPECT_NEAR(j.find("kept")->as_double(), c.kept, 1e-9);
    EXPECT_NEAR(j.find("kept_by_chance")->as_double(), c.chance, 1e-9);
    for (const Json& cell : j.find("results")->as_array()) {
      EXPECT_GT(cell.find("hit_rate")->as_double(), cell.find("share")->as_double() + 0.05) << cell.dump();
    }
  }
}

TEST(MadeRoutes, TheLabelSaysWhatTheEngineDoes) {
  const TempDir dir;
  ASSERT_EQ(make(dir.file("m") + kShape + " --routing zipf:s=0.9,stay=0.4,seed=5").exit_code, 0);
  const Json label = parse_json(read_text_file(FileSystem::real(), dir.file("m/routing.json"), 1 << 20).value()).value();
  EXPECT_EQ(label.find("routing")->as_string(), "zipf:s=0.9,stay=0.4,seed=5");
  EXPECT_THAT(label.find("what")->as_string(), HasSubstr("nothing was learned"));
  const Counted c = count(record(dir.file("m"), dir));
  for (const char* key : {"wanted", "simulated"}) {
    const Json& j = *label.find(key);
    EXPECT_NEAR(c.kept, j.find("kept")->as_double(), 0.03) << key;
    EXPECT_NEAR(c.chance, j.find("kept_by_chance")->as_double(), 0.03) << key;
    std::vector<double> by_rank;
    for (const Json& share : j.find("share_by_rank")->as_array()) by_rank.push_back(share.as_double());
    EXPECT_LT(distance(c.by_rank, by_rank), kNear) << key;
  }
  // Another checkpoint in the same folder does not keep the label.
  ASSERT_EQ(make(dir.file("m") + kShape).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir.file("m/routing.json")));
}

// Routes of the bundled model, which is trained, in a random checkpoint: expert by expert in one of the same shape, as a curve in another.
TEST(MadeRoutes, FromARecordedTrace) {
  const TempDir dir;
  const RoutingTrace trained = record("models/pointsman-tiny-moe", dir, 2, 2048);
  ASSERT_EQ(trained.num_layers, 6);
  const Counted wanted = count(trained);
  std::filesystem::rename(dir.file("routes"), dir.file("trained"));
  const std::string common = " --hidden 128 --moe-intermediate 32 --heads 4 --kv-heads 2 --head-dim 32 --vocab 2000 --context 1024 --no-progress --routing trace:" + dir.file("trained");
  ASSERT_EQ(make(dir.file("same") + common + " --layers 6 --experts 16 --top-k 4").exit_code, 0);
  const Counted same = count(record(dir.file("same"), dir));
  for (size_t l = 0; l < 6; ++l) EXPECT_LT(distance(same.shares[l], wanted.shares[l]), 2 * kNear) << l;
  EXPECT_NEAR(same.kept, wanted.kept, 0.03);

  ASSERT_EQ(make(dir.file("other") + common + " --layers 4 --experts 32 --top-k 4").exit_code, 0);
  const Counted other = count(record(dir.file("other"), dir));
  ASSERT_EQ(other.by_rank.size(), 32u);
  std::vector<double> halves;
  for (size_t i = 0; i < 32; i += 2) halves.push_back(other.by_rank[i] + other.by_rank[i + 1]);
  EXPECT_LT(distance(halves, wanted.by_rank), 2 * kNear);
  const auto beyond = [](const Counted& c) { return (c.kept - c.chance) / (1 - c.chance); };
  EXPECT_NEAR(beyond(other), beyond(wanted), 0.05);
}

TEST(MadeRoutes, SurvivePacking) {
  const TempDir dir;
  ASSERT_EQ(make(dir.file("m") + kShape + " --routing zipf:s=0.8,stay=0.4").exit_code, 0);
  const ShellResult packed = run_shell("$P pack " + dir.file("m") + " " + dir.file("p") + " --format int8 --no-progress");
  ASSERT_EQ(packed.exit_code, 0) << packed.err;
  EXPECT_TRUE(std::filesystem::exists(dir.file("p/routing.json")));
  const RoutingTrace a = record(dir.file("m"), dir), b = record(dir.file("p"), dir);
  ASSERT_EQ(a.ids.size(), b.ids.size());
  double both = 0;
  for (int64_t token = 0; token < a.num_tokens(); ++token) {
    for (int l = 0; l < kLayers; ++l) {
      for (const int32_t id : a.experts(token, l)) both += static_cast<double>(std::count(b.experts(token, l).begin(), b.experts(token, l).end(), id));
    }
  }
  EXPECT_GT(both / static_cast<double>(a.ids.size()), 0.97);
}

// The next layer's router on the residual stream before this layer's experts is often right, as in trained models, and not always.
TEST(MadeRoutes, AreForeseenWithErrors) {
  const TempDir dir;
  ASSERT_EQ(make(dir.file("m") + kShape + " --routing zipf:s=0.8,stay=0.3").exit_code, 0);
  const ShellResult r = run_shell("$P bench decode " + dir.file("m") + " --prefetch log -c 512 -n 100 --repeat 1 --prompt-tokens 16 --stream-mib 1 --threads 1 --json --no-progress");
  ASSERT_EQ(r.exit_code, 0) << r.err;
  const Json j = parse_json(r.out).value();
  const double right = j.find("runs")->as_array()[0].find("engine")->find("prediction")->find("hit_rate")->as_double();
  EXPECT_GT(right, 0.7);
  EXPECT_LT(right, 0.95);
}

TEST(MadeRoutes, SameSeedSameBytes) {
  const TempDir dir;
  std::map<std::string, std::string> hashes;
  for (const auto& [name, args] : {std::pair<std::string, std::string>{"a", " --threads 1 --routing zipf:seed=1"}, {"b", " --threads 3 --routing zipf:seed=1"},
                                   {"c", " --threads 1 --routing zipf:seed=2"}, {"d", " --threads 1 --seed 2 --routing zipf:seed=1"}}) {
    ASSERT_EQ(make(dir.file(name) + kShape + args).exit_code, 0);
    hashes[name] = hash_of(dir.file(name + "/model.safetensors"));
  }
  EXPECT_EQ(hashes["a"], hashes["b"]);
  EXPECT_NE(hashes["a"], hashes["c"]);
  EXPECT_NE(hashes["a"], hashes["d"]);
  EXPECT_EQ(hash_of(dir.file("a/routing.json")), hash_of(dir.file("b/routing.json")));
}

// Without --routing: the bytes that benchmarks of earlier versions were run on.
TEST(MadeRoutes, ChangeNothingWhenNotAskedFor) {
  const TempDir dir;
  const std::string shape = " --layers 2 --hidden 64 --experts 8 --top-k 2 --moe-intermediate 16 --heads 2 --kv-heads 1 --head-dim 32 --vocab 100 --no-progress";
  ASSERT_EQ(make(dir.file("bf16") + shape).exit_code, 0);
  EXPECT_EQ(hash_of(dir.file("bf16/model.safetensors")), "5973389e803cc9a955cd95c8593038229a9c46cdf872f74bd2413332964459ea");
  EXPECT_EQ(hash_of(dir.file("bf16/config.json")), "218aa319296fd0f2718c8c66b2f3b3bbe3f70be1f2776c0dd4af434a788deeac");
  ASSERT_EQ(make(dir.file("fp8") + shape + " --format fp8").exit_code, 0);
  EXPECT_EQ(hash_of(dir.file("fp8/model.safetensors")), "788d68e17b6db42236d2151b8957bcf84b2bc5a19cad1a7941ce82522891a5d5");
}

TEST(MadeRoutes, SayWhereTheyAreNot) {
  const TempDir dir;
  const auto refusal = [&](const std::string& args) {
    const ShellResult r = make(dir.file("m") + args);
    EXPECT_EQ(r.exit_code, 2) << args << r.out;
    return r.err;
  };
  EXPECT_THAT(refusal(" --preset v4-flash --routing zipf"), HasSubstr("--routing is there for qwen3_moe"));
  EXPECT_THAT(refusal(" --sparse --routing zipf"), HasSubstr("--sparse"));
  EXPECT_THAT(refusal(kShape + " --routing zipf:layers=3"), HasSubstr("layers is the model's"));
  EXPECT_THAT(refusal(kShape + " --routing zipf:stay=1"), HasSubstr("keep at most"));
  EXPECT_THAT(refusal(kShape + " --routing skewed"), HasSubstr("expected zipf:"));
  EXPECT_THAT(refusal(" --hidden 32 --head-dim 32 --routing zipf"), HasSubstr("hidden size of 36 or more"));
  EXPECT_THAT(refusal(" --head-dim 8 --routing zipf"), HasSubstr("16 or more"));
  EXPECT_NE(make(dir.file("m") + kShape + " --routing trace:" + dir.file("none.safetensors")).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(dir.file("m")));
}

}  // namespace
}  // namespace pointsman
