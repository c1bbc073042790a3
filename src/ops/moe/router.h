// SPDX-License-Identifier: Apache-2.0
//
// The router as data. A RouterContract says how logits become expert ids and weights; one exact float64 reference
// (route_reference) and the kernels are tested against each other. A new family adds a contract, not code.
//
// In order (moe_math.md section 1 of the design notes; DeepSeek-V3 technical report section 2.1.2 for groups and bias):
//   1. score_e = softmax(z)_e | sigmoid(z_e) | sqrt(softplus(z_e)) | z_e (softmax over the chosen k afterwards);
//   2. selection score = score_e + bias_e (+ Gumbel noise on the logits, when asked for);
//   3. groups: the score of a group is the maximum, or the sum of its two best; experts outside the topk_group best groups
//      get -infinity (not 0: biased scores may be negative);
//   4. top-k by selection score, ties to the lower expert id;
//   5. weights from the unbiased scores: divided by (their sum + norm_epsilon) when `normalize`; guard; times scale.
// A NaN or infinite logit or bias is an error that names the token, never a selection.
#pragma once

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "ops/sequences.h"
#include "tensor/tensor.h"

namespace pointsman::ops {

enum class ScoreFunction : int32_t { kSoftmax, kSigmoid, kSqrtSoftplus, kSoftmaxOverTopK };
enum class GroupScore : int32_t { kMax, kTop2Sum };
// What to do when weights do not sum to 1 within the tolerance before scaling (a broken kernel, a wrong epsilon, all scores zero): report it
// only, or report it and write scale / top_k. Raw weights (neither `normalize` nor kSoftmaxOverTopK) may sum to anything; there only NaN and
// infinity are caught.
enum class GuardAction : int32_t { kRefuse, kUniform };

inline constexpr int kMaxTopK = 64;
inline constexpr int kMaxExperts = 4096;

struct RouterContract {
  ScoreFunction score = ScoreFunction::kSoftmax;
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t n_group = 1;
  int32_t topk_group = 1;
  GroupScore group_score = GroupScore::kMax;
  bool normalize = false;
  float norm_epsilon = 0;       // 1e-20 in DeepSeek-V3
  float scale = 1;              // routed_scaling_factor
  float guard_tolerance = 1e-3f;
  GuardAction guard = GuardAction::kRefuse;
};
// kInvalidArgument: ranges, divisibility of groups, enough experts in the kept groups for top_k.
Status check_contract(const RouterContract& contract);

struct RouterNoise {
  bool enabled = false;   // Gumbel noise added to the logits for the selection only (Plackett-Luce sampling of routes)
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t layer = 0;
};

// What went wrong, written by the kernel. One per launch.
struct RouterReport {
  int32_t bad_token = -1;        // first token with a NaN or infinite logit; the first of all when a bias is
  int32_t guard_token = -1;      // first token whose weight sum failed
  int32_t guard_count = 0;       // how many did
};

struct RouteArgs {
  RouterContract contract;
  Tensor logits;                  // [tokens, experts] kF32
  const float* bias = nullptr;    // device [experts] or null: selection only
  const int32_t* given_ids = nullptr;  // device [tokens, top_k] or null: the choice is made already, only the weights are computed
  RouterNoise noise;
  Sequences sequences;            // positions of the rows, for the noise: looked at only when that is enabled
  int32_t* ids = nullptr;         // device [tokens, top_k], best first
  float* weights = nullptr;       // device [tokens, top_k]
  int32_t* counts = nullptr;      // device [experts] or null: in how many rows of ids each expert stands (a bad token counts as k times expert 0)
  RouterReport* report = nullptr; // device

  template <class F>
  void each_address(F&& visit) {
    visit(logits.data), visit(const_cast<void*&>(reinterpret_cast<const void*&>(bias)));
    visit(const_cast<void*&>(reinterpret_cast<const void*&>(given_ids)));
    visit(reinterpret_cast<void*&>(ids)), visit(reinterpret_cast<void*&>(weights)), visit(reinterpret_cast<void*&>(report));
    visit(reinterpret_cast<void*&>(counts));
  }
};
// Fused: scores, bias, groups, top-k, weights and counts in one pass per token, fp32. Deterministic; each row stands alone, with the same bits on
// every instruction set. Softmax without a bias chooses by the logits themselves, whose order is that of the scores: experts whose
// exponential underflows are still told apart. Weights and sums: docs/design/numerics.md.
Status route(OpContext& ctx, const RouteArgs& args);

// The exact reference for one token, in float64 from fp32 logits. Returns the report fields for token 0.
RouterReport route_reference(const RouterContract& contract, std::span<const float> logits, std::span<const float> bias,
                             const RouterNoise& noise, int64_t token, std::span<int32_t> ids, std::span<double> weights);

// Weights of experts that were chosen elsewhere (routing replay), from this run's logits by steps 1 and 5, in float64: never from
// scores that are zero outside this run's own choice. kInvalidArgument: ids that repeat or are out of range; kCorrupt: logits that are
// not finite, weights that fail the guard. REQUIRES: ids.size() = weights.size() = top_k, logits.size() = num_experts.
Status route_forced(const RouterContract& contract, std::span<const float> logits, std::span<const int32_t> ids, std::span<float> weights);

// Gumbel noise for one (token, expert): -log(-log(u)), u from Philox. The same for every chunking and thread count.
double gumbel_noise(const RouterNoise& noise, int64_t token, int32_t expert);

}  // namespace pointsman::ops
