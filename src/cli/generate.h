// SPDX-License-Identifier: Apache-2.0
//
// The loop of `run` and `chat`: prefill, then one token after the other until a stop.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "pointsman/session.h"
#include "sample/sampler.h"
#include "tokenizer/detokenizer.h"

namespace pointsman::cli {

struct GenerateOptions {
  int64_t max_tokens = 128;
  std::vector<int64_t> stop_ids;  // end of sequence: kept in the ids, gives no text of its own
  int64_t chunk = 512;            // tokens per step of the prefill bar; between steps Ctrl-C is heard
  bool show_progress = true;
};

struct Generation {
  std::vector<int32_t> ids;  // what was generated, the stop token included
  std::vector<int32_t>
      in_session;  // prompt and generated ids that the session has now (all but the last, which nothing followed)
  const char* finish_reason = "error";  // "stop", "length", "context", "interrupted"
  int64_t prompt_tokens = 0;            // prefilled by this call
  double prefill_s = 0;
  double first_token_s = 0;  // from the call to the first token
  double decode_s = 0;       // all tokens after the first

  double prompt_tokens_per_s() const { return prefill_s > 0 ? static_cast<double>(prompt_tokens) / prefill_s : 0; }
  double tokens_per_s() const { return decode_s > 0 && ids.size() > 1 ? static_cast<double>(ids.size() - 1) / decode_s : 0; }
};

// Draws the token at `position` and hands on its text. False: it was the last one, and out.finish_reason is "stop".
Result<bool> take_token(std::span<const float> logits, int64_t position, Sampler& sampler, StreamingDetokenizer* text, const GenerateOptions& options,
                        FunctionRef<bool(std::string_view)> on_text, Generation& out);

// Appends `prompt` to the session and generates. Text goes to `on_text` as soon as it is certain; on_text returns false when
// nobody listens any more (kIo). `text` may be null: then there are ids only. `out` is filled as far as the work came, on
// failure too: out.ids is not empty once a token was made.
Status generate(Session& session, Sampler& sampler, StreamingDetokenizer* text, std::span<const int32_t> prompt,
                const GenerateOptions& options, FunctionRef<bool(std::string_view)> on_text, Generation& out);

}  // namespace pointsman::cli
