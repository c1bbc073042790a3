// SPDX-License-Identifier: Apache-2.0
//
// What a run cost: one line for people, one JSON object for programs. Both on stderr: stdout carries the text.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/generate.h"
#include "pointsman/engine.h"
#include "sample/sampler.h"

namespace pointsman::cli {

struct StatsFlags {
  std::string format = "text", file;

  void declare(class ArgParser& args);
  Status check() const;
  // The line, or the JSON (one line; into `file` when one was named).
  Status write(const std::string& line, const Json& json) const;
};

// "prompt 12 tokens 345.6/s | generated 100 tokens 45.1/s | first token 0.03 s | experts 87.5 % hits, 12.3 MiB read | peak ..."
std::string summary_line(const Engine& engine, const Generation& g);

// Keys: docs/formats/cli_json.md. schema_version 1.
Json run_stats(const Engine& engine, const Generation& g, const Sampler& sampler);

// The part that does not depend on a generation, used by `bench` too.
void add_engine_stats(Json& json, const Engine& engine);

}  // namespace pointsman::cli
