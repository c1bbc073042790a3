// SPDX-License-Identifier: Apache-2.0
// Logs of a job: two files, separated by a NUL byte, each with its name in the first line. Events and texts are bounded, and
// there is always a diagnosis.
#include <algorithm>

#include "doctor/logs/log_diagnosis.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pm::doctor::LogCollection logs;
  const pm::doctor::LogLimits limits{.max_line_bytes = 2048, .max_events_per_file = 16};
  const auto [first, second] = pm::fuzz::split(pm::fuzz::text_of(data, size));
  for (const std::string_view text : {first, second}) {
    const size_t end = std::min(text.find('\n'), text.size());
    pm::doctor::read_log_text(text.substr(end), std::string(text.substr(0, std::min<size_t>(end, 200))), limits, logs);
  }
  pm::doctor::resolve_ranks(logs);
  pm::fuzz::expect(logs.events.size() <= 32);
  for (const auto& e : logs.events) pm::fuzz::expect(e.file < logs.files.size() && e.text.size() <= 260 && e.rank >= -1);
  const auto d = pm::doctor::diagnose(logs);
  pm::fuzz::expect(d.found_errors == !logs.events.empty());
  pm::fuzz::expect(!d.found_errors || (!d.kind.empty() && !d.why.empty() && !d.advice.empty()));
  pm::fuzz::expect(d.evidence.size() <= 6);
  return 0;
}
