// SPDX-License-Identifier: Apache-2.0
#include "cli/load.h"

#include "checkpoint/model_config.h"
#include "cli/progress.h"
#include "tokenizer/tokenizer.h"

namespace pointsman::cli {

Result<std::unique_ptr<Engine>> load_with_progress(const EngineOptions& options, bool show_progress) {
  Progress bar("loading", Progress::Unit::kBytes, show_progress);
  return Engine::load(
      options, [](void* user, uint64_t done, uint64_t total) { static_cast<Progress*>(user)->update(done, total); }, &bar);
}

int64_t num_token_ids(const Engine& engine) {
  return engine.tokenizer() != nullptr ? engine.tokenizer()->num_ids() : engine.config().vocab_size;
}

}  // namespace pointsman::cli
