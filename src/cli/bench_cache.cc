// SPDX-License-Identifier: Apache-2.0
//
// pointsman bench cache: routing traces through the engine's own residency, for every policy and cache size, without a model.
#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/line_chart.h"
#include "base/log.h"
#include "cli/args.h"
#include "cli/bench.h"
#include "cli/command.h"
#include "cli/log_flags.h"
#include "cli/routing_trace_file.h"
#include "experts/cache_simulator.h"
#include "experts/policy.h"
#include "experts/routing_stats.h"

namespace pointsman::cli {
namespace {

constexpr const char* kName = "bench cache";

struct Flags {
  std::string traces, synthetic, sizes, csv, svg;
  int64_t prompt = 0, chunk = 512, sessions = 1;
  bool json = false, markdown = false;
  LogFlags log;
};

struct Cell {
  int experts_per_layer;
  CacheCounts counts;
};
struct Row {
  std::string policy;
  std::vector<Cell> cells;
};

Result<std::vector<int>> parse_sizes(const std::string& text, const RoutingTrace& trace) {
  std::vector<int> sizes;
  if (text.empty()) {
    for (int eighth = 1; eighth < 8; ++eighth) sizes.push_back(std::max(1, trace.num_experts * eighth / 8));
  }
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int n = 0;
    const auto [last, code] = std::from_chars(text.data() + begin, text.data() + end, n);
    if (code != std::errc() || last != text.data() + end || n < 1 || n > trace.num_experts) {
      return error(StatusCode::kInvalidArgument, "'{}': expected experts per layer, 1 to {}, as in 4,8,16", text.substr(begin, end - begin), trace.num_experts);
    }
    sizes.push_back(n);
    begin = end + 1;
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  // Two slots are the fewest that a store has.
  std::erase_if(sizes, [&](int n) { return n * trace.num_layers < 2; });
  if (sizes.empty()) return error(StatusCode::kInvalidArgument, "caches of less than two experts");
  return sizes;
}

Result<std::vector<Row>> simulate_all(const Flags& f, const RoutingTrace& trace, const std::vector<int>& sizes) {
  std::vector<std::string> policies(policy_names().begin(), policy_names().end());
  policies.emplace_back(kOptimalPolicy);
  std::vector<Row> rows;
  for (const std::string& policy : policies) {
    Row row{.policy = policy};
    for (const int n : sizes) {
      PM_ASSIGN_OR_RETURN(CacheCounts counts, simulate_cache(trace, {.policy = policy, .num_slots = n * trace.num_layers, .prompt_tokens = f.prompt, .chunk = f.chunk, .sessions = f.sessions}));
      row.cells.push_back({.experts_per_layer = n, .counts = std::move(counts)});
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

double share(int n, const RoutingTrace& t) { return static_cast<double>(n) / t.num_experts; }

std::string describe(const RecordedRoutes& r, bool synthetic) {
  const RoutingTrace& t = r.trace;
  return format("{}{} tokens in {} run{}, {} MoE layers of {} experts, {} chosen", synthetic ? "synthetic routes (Zipf-Markov, no model): " : "", t.num_tokens(),
                t.run_starts.size(), t.run_starts.size() == 1 ? "" : "s", t.num_layers, t.num_experts, t.top_k);
}

// Ranks that tell the shape: 1, 2, 4 and so on, and the last.
std::vector<size_t> shown_ranks(size_t experts) {
  std::vector<size_t> ranks;
  for (size_t r = 1; r < experts; r *= 2) ranks.push_back(r);
  ranks.push_back(experts);
  return ranks;
}

std::string describe_routes(const RoutingTrace& trace) {
  const RoutingStats stats = routing_stats(trace);
  const std::vector<double> by_rank = stats.by_rank();
  std::string ranks, shares;
  for (const size_t r : shown_ranks(by_rank.size())) {
    ranks += format("{}{}", ranks.empty() ? "" : ", ", r);
    shares += format("{}{:.2f}", shares.empty() ? "" : ", ", 100 * by_rank[r - 1] / trace.top_k);
  }
  return format("from token to token {:.1f} % of a layer's experts are kept, {:.1f} % would be by chance\nexperts of rank {} get {} % of a layer's choices", 100 * stats.kept(),
                100 * stats.chance(), ranks, shares);
}

// A line of one number for each size.
void print_line(const std::string& name, const std::vector<std::string>& values, bool markdown) {
  if (markdown) return static_cast<void>(std::printf("| %s | %s |\n", name.c_str(), format("{}", fmt::join(values, " | ")).c_str()));
  std::printf("%-14s", name.c_str());
  for (const std::string& v : values) std::printf(" %7s", v.c_str());
  std::printf("\n");
}

void print_sizes(const std::vector<int>& sizes, bool markdown) {
  std::vector<std::string> heads, rules(sizes.size(), "---");
  for (const int n : sizes) heads.push_back(std::to_string(n));
  print_line("", heads, markdown);
  if (markdown) print_line("---", rules, markdown);
}

void print_table(const RecordedRoutes& r, const Flags& f, const std::vector<Row>& rows, const std::vector<int>& sizes) {
  const auto values = [](const Row& row, const auto& value_of) {
    std::vector<std::string> v;
    for (const Cell& c : row.cells) v.push_back(value_of(c.counts));
    return v;
  };
  std::printf("%s\n%s\nhit rate in %% by experts in memory per layer (of %d); first reads count as misses\n\n", describe(r, !f.synthetic.empty()).c_str(),
              describe_routes(r.trace).c_str(), r.trace.num_experts);
  print_sizes(sizes, f.markdown);
  for (const Row& row : rows) print_line(row.policy, values(row, [](const auto& c) { return format("{:.1f}", 100 * c.hit_rate()); }), f.markdown);
  std::vector<std::string> even;
  for (const int n : sizes) even.push_back(format("{:.1f}", 100 * share(n, r.trace)));
  print_line("c/N", even, f.markdown);
  std::printf("\nexperts read per token%s\n\n", f.sessions > 1 ? format(", {} sessions together", f.sessions).c_str() : "");
  if (f.markdown) print_sizes(sizes, true);
  for (const Row& row : rows) {
    print_line(row.policy, values(row, [](const auto& c) { return format("{:.2f}", static_cast<double>(c.misses) / static_cast<double>(c.tokens)); }), f.markdown);
  }
  std::printf("\nc/N: what a cache gives when every expert is as likely as any other.\n");
}

std::string to_csv(const RecordedRoutes& r, const std::vector<Row>& rows) {
  std::string csv = "policy,experts_per_layer,share,hits,misses,evicted,hit_rate,misses_per_token\n";
  for (const Row& row : rows) {
    for (const Cell& c : row.cells) {
      csv += format("{},{},{:.6f},{},{},{},{:.6f},{:.4f}\n", row.policy, c.experts_per_layer, share(c.experts_per_layer, r.trace), c.counts.hits, c.counts.misses,
                    c.counts.evicted, c.counts.hit_rate(), static_cast<double>(c.counts.misses) / static_cast<double>(c.counts.tokens));
    }
  }
  return csv;
}

Json to_json(const Flags& f, const RecordedRoutes& r, const std::vector<Row>& rows) {
  const RoutingTrace& t = r.trace;
  Json j = Json::object();
  j.set("schema_version", 1);
  j.set("synthetic", f.synthetic.empty() ? Json() : Json(f.synthetic));
  Json files = Json::array();
  for (const std::string& file : r.files) files.push_back(file);
  j.set("files", std::move(files));
  j.set("model_type", r.model_type);
  j.set("model_digest", r.model_digest);
  j.set("tokens", t.num_tokens());
  j.set("runs", static_cast<int64_t>(t.run_starts.size()));
  j.set("moe_layers", t.num_layers);
  j.set("experts", t.num_experts);
  j.set("top_k", t.top_k);
  const RoutingStats stats = routing_stats(t);
  j.set("kept", stats.kept());
  j.set("kept_by_chance", stats.chance());
  Json by_rank = Json::array();
  for (const double frequency : stats.by_rank()) by_rank.push_back(frequency / t.top_k);
  j.set("share_by_rank", std::move(by_rank));
  j.set("prompt_tokens", f.prompt);
  j.set("prefill_chunk", f.chunk);
  j.set("sessions", f.sessions);
  Json list = Json::array();
  for (const Row& row : rows) {
    for (const Cell& c : row.cells) {
      Json cell = Json::object();
      cell.set("policy", row.policy);
      cell.set("experts_per_layer", c.experts_per_layer);
      cell.set("share", share(c.experts_per_layer, t));
      cell.set("hits", c.counts.hits);
      cell.set("misses", c.counts.misses);
      cell.set("evicted", c.counts.evicted);
      cell.set("hit_rate", c.counts.hit_rate());
      cell.set("misses_per_token", static_cast<double>(c.counts.misses) / static_cast<double>(c.counts.tokens));
      list.push_back(std::move(cell));
    }
  }
  j.set("results", std::move(list));
  return j;
}

std::string to_svg(const RecordedRoutes& r, bool synthetic, const std::vector<Row>& rows, const std::vector<int>& sizes) {
  LineChart chart{.title = "Hit rate by cache size: " + describe(r, synthetic), .x_label = format("experts in memory per layer, of {}", r.trace.num_experts),
                  .y_label = "hit rate", .y_high = 100, .y_unit = " %"};
  for (const Row& row : rows) {
    LineChart::Series s{.name = row.policy, .dashed = row.policy == kOptimalPolicy};
    for (const Cell& c : row.cells) s.points.emplace_back(c.experts_per_layer, 100 * c.counts.hit_rate());
    chart.series.push_back(std::move(s));
  }
  LineChart::Series uniform{.name = "c/N", .dashed = true};
  for (const int n : sizes) uniform.points.emplace_back(n, 100 * share(n, r.trace));
  chart.series.push_back(std::move(uniform));
  return line_chart_svg(chart);
}

Result<RecordedRoutes> routes_of(const Flags& f) {
  if (f.synthetic.empty()) return read_routes(FileSystem::real(), f.traces);
  PM_ASSIGN_OR_RETURN(const ZipfMarkov z, parse_zipf_markov(f.synthetic));
  RecordedRoutes r;
  r.trace = make_trace(z);
  for (int i = 0; i < z.num_layers; ++i) r.layer_ids.push_back(i);
  return r;
}

Status print_all(const Flags& f, const RecordedRoutes& r, const std::vector<Row>& rows, const std::vector<int>& sizes) {
  const bool synthetic = !f.synthetic.empty();
  if (!f.csv.empty()) PM_RETURN_IF_ERROR(write_text_file(FileSystem::real(), f.csv, to_csv(r, rows)));
  if (!f.svg.empty()) PM_RETURN_IF_ERROR(write_text_file(FileSystem::real(), f.svg, to_svg(r, synthetic, rows, sizes)));
  if (f.json) {
    print_json(to_json(f, r, rows));
  } else {
    print_table(r, f, rows, sizes);
  }
  return ok_status();
}

}  // namespace

int run_bench_cache(int argc, char** argv) {
  ArgParser args(kName, "How often would an expert have been in memory: routing traces, replayed through every eviction policy at several cache sizes, and the optimum.",
                 "  pointsman trace MODEL -f book.txt --what router -o routes/book.safetensors\n"
                 "  pointsman bench cache routes/book.safetensors\n"
                 "  pointsman bench cache routes --sizes 8,16,32 --csv rates.csv --svg rates.svg --markdown\n"
                 "  pointsman bench cache --synthetic zipf:layers=48,experts=128,top-k=8,tokens=2000,s=0.6,stay=0.3\n"
                 "The replay uses the engine's own code; without reads ahead its counts are those of a run. 'optimum' evicts what is needed latest\n"
                 "(Belady), which takes knowledge of the future.\n");
  Flags f;
  args.positional("TRACE", f.traces, "what 'pointsman trace --what router' wrote, or a folder of such files", false);
  args.option("--synthetic", f.synthetic, "instead: zipf:layers=24,experts=64,top-k=8,tokens=1000,s=0.6,stay=0.3,seed=0 (each with this default)");
  args.option("--sizes", f.sizes, "experts in memory per layer, as in 4,8,16 (default: eighths)");
  args.option("--prompt-tokens", f.prompt, "the first tokens of each run go in passes of --prefill-chunk, which ask for each expert once (default: 0)");
  args.option("--prefill-chunk", f.chunk, "tokens of such a pass (default: 512)");
  args.option("--sessions", f.sessions, "cut the trace into so many stretches that decode together, as sessions of one engine do (default: 1)");
  args.option("--csv", f.csv, "write the numbers to this file");
  args.option("--svg", f.svg, "write a picture to this file");
  args.flag("--markdown", f.markdown, "Markdown tables");
  args.flag("--json", f.json, "one JSON object");
  f.log.declare(args);
  if (auto code = args.parse(argc, argv)) return *code;
  if (auto code = f.log.apply(kName)) return *code;
  if (f.traces.empty() == f.synthetic.empty()) return usage_error(kName, "TRACE or --synthetic is needed, not both");
  if (f.sessions < 1) return usage_error(kName, "--sessions must be 1 or more");
  if (f.prompt < 0 || f.chunk < 1) return usage_error(kName, "--prompt-tokens must be 0 or more, --prefill-chunk 1 or more");
  const Result<RecordedRoutes> routes = routes_of(f);
  if (!routes.ok()) return f.synthetic.empty() ? report(kName, routes.status()) : usage_error(kName, routes.status().with_context("--synthetic"));
  const Result<std::vector<int>> sizes = parse_sizes(f.sizes, routes->trace);
  if (!sizes.ok()) return usage_error(kName, sizes.status().with_context("--sizes"));
  const Result<std::vector<Row>> rows = simulate_all(f, routes->trace, *sizes);
  if (!rows.ok()) return report(kName, rows.status());
  const Status s = print_all(f, *routes, *rows, *sizes);
  return s.ok() ? kExitOk : report(kName, s);
}

}  // namespace pointsman::cli
