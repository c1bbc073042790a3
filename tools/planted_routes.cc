// SPDX-License-Identifier: Apache-2.0
#include "tools/planted_routes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>

#include "base/log.h"
#include "base/thread_pool.h"
#include "tensor/block_format.h"
#include "tools/random_values.h"

namespace pointsman::tools {
namespace {

constexpr double kConstant = 2;  // dimension 0 of every embedding
constexpr float kLargestE4m3 = 448;
// Mean square of silu(g) * u of standard normal g and u. Random experts add it to each dimension, times the squares of their routing weights.
constexpr double kExpertSquare = 0.356;

// What a weight of a projection is stored as. FP8: a code under a scale that is the same for the whole matrix, so the largest weight is what
// the largest code gives.
struct Storage {
  bool is_fp8 = false;
  double scale = 1;

  double largest() const { return is_fp8 ? kLargestE4m3 * scale : 1; }
  // `value`: of the largest. Gives the value that is read back, of the largest.
  float round(float value) const { return is_fp8 ? e4m3_to_float(nearest_e4m3(value * kLargestE4m3)) / kLargestE4m3 : to_float(to_bf16(value)); }
  void write(float value, std::byte* to) const {
    if (is_fp8) {
      *to = std::byte{value == 0 ? uint8_t{0} : nearest_e4m3(value * kLargestE4m3)};
    } else {
      const bf16 v = to_bf16(value);
      std::memcpy(to, &v, 2);
    }
  }
};

using ValueAt = std::function<std::optional<float>(int64_t row, int64_t col)>;

// An edit of the elements in rows below `rows` and columns below `cols`, as far as `value` names one.
std::function<void(uint64_t, std::span<std::byte>)> edit(const RandomTensor& t, int64_t rows, int64_t cols, Storage storage, ValueAt value) {
  const auto width = static_cast<uint64_t>(t.shape.back()), bytes = static_cast<uint64_t>(dtype_bits(t.dtype)) / 8;
  return [=](uint64_t first, std::span<std::byte> out) {
    const uint64_t last = std::min(first + out.size() / bytes, static_cast<uint64_t>(rows) * width);
    for (uint64_t at = first; at < last;) {
      const uint64_t row = at / width, col = at % width;
      if (col >= static_cast<uint64_t>(cols)) {
        at = (row + 1) * width;
        continue;
      }
      if (const std::optional<float> v = value(static_cast<int64_t>(row), static_cast<int64_t>(col))) storage.write(*v, out.data() + (at - first) * bytes);
      ++at;
    }
  };
}

struct Planter {
  const RandomShape& shape;
  const CalibratedRoutes& routes;
  int64_t n() const { return routes.code_dims; }
  int64_t reserved() const { return 1 + 2 * n() + shape.layers * routes.own_dims; }

  // FP8 projections of layer 0 that carry routes: one scale for the whole matrix.
  static Storage storage_of(RandomModel& model, size_t i) {
    if (model.tensors[i].dtype != DType::kF8E4M3) return {};
    RandomTensor& scales = model.tensors[i + 1];
    scales.sd = 0;
    return {.is_fp8 = true, .scale = static_cast<float>(scales.mean)};
  }

  void plant(RandomModel& model) const {
    // Root of the embedding's mean square: what the norm before layer 0 divides by.
    const double rms = std::sqrt((static_cast<double>(shape.hidden - reserved() + n()) + kConstant * kConstant) / static_cast<double>(shape.hidden));
    double mean_gain = 0;  // of the mean of codes that head 0 writes
    const auto shared = std::make_shared<const CalibratedRoutes>(routes);
    const int64_t dims = n(), head = shape.head_dim, all = reserved();
    for (size_t i = 0; i < model.tensors.size(); ++i) {
      RandomTensor& t = model.tensors[i];
      const int64_t layer = t.name.starts_with("model.layers.") ? std::stoll(t.name.substr(std::strlen("model.layers."))) : -1;
      const bool is_first = layer == 0;
      // Dimensions of the layer's own, and those of the next.
      const int64_t own = 1 + 2 * dims + layer * routes.own_dims, next = own + routes.own_dims, after = next + routes.own_dims;
      const auto is = [&](const char* suffix) { return t.name.ends_with(suffix); };
      if (is("embed_tokens.weight")) {
        t.edit = edit(t, t.shape[0], all, {}, [dims](int64_t, int64_t col) -> std::optional<float> {
          if (col == 0) return static_cast<float>(kConstant);
          return col > dims ? std::optional<float>(0.0f) : std::nullopt;
        });
      } else if (is("down_proj.weight")) {
        t.edit = edit(t, all, t.shape[1], {.is_fp8 = t.dtype == DType::kF8E4M3}, [next, after](int64_t row, int64_t) {
          return row >= next && row < after ? std::nullopt : std::optional<float>(0.0f);
        });
      } else if (!is_first && is("o_proj.weight")) {
        t.edit = edit(t, all, t.shape[1], {.is_fp8 = t.dtype == DType::kF8E4M3}, [](int64_t, int64_t) { return 0.0f; });
      } else if (is_first && is("q_norm.weight")) {
        t.mean = routes.kernel.q_norm;
      } else if (is_first && (is("q_proj.weight") || is("k_proj.weight"))) {
        t.edit = edit(t, head, t.shape[1], storage_of(model, i), [shared](int64_t row, int64_t col) { return col == 0 ? shared->kernel.vector[static_cast<size_t>(row)] : 0.0f; });
      } else if (is_first && is("v_proj.weight")) {
        const Storage s = storage_of(model, i);
        mean_gain = s.largest() / rms;
        t.edit = edit(t, head, t.shape[1], s, [dims](int64_t row, int64_t col) { return row < dims && col == 1 + row ? 1.0f : 0.0f; });
      } else if (is_first && is("o_proj.weight")) {
        const Storage s = storage_of(model, i);
        mean_gain *= s.largest();
        t.edit = edit(t, all, t.shape[1], s, [dims](int64_t row, int64_t col) { return row > dims && row <= 2 * dims && col == row - dims - 1 ? 1.0f : 0.0f; });
      } else if (is("mlp.gate.weight")) {
        t.edit = edit(t, t.shape[0], t.shape[1], {}, [shared, layer, dims, own, next, rms, mean_gain](int64_t row, int64_t col) -> std::optional<float> {
          const CalibratedRoutes::Layer& r = shared->layers[static_cast<size_t>(layer)];
          if (col == 0) return static_cast<float>(rms * r.offset[static_cast<size_t>(row)] / kConstant);
          const auto noise = [&](int64_t dim, double factor) {
            return static_cast<float>(rms * kNoise * factor * r.direction[static_cast<size_t>(row * (dims + shared->own_dims) + dim)]);
          };
          if (col <= dims) return noise(col - 1, shared->code_factor);
          if (col <= 2 * dims) return noise(col - 1 - dims, shared->mean_factor / mean_gain);
          if (layer == 0 || col < own || col >= next) return 0.0f;
          return noise(dims + col - own, 1 / std::sqrt(kExpertSquare * shared->layers[static_cast<size_t>(layer - 1)].weight_squares));
        });
      }
    }
  }
};

Json shares(const std::vector<double>& frequencies, int top_k) {
  Json list = Json::array();
  for (const double f : frequencies) list.push_back(std::round(1e6 * f / top_k) / 1e6);
  return list;
}

Json routes_json(double kept, double chance, const std::vector<double>& by_rank, int top_k) {
  Json j = Json::object();
  j.set("kept", std::round(1e4 * kept) / 1e4);
  j.set("kept_by_chance", std::round(1e4 * chance) / 1e4);
  j.set("share_by_rank", shares(by_rank, top_k));
  return j;
}

Json label(const RoutingTarget& target, const CalibratedRoutes& routes, int64_t vocab, uint64_t seed) {
  std::vector<double> wanted(static_cast<size_t>(target.shape.experts));
  for (std::vector<double> layer : target.frequency) {
    std::sort(layer.begin(), layer.end(), std::greater<>());
    for (size_t i = 0; i < layer.size(); ++i) wanted[i] += layer[i] / target.shape.layers;
  }
  Json j = Json::object();
  j.set("what", "Random weights with made routes: popularity and persistence of experts are set by this tool, nothing was learned.");
  j.set("routing", target.text);
  j.set("seed", seed);
  j.set("wanted", routes_json(target.kept, target.chance, wanted, target.shape.top_k));
  j.set("simulated", routes_json(routes.kept, routes.chance, routes.by_rank, target.shape.top_k));
  Json measure = Json::array();
  measure.push_back(format("pointsman trace MODEL --tokens $(shuf -i 0-{} -n 1000 | paste -sd,) --what router -o routes.safetensors", vocab - 1));
  measure.push_back("pointsman bench cache routes.safetensors");
  j.set("measure", measure);
  j.set("not_like_learned_models", "A token's routes in different layers depend on the same numbers. How well a layer's routes can be told from the layer before (--prefetch) is set, too.");
  return j;
}

}  // namespace

Status plant_routes(RandomModel& model, const RandomShape& shape, const std::string& routing, uint64_t seed, int threads) {
  const int64_t dims = std::min({kMostCodeDims, shape.head_dim, (shape.hidden / 2 - 1) / 2});
  if (shape.head_dim < 16 || shape.head_dim % 2 != 0 || dims < 8) {
    return error(StatusCode::kInvalidArgument, "routes need a hidden size of 36 or more and heads of an even 16 or more; given are {} and {}", shape.hidden, shape.head_dim);
  }
  const int64_t own_dims = std::min(kMostOwnDims, shape.hidden / 8 / shape.layers);
  PM_ASSIGN_OR_RETURN(const RoutingTarget target, routing_target(routing, {static_cast<int>(shape.layers), static_cast<int>(shape.experts), static_cast<int>(shape.top_k)}, seed));
  ThreadPool pool(threads, false);
  const KernelShape kernel{.head_dim = shape.head_dim, .context = shape.context, .rope_theta = model.config.find("rope_theta")->as_double()};
  const Storage storage{.is_fp8 = shape.fp8};
  PM_ASSIGN_OR_RETURN(const CalibratedRoutes routes, calibrate_routes(
      target, static_cast<int>(dims), static_cast<int>(own_dims), [&](double rate) { return position_kernel(kernel, rate, [&](float v) { return storage.round(v); }); }, seed, pool));
  Planter{shape, routes}.plant(model);
  model.label = label(target, routes, shape.vocab, seed);
  std::printf("made routes, %s: %.1f %% of the experts stay from token to token (wanted: %.1f %%, by chance: %.1f %%), rank 1 gets %.2f %% of the choices (wanted: %.2f %%)\n",
              routing.c_str(), 100 * routes.kept, 100 * target.kept, 100 * routes.chance, 100 * routes.by_rank[0] / target.shape.top_k,
              100 * model.label.find("wanted")->find("share_by_rank")->as_array()[0].as_double());
  return ok_status();
}

}  // namespace pointsman::tools
