// SPDX-License-Identifier: Apache-2.0
// tokenizer.json, and after a NUL byte a text. Ids are ids of the vocabulary, decoded text is valid UTF-8: it can be encoded again. The
// stream gives what the whole decode gives.
#include "fuzz_input.h"
#include "tokenizer/detokenizer.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto [file, input] = pm::fuzz::split(pm::fuzz::text_of(data, size));
  const auto tokenizer = pm::Tokenizer::from_text(file);
  if (!tokenizer.ok()) return 0;
  const std::string_view text = input.empty() ? std::string_view("Hello, <s>w\xc3\xb6rld 123\n\n  x") : input.substr(0, 256);
  for (const bool special : {false, true}) {
    const auto ids = (*tokenizer)->encode(text, {.add_special_tokens = special, .parse_special = special, .replace_invalid = true});
    if (!ids.ok()) continue;
    pm::StreamingDetokenizer stream(**tokenizer);
    std::string streamed;
    for (const int32_t id : *ids) {
      pm::fuzz::expect((*tokenizer)->contains(id));
      streamed += stream.push(id);
    }
    pm::fuzz::expect(streamed + stream.flush() == (*tokenizer)->decode(*ids));
    const std::string decoded = (*tokenizer)->decode(*ids);
    pm::fuzz::expect(pm::utf8_valid_prefix(decoded) == decoded.size());
    // May be refused: a normalizer can grow the text past its bound. It must not crash.
    (void)(*tokenizer)->encode(decoded);
  }
  return 0;
}
