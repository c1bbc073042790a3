// SPDX-License-Identifier: Apache-2.0
// A chat template, and after a NUL byte its context as JSON. Every outcome is a text, which is valid UTF-8, or an error.
#include "base/json.h"
#include "fuzz_input.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/utf8.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [source, input] = pm::fuzz::split(pm::fuzz::text_of(data, size));
  const auto parsed = pm::ChatTemplate::parse(std::string(source));
  if (!parsed.ok()) return 0;
  constexpr std::string_view kContext =
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "caf\u00e9 \ud83d\ude00"},
          {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1.5, "y": [true]}}}]}],
          "tools": [{"type": "function", "function": {"name": "f"}}], "add_generation_prompt": true, "bos_token": "<s>"})";
  const auto context = pm::parse_json(input.empty() ? kContext : input);
  if (!context.ok()) return 0;
  const auto out = parsed->render(*context, {.unix_seconds = 1'700'000'000});
  if (out.ok()) pm::fuzz::expect(pm::utf8_valid_prefix(*out) == out->size());
  return 0;
}
