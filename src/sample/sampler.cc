// SPDX-License-Identifier: Apache-2.0
#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/log.h"
#include "base/philox.h"

namespace pointsman {
namespace {

// Higher score first, then lower id: a total order, so that nothing depends on the sort.
bool better(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score > b.score : a.id < b.id;
}

// softmax(score / temperature). The largest score is subtracted before the division: no temperature overflows.
// REQUIRES: best first, not empty, temperature > 0.
void normalize(std::vector<Candidate>& c, double temperature) {
  double sum = 0;
  for (Candidate& x : c) {
    x.probability = std::exp((double{x.score} - double{c.front().score}) / temperature);
    sum += x.probability;
  }
  for (Candidate& x : c) x.probability /= sum;
}

}  // namespace

SamplerOptions SamplerOptions::from(const GenerationDefaults& d) {
  return {.do_sample = d.do_sample,
          .temperature = d.temperature,
          .top_k = d.top_k,
          .top_p = d.top_p,
          .min_p = d.min_p,
          .repetition_penalty = d.repetition_penalty};
}

Result<Sampler> Sampler::make(const SamplerOptions& o, int64_t vocab_size, int64_t num_token_ids) {
  // Written so that NaN fails.
  const auto range = [](const char* name, double v, double low, double high) {
    if (v >= low && v <= high) return ok_status();
    return error(StatusCode::kInvalidArgument, "{} {} is out of range, expected {} to {}", name, v, low, high);
  };
  PM_RETURN_IF_ERROR(range("temperature", o.temperature, 0, 1000));
  PM_RETURN_IF_ERROR(range("top_k", static_cast<double>(o.top_k), 0, 1e9));
  PM_RETURN_IF_ERROR(range("top_p", o.top_p, 0, 1));
  PM_RETURN_IF_ERROR(range("min_p", o.min_p, 0, 1));
  PM_RETURN_IF_ERROR(range("repetition_penalty", o.repetition_penalty, 1e-3, 1000));
  if (vocab_size < 1 || num_token_ids < 1) {
    return error(StatusCode::kInvalidArgument, "vocabulary of {} rows and {} tokens: nothing to choose from", vocab_size,
                 num_token_ids);
  }
  return Sampler(o, vocab_size, std::min(num_token_ids, vocab_size));
}

Sampler::Sampler(const SamplerOptions& o, int64_t vocab_size, int64_t num_token_ids)
    : options_(o), num_token_ids_(num_token_ids) {
  candidates_.reserve(o.is_greedy() ? 1 : static_cast<size_t>(vocab_size));
  seen_.assign(static_cast<size_t>(vocab_size), false);
}

uint64_t Sampler::memory_bytes(const SamplerOptions& options, int64_t vocab_size) {
  const auto n = static_cast<uint64_t>(vocab_size);
  return (options.is_greedy() ? 1 : n) * sizeof(Candidate) + n / 8 + 8;
}

void Sampler::observe(int32_t token) {
  if (token >= 0 && static_cast<size_t>(token) < seen_.size()) seen_[static_cast<size_t>(token)] = true;
}

void Sampler::forget_all() {
  seen_.assign(seen_.size(), false);
}

float Sampler::penalized(size_t id, float logit) const {
  if (options_.repetition_penalty == 1.0 || !seen_[id]) return logit;
  const float p = static_cast<float>(options_.repetition_penalty);
  const float score = logit < 0 ? logit * p : logit / p;
  // A finite logit stays a candidate.
  return std::clamp(score, std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
}

template <class Use>
Status Sampler::for_each_finite(std::span<const float> logits, Use use) {
  PM_CHECK(logits.size() == seen_.size(), "logits of another vocabulary");
  const size_t n = static_cast<size_t>(num_token_ids_);
  uint64_t bad = 0, finite = 0;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(logits[i])) [[unlikely]] {
      // -infinity is how a mask says no; NaN and +infinity are a fault upstream.
      bad += !(logits[i] < 0);
      continue;
    }
    ++finite;
    use(static_cast<int32_t>(i), penalized(i, logits[i]));
  }
  if (bad > 0) {
    if (nonfinite_ == 0) log_warning("{} of {} logits are NaN or +infinity; they are never chosen", bad, n);
    nonfinite_ += bad;
  }
  if (finite == 0) {
    return error(StatusCode::kCorrupt,
                 "none of {} logits is finite: no token can be chosen; check the weights ('pointsman lock --check')", n);
  }
  return ok_status();
}

Result<std::span<const Candidate>> Sampler::candidates(std::span<const float> logits) {
  candidates_.clear();
  if (options_.is_greedy()) {
    PM_RETURN_IF_ERROR(for_each_finite(logits, [this](int32_t id, float score) {
      if (candidates_.empty()) {
        candidates_.push_back({id, score, 1});
      } else if (score > candidates_.front().score) {  // an equal score has the higher id
        candidates_.front() = {id, score, 1};
      }
    }));
    return std::span<const Candidate>(candidates_);
  }
  PM_RETURN_IF_ERROR(for_each_finite(logits, [this](int32_t id, float score) { candidates_.push_back({id, score, 0}); }));
  const size_t k = static_cast<size_t>(options_.top_k);
  if (k > 0 && k < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + static_cast<ptrdiff_t>(k) - 1, candidates_.end(), better);
    const float cut = candidates_[k - 1].score;
    std::erase_if(candidates_, [cut](const Candidate& c) { return c.score < cut; });
  }
  std::sort(candidates_.begin(), candidates_.end(), better);
  normalize(candidates_, options_.temperature);
  if (options_.top_p < 1) {
    // From the worst upwards: dropped while the mass so far is at most 1 - top_p; the best always stays.
    double mass = 0;
    while (candidates_.size() > 1 && mass + candidates_.back().probability <= 1 - options_.top_p) {
      mass += candidates_.back().probability;
      candidates_.pop_back();
    }
    normalize(candidates_, options_.temperature);
  }
  if (options_.min_p > 0) {
    const double floor = options_.min_p * candidates_.front().probability;
    while (candidates_.size() > 1 && candidates_.back().probability < floor) candidates_.pop_back();
    normalize(candidates_, options_.temperature);
  }
  return std::span<const Candidate>(candidates_);
}

Result<int32_t> Sampler::sample(std::span<const float> logits, uint64_t position) {
  PM_ASSIGN_OR_RETURN(const std::span<const Candidate> c, candidates(logits));
  if (c.size() == 1) return c.front().id;
  double u = uniform_open(random_u32(options_.seed, RandomPurpose::kSampling, 0, 0, position, 0));
  for (const Candidate& x : c) {
    u -= x.probability;
    if (u < 0) return x.id;
  }
  return c.back().id;  // rounding left a remainder
}

}  // namespace pointsman
