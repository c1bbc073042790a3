// SPDX-License-Identifier: Apache-2.0
//
// Writes a qwen3_moe checkpoint with random bf16 weights, or with no weights at all (--sparse: files of the right size that take no
// room on disk), for benchmarks and budget tests. No tokenizer.
//
//   make_random_checkpoint DIR [--layers 14] [--hidden 1024] [--experts 64] [--top-k 8] [--moe-intermediate 512] [--heads 16]
//                          [--kv-heads 4] [--head-dim 128] [--vocab 32000] [--shard-mib 1024] [--seed 1] [--sparse]
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "tensor/dtype.h"

namespace {

using pointsman::format;
using pointsman::Json;

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  double scale;  // standard deviation; 0: ones
  uint64_t bytes() const {
    uint64_t n = 2;
    for (const int64_t d : shape) n *= static_cast<uint64_t>(d);
    return n;
  }
};

void die(const std::string& what) {
  std::fprintf(stderr, "make_random_checkpoint: %s\n", what.c_str());
  std::exit(1);
}

// Sum of four uniform bytes, centred: close enough to normal, one multiplication per four values.
class Noise {
 public:
  explicit Noise(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15ull + 1) {}
  void fill(std::vector<uint16_t>& out, double scale) {
    const float step = static_cast<float>(scale / 147.8);  // sd of the sum of four uniform bytes
    for (uint16_t& v : out) {
      state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
      const uint32_t r = static_cast<uint32_t>(state_ >> 32);
      const int sum = static_cast<int>((r & 255) + ((r >> 8) & 255) + ((r >> 16) & 255) + (r >> 24)) - 510;
      v = pointsman::to_bf16(static_cast<float>(sum) * step).bits;
    }
  }

 private:
  uint64_t state_;
};

void write_all(int fd, const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::write(fd, p, bytes);
    if (n <= 0) die("write failed");
    p += n;
    bytes -= static_cast<size_t>(n);
  }
}

void write_text(const std::string& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) die("cannot create " + path);
  write_all(fd, text.data(), text.size());
  ::close(fd);
}

void write_shard(const std::string& path, const std::vector<Tensor>& tensors, Noise& noise, bool sparse) {
  Json header = Json::object();
  uint64_t offset = 0;
  for (const Tensor& t : tensors) {
    Json entry = Json::object();
    entry.set("dtype", "BF16");
    Json shape = Json::array();
    for (const int64_t d : t.shape) shape.push_back(d);
    entry.set("shape", shape);
    entry.set("data_offsets", Json(Json::Array{Json(offset), Json(offset + t.bytes())}));
    offset += t.bytes();
    header.as_object().emplace_back(t.name, entry);
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd < 0) die("cannot create " + path);
  const uint64_t n = text.size();
  write_all(fd, &n, 8);
  write_all(fd, text.data(), text.size());
  if (sparse) {
    if (::ftruncate(fd, static_cast<off_t>(8 + n + offset)) != 0) die("ftruncate failed");
  } else {
    std::vector<uint16_t> block;
    for (const Tensor& t : tensors) {
      uint64_t left = t.bytes() / 2;
      while (left > 0) {
        block.resize(std::min<uint64_t>(left, 1 << 20));
        if (t.scale == 0) {
          std::fill(block.begin(), block.end(), pointsman::to_bf16(1.0f).bits);
        } else {
          noise.fill(block, t.scale);
        }
        write_all(fd, block.data(), block.size() * 2);
        left -= block.size();
      }
    }
  }
  ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) die("usage: make_random_checkpoint DIR [options], see the top of the source");
  const std::string dir = argv[1];
  std::map<std::string, int64_t> o{{"layers", 14},   {"hidden", 1024},     {"experts", 64},   {"top-k", 8},         {"moe-intermediate", 512}, {"heads", 16},
                                   {"kv-heads", 4},  {"head-dim", 128},    {"vocab", 32000},  {"shard-mib", 1024},  {"seed", 1},               {"context", 4096}};
  bool sparse = false;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--sparse") == 0) {
      sparse = true;
      continue;
    }
    const auto it = o.find(std::strncmp(argv[i], "--", 2) == 0 ? argv[i] + 2 : "");
    if (it == o.end() || i + 1 == argc) die(std::string("unknown option ") + argv[i]);
    it->second = std::atoll(argv[++i]);
  }
  ::mkdir(dir.c_str(), 0755);

  const int64_t hidden = o["hidden"], inter = o["moe-intermediate"], q = o["heads"] * o["head-dim"], kv = o["kv-heads"] * o["head-dim"];
  const auto sd = [](int64_t fan_in) { return 1.0 / std::sqrt(static_cast<double>(fan_in)); };
  std::vector<Tensor> tensors;
  tensors.push_back({"model.embed_tokens.weight", {o["vocab"], hidden}, 1.0});
  for (int64_t l = 0; l < o["layers"]; ++l) {
    const std::string p = format("model.layers.{}.", l);
    tensors.push_back({p + "input_layernorm.weight", {hidden}, 0});
    tensors.push_back({p + "post_attention_layernorm.weight", {hidden}, 0});
    tensors.push_back({p + "self_attn.q_proj.weight", {q, hidden}, sd(hidden)});
    tensors.push_back({p + "self_attn.k_proj.weight", {kv, hidden}, sd(hidden)});
    tensors.push_back({p + "self_attn.v_proj.weight", {kv, hidden}, sd(hidden)});
    tensors.push_back({p + "self_attn.o_proj.weight", {hidden, q}, sd(q)});
    tensors.push_back({p + "self_attn.q_norm.weight", {o["head-dim"]}, 0});
    tensors.push_back({p + "self_attn.k_norm.weight", {o["head-dim"]}, 0});
    tensors.push_back({p + "mlp.gate.weight", {o["experts"], hidden}, sd(hidden)});
    for (int64_t e = 0; e < o["experts"]; ++e) {
      const std::string x = format("{}mlp.experts.{}.", p, e);
      tensors.push_back({x + "gate_proj.weight", {inter, hidden}, sd(hidden)});
      tensors.push_back({x + "up_proj.weight", {inter, hidden}, sd(hidden)});
      tensors.push_back({x + "down_proj.weight", {hidden, inter}, sd(inter)});
    }
  }
  tensors.push_back({"model.norm.weight", {hidden}, 0});
  tensors.push_back({"lm_head.weight", {o["vocab"], hidden}, sd(hidden)});

  std::vector<std::vector<Tensor>> shards(1);
  uint64_t shard_bytes = 0, total = 0;
  for (const Tensor& t : tensors) {
    if (shard_bytes > 0 && shard_bytes + t.bytes() > static_cast<uint64_t>(o["shard-mib"]) << 20) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(t);
    shard_bytes += t.bytes();
    total += t.bytes();
  }
  Noise noise(static_cast<uint64_t>(o["seed"]));
  Json map = Json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = shards.size() == 1 ? "model.safetensors" : format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    write_shard(dir + "/" + name, shards[s], noise, sparse);
    for (const Tensor& t : shards[s]) map.as_object().emplace_back(t.name, name);
  }
  if (shards.size() > 1) {
    Json index = Json::object();
    index.set("metadata", Json::object()).set("total_size", total);
    index.set("weight_map", map);
    write_text(dir + "/model.safetensors.index.json", index.dump(1));
  }
  Json config = Json::object();
  config.set("architectures", Json(Json::Array{Json("Qwen3MoeForCausalLM")}));
  config.set("model_type", "qwen3_moe");
  for (const auto& [key, from] : {std::pair<const char*, const char*>{"hidden_size", "hidden"}, {"num_hidden_layers", "layers"},
                                  {"num_attention_heads", "heads"}, {"num_key_value_heads", "kv-heads"}, {"head_dim", "head-dim"},
                                  {"num_experts", "experts"}, {"num_experts_per_tok", "top-k"}, {"moe_intermediate_size", "moe-intermediate"},
                                  {"vocab_size", "vocab"}, {"max_position_embeddings", "context"}}) {
    config.set(key, o[from]);
  }
  config.set("intermediate_size", inter);
  config.set("norm_topk_prob", true);
  config.set("tie_word_embeddings", false);
  config.set("rms_norm_eps", 1e-6);
  config.set("rope_theta", 1000000.0);
  config.set("hidden_act", "silu");
  config.set("torch_dtype", "bfloat16");
  write_text(dir + "/config.json", config.dump(2) + "\n");
  std::printf("%s: %zu tensors, %zu shards, %s\n", dir.c_str(), tensors.size(), shards.size(), pointsman::human_bytes(static_cast<double>(total)).c_str());
  return 0;
}
