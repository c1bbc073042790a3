// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "base/fs.h"
#include "experts/routing_trace.h"
#include "pointsman/status.h"

namespace pointsman::cli {

struct RecordedRoutes {
  RoutingTrace trace;
  std::vector<int> layer_ids;        // of the model, by MoE layer
  std::vector<std::string> files;
  std::string model_type, model_digest;  // "" where a file does not say
};

// `path`: what `pointsman trace --what router` wrote, or a folder of such files (*.safetensors, in the order of their names; each is a
// run). kInvalidArgument: no layers.N.router.ids and .logits (which tell the number of experts), shapes that do not fit together, or files of different
// models.
Result<RecordedRoutes> read_routes(FileSystem& fs, const std::string& path);

}  // namespace pointsman::cli
