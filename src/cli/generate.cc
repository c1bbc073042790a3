// SPDX-License-Identifier: Apache-2.0
#include "cli/generate.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "cli/interrupt.h"
#include "cli/progress.h"

namespace pointsman::cli {
namespace {

double seconds_since(std::chrono::steady_clock::time_point t) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - t).count();
}

Status emit(const std::string& delta, FunctionRef<bool(std::string_view)> on_text) {
  if (delta.empty() || on_text(delta)) return ok_status();
  return error(StatusCode::kIo, "stdout could not be written");
}

}  // namespace

Result<bool> take_token(std::span<const float> logits, int64_t position, Sampler& sampler, StreamingDetokenizer* text, const GenerateOptions& options,
                        FunctionRef<bool(std::string_view)> on_text, Generation& out) {
  PM_ASSIGN_OR_RETURN(const int32_t id, sampler.sample(logits, static_cast<uint64_t>(position)));
  sampler.observe(id);
  out.ids.push_back(id);
  bool is_last = std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end();
  if (!is_last && text != nullptr) {
    PM_RETURN_IF_ERROR(emit(text->push(id), on_text));
    is_last = text->stopped() >= 0;
  }
  if (is_last) out.finish_reason = "stop";
  return !is_last;
}

Status generate(Session& session, Sampler& sampler, StreamingDetokenizer* text, std::span<const int32_t> prompt,
                const GenerateOptions& options, FunctionRef<bool(std::string_view)> on_text, Generation& out) {
  const auto start = std::chrono::steady_clock::now();
  if (static_cast<int64_t>(prompt.size()) > session.context_length() - session.position()) {
    return error(StatusCode::kInvalidArgument, "a prompt of {} tokens after {}: the context holds {}; raise --ctx-size",
                 prompt.size(), session.position(), session.context_length());
  }
  out.ids.reserve(static_cast<size_t>(std::min(options.max_tokens, session.context_length())));
  out.in_session.reserve(static_cast<size_t>(session.context_length() - session.position()));
  sampler.observe(prompt);

  std::span<const float> logits;
  {
    Progress bar("prompt", Progress::Unit::kTokens, options.show_progress);
    const size_t chunk = static_cast<size_t>(std::max<int64_t>(options.chunk, 1));
    for (size_t done = 0; done < prompt.size();) {
      if (was_interrupted()) {
        out.finish_reason = "interrupted";
        return ok_status();
      }
      const auto part = prompt.subspan(done, std::min(chunk, prompt.size() - done));
      PM_ASSIGN_OR_RETURN(logits, session.prefill(part));
      out.in_session.insert(out.in_session.end(), part.begin(), part.end());
      done += part.size();
      out.prompt_tokens = static_cast<int64_t>(done);
      bar.update(done, prompt.size());
    }
  }
  out.prefill_s = seconds_since(start);

  out.finish_reason = "length";
  auto decode_start = start;
  while (static_cast<int64_t>(out.ids.size()) < options.max_tokens) {
    if (was_interrupted()) {
      out.finish_reason = "interrupted";
      break;
    }
    if (!out.ids.empty()) {
      if (session.position() >= session.context_length()) {
        out.finish_reason = "context";
        break;
      }
      PM_ASSIGN_OR_RETURN(logits, session.decode(out.ids.back()));
      out.in_session.push_back(out.ids.back());
    }
    PM_ASSIGN_OR_RETURN(const bool goes_on, take_token(logits, session.position(), sampler, text, options, on_text, out));
    if (out.ids.size() == 1) {
      out.first_token_s = seconds_since(start);
      decode_start = std::chrono::steady_clock::now();
    } else {
      out.decode_s = seconds_since(decode_start);
    }
    if (!goes_on) break;
  }
  return text != nullptr ? emit(text->flush(), on_text) : ok_status();
}

}  // namespace pointsman::cli
