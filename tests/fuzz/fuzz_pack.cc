// SPDX-License-Identifier: Apache-2.0
// The section of a packed config.json, and after a NUL byte pack.progress.json. What is accepted survives being written and read again.
#include "fuzz_input.h"
#include "pack/config.h"
#include "pack/progress_file.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [config_text, progress_text] = pm::fuzz::split(pm::fuzz::text_of(data, size));
  if (const auto config = pm::parse_json(config_text); config.ok()) {
    const auto formats = pm::parse_packed_formats(*config);
    if (formats.ok()) {
      for (const auto& [unit, format] : formats->formats) pm::fuzz::expect(formats->of(unit) == format);
      pm::fuzz::expect(formats->source.is_null() || formats->source.is_object());
    }
  }
  const auto progress = pm::parse_progress_json(progress_text);
  if (!progress.ok()) return 0;
  const auto again = pm::parse_progress_json(pm::progress_to_json(*progress));
  pm::fuzz::expect(again.ok() && again->fingerprint == progress->fingerprint && again->files == progress->files);
  pm::fuzz::expect(again->records.size() == progress->records.size());
  return 0;
}
