// SPDX-License-Identifier: Apache-2.0
#include "experts/routing_trace.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/log.h"
#include "base/philox.h"

namespace pointsman {
namespace {

constexpr int kMaxLayers = 1024, kMaxTraceExperts = 4096;
constexpr int64_t kMaxIds = int64_t{1} << 28;

template <class T>
Status read_number(std::string_view key, std::string_view text, T low, T high, T& out) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (code == std::errc() && end == text.data() + text.size() && out >= low && out <= high) return ok_status();
  return error(StatusCode::kInvalidArgument, "{}={}: expected {} to {}", key, text, low, high);
}

// Uniform in (0, 1), the n-th of a layer's stream.
struct Draws {
  uint64_t seed;
  uint32_t layer;
  uint64_t n = 0;
  double next() { return uniform_open(random_u32(seed, RandomPurpose::kTest, 0, layer, n++, 0)); }
};

}  // namespace

Status RoutingTrace::check() const {
  if (num_layers < 1 || num_layers > kMaxLayers || num_experts < 1 || num_experts > kMaxTraceExperts || top_k < 1 || top_k > num_experts) {
    return error(StatusCode::kInvalidArgument, "a routing trace of {} layers with {} experts, {} chosen: expected 1 to {} layers, 1 to {} experts, and "
                 "no more chosen than there are", num_layers, num_experts, top_k, kMaxLayers, kMaxTraceExperts);
  }
  if (ids.size() % static_cast<size_t>(num_layers * top_k) != 0) return error(StatusCode::kInvalidArgument, "a routing trace with an incomplete token");
  std::vector<int64_t> last(static_cast<size_t>(num_experts), -1);
  for (int64_t row = 0; row < static_cast<int64_t>(ids.size()) / top_k; ++row) {
    for (int64_t k = 0; k < top_k; ++k) {
      const int32_t id = ids[static_cast<size_t>(row * top_k + k)];
      const char* const wrong = id < 0 || id >= num_experts ? "is out of range" : last[static_cast<size_t>(id)] == row ? "is chosen twice" : nullptr;
      if (wrong != nullptr) {
        return error(StatusCode::kInvalidArgument, "token {}, MoE layer {}: expert {} {} ({} experts)", row / num_layers, row % num_layers, id, wrong,
                     num_experts);
      }
      last[static_cast<size_t>(id)] = row;
    }
  }
  return ok_status();
}

Status RoutingTrace::append(const RoutingTrace& run) {
  if (num_layers == 0) {
    *this = run;
    return ok_status();
  }
  if (run.num_layers != num_layers || run.num_experts != num_experts || run.top_k != top_k) {
    return error(StatusCode::kInvalidArgument, "{} layers of {} experts, {} chosen, after a trace with {} layers of {} experts, {} chosen: traces of one model are needed",
                 run.num_layers, run.num_experts, run.top_k, num_layers, num_experts, top_k);
  }
  const int64_t tokens = num_tokens();
  for (const int64_t start : run.run_starts) run_starts.push_back(tokens + start);
  ids.insert(ids.end(), run.ids.begin(), run.ids.end());
  return ok_status();
}

Result<ZipfMarkov> parse_zipf_markov(std::string_view text) {
  ZipfMarkov z;
  constexpr std::string_view kWhat = "expected zipf:layers=24,experts=64,top-k=8,tokens=1000,s=0.6,stay=0.3,seed=0, any of them";
  const std::string_view kind = text.substr(0, text.find(':'));
  if (kind != "zipf") return error(StatusCode::kInvalidArgument, "synthetic routes '{}': {}", text, kWhat);
  text.remove_prefix(std::min(text.size(), kind.size() + 1));
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : item.substr(equals + 1);
    Status s = ok_status();
    if (key == "layers") {
      s = read_number(key, value, 1, kMaxLayers, z.num_layers);
    } else if (key == "experts") {
      s = read_number(key, value, 1, kMaxTraceExperts, z.num_experts);
    } else if (key == "top-k") {
      s = read_number(key, value, 1, 64, z.top_k);
    } else if (key == "tokens") {
      s = read_number(key, value, int64_t{1}, kMaxIds, z.num_tokens);
    } else if (key == "s") {
      s = read_number(key, value, 0.0, 8.0, z.exponent);
    } else if (key == "stay") {
      s = read_number(key, value, 0.0, 1.0, z.stay);
    } else if (key == "seed") {
      s = read_number(key, value, uint64_t{0}, UINT64_MAX, z.seed);
    } else {
      s = error(StatusCode::kInvalidArgument, "synthetic routes: '{}': {}", item, kWhat);
    }
    PM_RETURN_IF_ERROR(s);
  }
  if (z.top_k > z.num_experts) return error(StatusCode::kInvalidArgument, "synthetic routes: top-k={} of {} experts", z.top_k, z.num_experts);
  if (z.num_tokens > kMaxIds / (int64_t{z.num_layers} * z.top_k)) {
    return error(StatusCode::kInvalidArgument, "synthetic routes: {} tokens of {} layers with {} experts are more than 2^28 ids", z.num_tokens, z.num_layers, z.top_k);
  }
  return z;
}

RoutingTrace make_trace(const ZipfMarkov& z) {
  RoutingTrace trace{.num_layers = z.num_layers, .num_experts = z.num_experts, .top_k = z.top_k};
  const auto top_k = static_cast<size_t>(z.top_k);
  const auto experts = static_cast<size_t>(z.num_experts);
  trace.ids.resize(static_cast<size_t>(z.num_tokens) * static_cast<size_t>(z.num_layers) * top_k);
  for (int layer = 0; layer < z.num_layers; ++layer) {
    Draws draws{z.seed, static_cast<uint32_t>(layer)};
    std::vector<int32_t> by_rank(experts);
    std::iota(by_rank.begin(), by_rank.end(), 0);
    for (size_t i = experts; i > 1; --i) std::swap(by_rank[i - 1], by_rank[static_cast<size_t>(draws.next() * static_cast<double>(i))]);
    std::vector<double> sums(experts);  // cumulative weights by rank
    double sum = 0;
    for (size_t i = 0; i < experts; ++i) sums[i] = sum += std::pow(static_cast<double>(i + 1), -z.exponent);
    std::vector<int64_t> chosen_at(experts, -1);
    std::span<int32_t> previous;
    for (int64_t token = 0; token < z.num_tokens; ++token) {
      const std::span<int32_t> now = std::span(trace.ids).subspan(static_cast<size_t>(token * z.num_layers + layer) * top_k, top_k);
      size_t n = 0;
      for (const int32_t id : previous) {
        if (draws.next() >= z.stay) continue;
        now[n++] = id;
        chosen_at[static_cast<size_t>(id)] = token;
      }
      while (n < top_k) {
        const auto rank = static_cast<size_t>(std::upper_bound(sums.begin(), sums.end(), draws.next() * sum) - sums.begin());
        int32_t id = by_rank[std::min(rank, experts - 1)];
        // Where a few have nearly all the weight, repeats would never end: the next free one by rank, after a while.
        if (chosen_at[static_cast<size_t>(id)] == token && draws.n % 64 == 0) {
          for (const int32_t other : by_rank) {
            if (chosen_at[static_cast<size_t>(other)] != token) {
              id = other;
              break;
            }
          }
        }
        if (chosen_at[static_cast<size_t>(id)] == token) continue;
        now[n++] = id;
        chosen_at[static_cast<size_t>(id)] = token;
      }
      previous = now;
    }
  }
  return trace;
}

}  // namespace pointsman
