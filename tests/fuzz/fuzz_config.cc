// SPDX-License-Identifier: Apache-2.0
// config.json, and after a NUL byte generation_config.json. Per-layer tables have one entry per layer; counts are never negative.
#include "checkpoint/model_config.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [config_text, generation_text] = pm::fuzz::split(pm::fuzz::text_of(data, size));
  const auto config = pm::parse_json(config_text);
  const auto generation = pm::parse_json(generation_text);
  if (!config.ok()) return 0;
  const auto model = pm::normalize_config(*config, generation.ok() ? *generation : pm::Json());
  if (!model.ok()) return 0;
  const auto layers = static_cast<size_t>(model->num_hidden_layers);
  pm::fuzz::expect(model->num_hidden_layers > 0 && model->hidden_size > 0 && model->head_dim > 0 && model->vocab_size > 0);
  pm::fuzz::expect(model->layer_window.size() == layers && model->layer_is_moe.size() == layers);
  pm::fuzz::expect(model->num_key_value_heads > 0 && model->num_attention_heads % model->num_key_value_heads == 0);
  pm::fuzz::expect(model->num_experts >= 0 && model->num_experts_per_tok >= 0 && model->num_experts_per_tok <= model->num_experts);
  return 0;
}
