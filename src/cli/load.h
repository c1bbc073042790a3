// SPDX-License-Identifier: Apache-2.0
//
// An engine with a progress bar, and the number of tokens its sampler may choose from.
#pragma once

#include <memory>

#include "pointsman/engine.h"
#include "pointsman/status.h"

namespace pointsman::cli {

Result<std::unique_ptr<Engine>> load_with_progress(const EngineOptions& options, bool show_progress);

// Ids that the model's tokenizer knows (rows of the embedding beyond them are padding), or the whole vocabulary without one.
int64_t num_token_ids(const Engine& engine);

}  // namespace pointsman::cli
