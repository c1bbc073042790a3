// SPDX-License-Identifier: Apache-2.0
// The input is a dump.json of msprobe: names become points, files stay names within one folder.
#include "base/json.h"
#include "fuzz_input.h"
#include "verify/foreign_trace.h"
#include "verify/trace_names.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = pm::fuzz::text_of(data, size);
  pm::point_of_dump(text);
  const pm::Result<pm::Json> json = pm::parse_json(text);
  if (!json.ok()) return 0;
  std::vector<std::string> notes;
  const auto entries = pm::parse_dump_json(*json, notes);
  if (!entries.ok()) return 0;
  for (const pm::DumpEntry& e : *entries) {
    pm::fuzz::expect(e.file.find('/') == e.file.npos && e.file != "..");
    pm::fuzz::expect(e.statistics.empty() || e.statistics.size() == 4);
    const std::string point = pm::point_of_dump(e.name);
    const pm::TracePlace place = pm::trace_place(point);
    if (place.point != pm::TracePoint::kOther && place.point != pm::TracePoint::kOutside) pm::fuzz::expect(pm::trace_name(place) == point);
  }
  return 0;
}
