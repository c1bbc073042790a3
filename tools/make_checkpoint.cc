// SPDX-License-Identifier: Apache-2.0
//
// Writes a checkpoint with random weights, or with none at all (--sparse: files of the right size that take no room on disk), for benchmarks
// and budget tests; with --routing, its routers choose as wanted. No tokenizer.
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "cli/args.h"
#include "tools/planted_routes.h"
#include "tools/random_checkpoint.h"

namespace {

using namespace pointsman;

int fail(const std::string& what, int code) {
  std::fprintf(stderr, "make_checkpoint: %s\n", what.c_str());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  cli::ArgParser args("make_checkpoint", "Writes a checkpoint with random weights.",
                      "  make_checkpoint /tmp/m                                 qwen3_moe, 14 layers, 2.89 GiB\n"
                      "  make_checkpoint /tmp/m --preset M --format fp8         24 layers of 64 experts, top-8\n"
                      "  make_checkpoint /tmp/m --preset L                      20 layers of Qwen3-30B-A3B's width: 128 experts, top-8\n"
                      "  make_checkpoint /tmp/m --preset v4-flash --layers 4    DeepSeek-V4-Flash as published (FP4, FP8), 14.5 GiB\n"
                      "  make_checkpoint /tmp/m --preset M --routing zipf:s=0.8,stay=0.3     routers that choose some experts more often than others\n"
                      "  make_checkpoint /tmp/m --preset M --routing trace:routes.safetensors  as a recorded model did (pointsman trace --what router)\n"
                      "Routers of random weights follow nothing but chance. --routing gives them popularity and persistence: of experts drawn with weights\n"
                      "1 / rank^s, where each stays for the next token with probability `stay` besides, or those of recorded routes. routing.json in DIR says what was\n"
                      "asked for, and how to measure it. Nothing is learned.\n");
  std::string dir, preset = "S", stored = "bf16", routing;
  tools::RandomShape shape;
  tools::WriteOptions write;
  int64_t shard_mib = 1024, seed = 1, threads = std::max(1u, std::thread::hardware_concurrency());
  bool quiet = false;
  args.positional("DIR", dir, "the folder to write; made if it is not there");
  args.option("--preset", preset, "S (default), M, L: qwen3_moe; v4-flash: deepseek_v4");
  args.option("--format", stored, "of qwen3_moe: bf16 (default) or fp8 (E4M3, fp32 scales per 128 x 128)");
  args.option("--layers", shape.layers, "layers");
  args.option("--hidden", shape.hidden, "hidden size");
  args.option("--experts", shape.experts, "experts per layer");
  args.option("--top-k", shape.top_k, "experts per token");
  args.option("--moe-intermediate", shape.intermediate, "width of an expert");
  args.option("--heads", shape.heads, "attention heads");
  args.option("--kv-heads", shape.kv_heads, "key-value heads");
  args.option("--head-dim", shape.head_dim, "dimension of a head");
  args.option("--vocab", shape.vocab, "size of the vocabulary");
  args.option("--context", shape.context, "max_position_embeddings (default: 4096)");
  args.option("--shard-mib", shard_mib, "size of a file (default: 1024)");
  args.option("--seed", seed, "of the weights (default: 1)");
  args.option("--routing", routing, "of qwen3_moe: zipf:s=0.6,stay=0.3,seed=0 (each with this default) or trace:PATH, a file or a folder (default: none)");
  args.option("--threads", threads, "threads that make values (default: all)");
  args.flag("--sparse", write.sparse, "headers over holes");
  args.flag("--no-progress", quiet, "no progress on stderr");
  if (const auto code = args.parse(argc, argv)) return *code;

  const std::vector<const char*> free = {"--hidden", "--experts", "--top-k", "--moe-intermediate", "--heads", "--kv-heads", "--head-dim", "--vocab", "--format", "--context"};
  tools::RandomModel model;
  const auto fill = [](int64_t& value, int64_t otherwise) { value = value == 0 ? otherwise : value; };
  if (!routing.empty() && preset == "v4-flash") return fail("--routing is there for qwen3_moe (presets S, M and L), not for preset v4-flash", cli::kExitUsage);
  if (!routing.empty() && write.sparse) return fail("--routing and --sparse: routes are in the weights, of which --sparse writes none", cli::kExitUsage);
  if (preset == "v4-flash") {
    for (const char* name : free) {
      if (args.given(name)) return fail(format("{} has its published value in preset v4-flash; only --layers is free", name), cli::kExitUsage);
    }
    fill(shape.layers, 4);
    if (shape.layers < 1 || shape.layers > 43) return fail(format("--layers {}: expected 1 to 43", shape.layers), cli::kExitUsage);
    model = tools::random_deepseek_v4(shape.layers);
  } else if (preset == "S" || preset == "M" || preset == "L") {
    const bool large = preset == "L";
    fill(shape.layers, preset == "S" ? 14 : preset == "M" ? 24 : 20);
    fill(shape.hidden, large ? 2048 : 1024);
    fill(shape.experts, large ? 128 : 64);
    fill(shape.top_k, 8);
    fill(shape.intermediate, large ? 768 : 512);
    fill(shape.heads, large ? 32 : 16);
    fill(shape.kv_heads, 4);
    fill(shape.head_dim, 128);
    fill(shape.vocab, 32000);
    if (stored != "bf16" && stored != "fp8") return fail(format("--format {}: expected bf16 or fp8", stored), cli::kExitUsage);
    shape.fp8 = stored == "fp8";
    for (const int64_t n : {shape.layers, shape.hidden, shape.experts, shape.top_k, shape.intermediate, shape.heads, shape.kv_heads, shape.head_dim, shape.vocab, shape.context}) {
      if (n < 1 || n > (int64_t{1} << 24)) return fail(format("a size of {}: expected 1 to 2^24", n), cli::kExitUsage);
    }
    model = tools::random_qwen3_moe(shape);
  } else {
    return fail(format("--preset {}: expected S, M, L or v4-flash", preset), cli::kExitUsage);
  }
  if (shard_mib < 1 || seed < 0 || threads < 1 || threads > 256) return fail("--shard-mib and --threads must be 1 or more, --seed 0 or more", cli::kExitUsage);
  if (!routing.empty()) {
    if (const Status s = tools::plant_routes(model, shape, routing, static_cast<uint64_t>(seed), static_cast<int>(threads)); !s.ok()) {
      return fail("--routing: " + s.message(), s.code() == StatusCode::kInvalidArgument ? cli::kExitUsage : cli::kExitRuntime);
    }
  }
  write.shard_bytes = static_cast<uint64_t>(shard_mib) << 20;
  write.seed = static_cast<uint64_t>(seed);
  write.threads = static_cast<int>(threads);
  write.progress = !quiet;
  if (::mkdir(dir.c_str(), 0755) != 0 && errno != EEXIST) return fail(format("cannot make {}: {}", dir, std::strerror(errno)), cli::kExitRuntime);
  if (const Status s = tools::write_random_checkpoint(dir, model, write); !s.ok()) return fail(s.message(), cli::kExitRuntime);
  return 0;
}
