// SPDX-License-Identifier: Apache-2.0
//
// Plain structs with defaults that work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pointsman {

// How numbers are computed. Recorded with every result; memory and speed settings never change it.
enum class Numerics {
  kFp32,  // parity with Hugging Face transformers in fp32 eager: fp32 activations and sums, weights as stored
  kBf16,  // bf16 matmul inputs where the weights are bf16; fp32 sums, residual stream, norms, router, softmax, logits
  kVendor,  // what DeepSeek's own code computes: as kBf16, and activations of FP8 and FP4 weights, keys and the indexer go through small
            // formats (docs/design/numerics.md). deepseek_v3 (not kimi_k2) and deepseek_v4
};
const char* numerics_name(Numerics n);

// How keys and values of past tokens are held. Part of the numerics: it changes results.
enum class KvCacheType {
  kAuto,  // fp32 with fp32 numerics, else bf16
  kFp32,
  kBf16,
  kInt8,  // eight-bit codes with one fp32 scale for each head and position: a little over half of bf16. Not for latent or compressed attention
};
const char* kv_cache_name(KvCacheType t);

// Where weights live. The last rule whose pattern matches wins.
enum class Placement {
  kPinned,    // read at start, never evicted
  kResident,  // read when first needed, then kept
  kOnDemand,  // read when needed, may be evicted
};
const char* placement_name(Placement p);
struct PlacementRule {
  // A glob over unit names: "embed_tokens", "lm_head", "layers.3.experts", "layers.*.experts", "experts" (all of them), "*".
  std::string pattern;
  Placement placement = Placement::kOnDemand;
};

// How latent attention (DeepSeek-V3) is computed: the same function, other roundings. Recorded with every result.
enum class LatentForm {
  kAbsorbed,  // 576 numbers per token and layer are cached
  kNaive,     // keys and values of every head are cached, as the published formulas read
};

enum class VerifyPolicy {
  kAuto,      // against pointsman.lock.json when there is one; otherwise the first read is remembered, with a warning
  kRequired,  // no lock file, no run
  kFast,      // kRequired, but an expert's first read is held against the lock file's XXH3-128 instead of its SHA-256: notices damage,
              // not tampering, and costs a fifth of the time
};

// How experts are read.
enum class IoMethod {
  kAuto,   // io_uring where the kernel allows it, otherwise pread
  kPread,  // one read per reader thread
  kUring,  // several reads per reader thread (io_uring); pread, with a warning, where it is refused
};
enum class DirectReads {
  kAuto,  // through the page cache when free memory holds all experts; otherwise what a short measurement at start says
  kOff,   // through the page cache
  kOn,    // past it (O_DIRECT)
};

enum class GuardPolicy { kRefuse, kUniform };

// Experts that the next layer will probably ask for, in decode. Never changes a token.
enum class PrefetchMode {
  kOff,
  kLog,      // guessed and counted, not read
  kPredict,  // read ahead where this is measured to help
};
const char* prefetch_name(PrefetchMode m);

// Which expert leaves when room is needed, where nobody says otherwise; chosen by measurement (docs/performance.md).
inline constexpr std::string_view kDefaultPolicy = "reuse";

struct EngineOptions {
  std::string model_dir;
  uint64_t memory_bytes = 0;     // 0: default_memory_bytes()
  int num_threads = 0;           // 0: all CPUs of the affinity mask
  int64_t context_length = 0;    // 0: the model's maximum, at most 4096
  int64_t prefill_chunk = 0;     // tokens per pass; 0: as large as the budget allows, at most 512
  int64_t max_sessions = 1;      // sessions that the plan holds room for, and that can be in one batch; at most 64
  Numerics numerics = Numerics::kBf16;
  KvCacheType kv_cache = KvCacheType::kAuto;
  LatentForm latent_form = LatentForm::kAbsorbed;
  VerifyPolicy verify = VerifyPolicy::kAuto;
  GuardPolicy router_guard = GuardPolicy::kRefuse;
  bool allow_fallback = true;    // false: a missing kernel is an error instead of a counted run of the reference
  bool route_noise = false;      // Gumbel noise on the routes
  uint64_t route_noise_seed = 0;
  std::vector<PlacementRule> placement;
  std::string policy{kDefaultPolicy};  // expert eviction
  PrefetchMode prefetch = PrefetchMode::kOff;
  std::string hot_set_file;      // how often runs of this model asked for each expert, for policies that learn from it; "": neither read nor written
  int num_readers = 4;           // threads that read and verify experts
  IoMethod io = IoMethod::kAuto;
  DirectReads direct = DirectReads::kAuto;
  double read_timeout_s = 120;   // no read of an expert came back for so long: an error
  std::string isa;               // "", "scalar", "avx2", "avx512"
  std::string device = "cpu";    // "cpu", or "fake" in tests
  // A folder with what `bench ops --tune` measured on this machine; "": not looked for. Decides how fast, never what is computed. A file that
  // is no such table is a warning.
  std::string tuning_dir;
  bool load_tokenizer = true;    // false: token ids only (benchmarks on models without one)
};

}  // namespace pointsman
