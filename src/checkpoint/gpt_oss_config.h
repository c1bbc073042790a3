// SPDX-License-Identifier: Apache-2.0
//
// config.json of gpt-oss as it was first published (the folder `original`): no model_type, keys of its own. Tensors: gpt_oss_names.h.
#pragma once

#include <optional>

#include "base/json.h"

namespace pointsman {

// The same in the keys of transformers, or nothing when `config` is no such file: it has a model_type, or lacks experts_per_token or rope_ntk_beta.
// Values are carried over as they are, to be checked by who reads them.
//   experts_per_token: num_experts_per_tok      rope_scaling_factor: rope_scaling.factor       rope_ntk_beta, _alpha: beta_fast, beta_slow
//   initial_context_length: original_max_position_embeddings, times the factor max_position_embeddings
std::optional<Json> from_original_gpt_oss(const Json& config);

}  // namespace pointsman
