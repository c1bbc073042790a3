// SPDX-License-Identifier: Apache-2.0
#include "cli/stats.h"

#include <cstdio>

#include "base/log.h"
#include "cli/args.h"
#include "cli/sampling_flags.h"
#include "memory/memory_limit.h"

namespace pointsman::cli {
namespace {

double hit_rate(const ExpertStats& e) {
  const uint64_t asked = e.hits + e.misses;
  return asked > 0 ? static_cast<double>(e.hits) / static_cast<double>(asked) : 0;
}

Json to_json(const ExpertStats& e) {
  Json j = Json::object();
  j.set("hits", e.hits);
  j.set("misses", e.misses);
  j.set("hit_rate", hit_rate(e));
  j.set("evicted", e.evicted);
  j.set("bytes_read", e.bytes_read);
  j.set("verified_sha256", e.verified_sha256);
  j.set("verified_lock_xxh3", e.verified_lock_xxh3);
  j.set("verified_xxh3", e.verified_xxh3);
  j.set("read_s", e.read_s);
  j.set("wait_s", e.wait_s);
  j.set("prefetched", e.prefetched);
  j.set("prefetch_hits", e.prefetch_hits);
  j.set("prefetch_bytes", e.prefetch_bytes);
  j.set("prefetch_failed", e.prefetch_failed);
  j.set("predicted_reads", e.predicted_reads);
  j.set("predicted_used", e.predicted_used);
  j.set("predicted_dropped", e.predicted_dropped);
  j.set("predicted_failed", e.predicted_failed);
  j.set("predicted_bytes", e.predicted_bytes);
  j.set("predicted_wasted_bytes", e.predicted_wasted_bytes);
  return j;
}

Json to_json(const PredictionStats& p) {
  Json j = Json::object();
  j.set("chosen", p.chosen);
  j.set("right", p.right);
  j.set("hit_rate", p.chosen > 0 ? static_cast<double>(p.right) / static_cast<double>(p.chosen) : 0);
  j.set("passes", p.passes);
  j.set("passes_acted", p.passes_acted);
  j.set("trials", p.trials);
  j.set("trials_lost", p.trials_lost);
  j.set("with_s", p.with_s);
  j.set("without_s", p.without_s);
  return j;
}

}  // namespace

void StatsFlags::declare(ArgParser& args) {
  args.option("--stats", format, "text (default: one line on stderr), json (one object on stderr) or none");
  args.option("--stats-file", file, "write the JSON object to this file instead");
}

Status StatsFlags::check() const {
  if (format == "text" || format == "json" || format == "none") return ok_status();
  return error(StatusCode::kInvalidArgument, "--stats {}: expected text, json or none", format);
}

Status StatsFlags::write(const std::string& line, const Json& json) const {
  if (!file.empty()) PM_RETURN_IF_ERROR(write_text_file(FileSystem::real(), file, json.dump(2) + "\n"));
  if (format == "text") std::fprintf(stderr, "%s\n", line.c_str());
  if (format == "json" && file.empty()) std::fprintf(stderr, "%s\n", json.dump().c_str());
  return ok_status();
}

std::string summary_line(const Engine& engine, const Generation& g) {
  const EngineStats s = engine.stats();
  std::string line = format("prompt {} tokens {:.1f}/s | generated {} tokens {:.1f}/s | first token {:.2f} s", g.prompt_tokens,
                            g.prompt_tokens_per_s(), g.ids.size(), g.tokens_per_s(), g.first_token_s);
  if (s.experts.hits + s.experts.misses > 0) {
    line += format(" | experts {:.1f} % hits, {} read", 100 * hit_rate(s.experts),
                   human_bytes(static_cast<double>(s.experts.bytes_read)));
    if (s.prediction.chosen > 0) {
      line += format(" | {:.1f} % of experts predicted", 100 * static_cast<double>(s.prediction.right) / static_cast<double>(s.prediction.chosen));
      if (s.experts.predicted_reads > 0)
        line += format(", {} of {} read ahead were used, {} for nothing", s.experts.predicted_used, s.experts.predicted_reads,
                       human_bytes(static_cast<double>(s.experts.predicted_wasted_bytes)));
    }
    if (s.experts.prefetched > 0) line += format(", {} of {} read ahead were used", s.experts.prefetch_hits, s.experts.prefetched);
  }
  if (s.dense_on_demand.bytes_read > 0) {
    line += format(" | dense on demand {} read", human_bytes(static_cast<double>(s.dense_on_demand.bytes_read)));
  }
  line += format(" | peak {} RSS, budget {}", human_bytes(static_cast<double>(peak_rss_bytes())),
                 human_bytes(static_cast<double>(s.budget_bytes)));
  for (const auto& [op, times] : s.fallbacks) line += format(" | {} ran on the reference kernel {} times", op, times);
  if (s.router_guard_fired > 0) line += format(" | router guard fired {} times", s.router_guard_fired);
  return line;
}

void add_engine_stats(Json& j, const Engine& engine) {
  const EngineStats s = engine.stats();
  j.set("schema_version", 1);
  j.set("version", PM_VERSION);
  j.set("model", engine.options().model_dir);
  j.set("model_digest", engine.model_digest());
  j.set("numerics", numerics_name(engine.options().numerics));
  j.set("kv_cache", kv_cache_name(engine.options().kv_cache));
  j.set("device", engine.options().device);
  j.set("isa", engine.isa());
  j.set("threads", engine.memory_plan().num_threads);
  j.set("context_length", engine.memory_plan().context_length);
  j.set("prefill_chunk", engine.memory_plan().prefill_chunk);
  j.set("policy", engine.options().policy);
  j.set("prefetch", prefetch_name(engine.options().prefetch));
  j.set("num_slots", engine.memory_plan().num_slots);
  j.set("num_experts_total", engine.memory_plan().num_experts_total);
  j.set("budget_bytes", s.budget_bytes);
  j.set("peak_rss_bytes", peak_rss_bytes());
  j.set("process_overhead_bytes", kProcessOverheadBytes);
  j.set("ledger_bytes", s.ledger_bytes);
  j.set("ledger_peak_bytes", s.ledger_peak_bytes);
  Json ledger = Json::object();
  for (const auto& [name, bytes] : s.ledger) ledger.set(name, bytes);
  j.set("ledger", std::move(ledger));
  j.set("load_s", s.load_s);
  j.set("dense_bytes_read", s.dense_bytes_read);
  Json io = Json::object();
  io.set("method", s.io_method);
  io.set("direct", s.io_direct);
  io.set("reason", s.io_reason);
  j.set("io", std::move(io));
  Json dense = Json::object();
  dense.set("bytes_read", s.dense_on_demand.bytes_read);
  dense.set("verified_xxh3", s.dense_on_demand.verified_xxh3);
  dense.set("read_s", s.dense_on_demand.read_s);
  dense.set("wait_s", s.dense_on_demand.wait_s);
  j.set("dense_on_demand", std::move(dense));
  j.set("experts", to_json(s.experts));
  Json layers = Json::array();
  for (size_t i = 0; i < s.expert_layers.size(); ++i) {
    Json layer = Json::object();
    layer.set("layer", s.expert_layer_ids[i]);
    Json numbers = to_json(s.expert_layers[i]);
    for (auto& [key, value] : numbers.as_object()) layer.set(key, std::move(value));
    if (i < s.prediction.layers.size()) {
      layer.set("prediction_chosen", s.prediction.layers[i].first);
      layer.set("prediction_right", s.prediction.layers[i].second);
    }
    layers.push_back(std::move(layer));
  }
  j.set("expert_layers", std::move(layers));
  if (engine.options().prefetch != PrefetchMode::kOff) j.set("prediction", to_json(s.prediction));
  Json launches = Json::object();
  for (const auto& [op, times] : s.launches) launches.set(op, times);
  j.set("launches", std::move(launches));
  j.set("kernel_paths", s.kernel_paths);
  Json fallbacks = Json::object();
  for (const auto& [op, times] : s.fallbacks) fallbacks.set(op, times);
  j.set("fallbacks", std::move(fallbacks));
  j.set("router_guard_fired", s.router_guard_fired);
}

Json run_stats(const Engine& engine, const Generation& g, const Sampler& sampler) {
  Json j = Json::object();
  add_engine_stats(j, engine);
  j.set("prompt_tokens", g.prompt_tokens);
  j.set("generated_tokens", static_cast<int64_t>(g.ids.size()));
  j.set("finish_reason", g.finish_reason);
  j.set("prompt_tokens_per_s", g.prompt_tokens_per_s());
  j.set("generation_tokens_per_s", g.tokens_per_s());
  j.set("time_to_first_token_s", g.first_token_s);
  j.set("prefill_s", g.prefill_s);
  j.set("decode_s", g.decode_s);
  j.set("nonfinite_logits", sampler.nonfinite_logits());
  j.set("sampling", to_json(sampler.options()));
  return j;
}

}  // namespace pointsman::cli
