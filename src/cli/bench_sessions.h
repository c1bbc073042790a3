// SPDX-License-Identifier: Apache-2.0
//
// Throughput by batch size: so many sessions decode together, for `bench decode --sessions 1,2,4,8`.
#pragma once

#include <cstdint>
#include <vector>

#include "base/json.h"
#include "pointsman/engine.h"

namespace pointsman::cli {

struct SessionsBench {
  std::vector<int64_t> sizes;          // sessions that step together; the engine was loaded for the largest
  int64_t tokens = 64, prompt = 128;   // per session: measured steps, and tokens before them
  int64_t repeat = 3, seed = 0;
};

struct SessionsRow {
  int64_t sessions = 0;
  std::vector<double> tokens_per_s;    // over all sessions, per repetition
  std::vector<double> step_ms;
  // Over the measured steps:
  double experts_per_step = 0;         // different experts asked for, summed over layers
  double expert_rows = 0;              // rows that one of them computes, on average
  double hit_rate = 0;
  double bytes_read_per_token = 0;
  double weight_gbps = 0;              // every weight that a step needs, once per step, at the median step
};

// "1,2,4": kInvalidArgument unless these are 1 to 64.
Result<std::vector<int64_t>> parse_sessions(const std::string& text);

// All sizes in turn, `repeat` times after a round that warms up. kUnavailable when interrupted.
Result<std::vector<SessionsRow>> measure_sessions(const SessionsBench& bench, Engine& engine);

// `stream_gbps`: what memory gives; 0 when it was not measured.
void print_sessions(const std::vector<SessionsRow>& rows, double stream_gbps);
Json sessions_json(const std::vector<SessionsRow>& rows);

}  // namespace pointsman::cli
