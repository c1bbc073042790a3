// SPDX-License-Identifier: Apache-2.0
#include "pointsman/session.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/planner.h"

namespace pointsman {

Result<std::unique_ptr<Session>> Engine::new_session() {
  auto session = std::make_unique<Session::Impl>();
  session->engine = impl_.get();
  PM_ASSIGN_OR_RETURN(session->cache, KvCache::make(*impl_->device, impl_->budget, impl_->config, impl_->options.numerics,
                                                    impl_->options.context_length));
  if (session->cache.forgets()) {
    const size_t tokens = static_cast<size_t>(impl_->options.context_length);
    PM_ASSIGN_OR_RETURN(session->history_charge, Charge::make(impl_->budget, MemoryClass::kKvCache, align_up(tokens * sizeof(int32_t), kPageBytes)));
    session->history.resize(tokens);
  }
  return std::unique_ptr<Session>(new Session(std::move(session)));
}

namespace {

// Tokens per pass of a trace: the plan's, or as many as the rest of the budget and what the plan keeps for output hold the rows of. One
// token's rows always fit. `beyond`: what goes beyond the part kept.
Result<int64_t> trace_chunk(Engine::Impl& e, Charge& beyond) {
  const uint64_t per_token = trace_bytes_per_token(e.config), kept = output_bytes(e.config);
  const uint64_t most = (kept + e.budget.limit_bytes() - e.budget.used_bytes()) / per_token;
  const uint64_t chunk = std::clamp<uint64_t>(most, 1, static_cast<uint64_t>(e.plan.prefill_chunk));
  if (chunk * per_token > kept) {
    PM_ASSIGN_OR_RETURN(beyond, Charge::make(e.budget, MemoryClass::kOutput, chunk * per_token - kept));
  }
  return static_cast<int64_t>(chunk);
}

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

int64_t Session::position() const { return impl_->position; }
int64_t Session::context_length() const { return impl_->cache.capacity(); }

Status Session::rewind(int64_t position) {
  if (position < 0 || position > impl_->position) {
    return error(StatusCode::kInvalidArgument, "rewind to {}: the session has {} tokens", position, impl_->position);
  }
  impl_->position = position;
  return ok_status();
}

Result<std::span<const float>> Session::prefill(std::span<const int32_t> tokens) { return impl_->run(tokens, nullptr, nullptr); }

Result<std::span<const float>> Session::trace(std::span<const int32_t> tokens, TraceSink& sink, TraceSource* replay) {
  return impl_->run(tokens, &sink, replay);
}

Result<std::span<const float>> Session::Impl::run(std::span<const int32_t> tokens, TraceSink* sink, TraceSource* replay) {
  Engine::Impl& e = *engine;
  if (tokens.empty()) return error(StatusCode::kInvalidArgument, "no tokens to run");
  if (static_cast<int64_t>(tokens.size()) > cache.capacity() - position) {
    return error(StatusCode::kInvalidArgument, "{} tokens after {}: the context holds {}; raise --ctx-size", tokens.size(), position,
                 cache.capacity());
  }
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= e.config.vocab_size) {
      return error(StatusCode::kInvalidArgument, "token {} at position {}: the vocabulary has ids 0 to {}", tokens[i],
                   position + static_cast<int64_t>(i), e.config.vocab_size - 1);
    }
  }
  int64_t chunk = e.plan.prefill_chunk;
  Charge trace_rows;
  if (sink != nullptr) {
    PM_ASSIGN_OR_RETURN(chunk, trace_chunk(e, trace_rows));
  }

  PM_RETURN_IF_ERROR(resume());
  // The position moves only when everything went well: cache rows beyond it are overwritten by the next attempt.
  for (int64_t done = 0; done < static_cast<int64_t>(tokens.size()); done += chunk) {
    const auto part = tokens.subspan(static_cast<size_t>(done), std::min<size_t>(static_cast<size_t>(chunk), tokens.size() - static_cast<size_t>(done)));
    const bool is_last = done + chunk >= static_cast<int64_t>(tokens.size());
    const Status status = run_pass(part, position + done, is_last, sink, replay);
    // Whatever came of it, no work of the pass is left: it reads host tables that the next pass fills anew, tokens of the caller, and
    // buffers that may be freed after a failure.
    const Status rest = e.stream->synchronize();
    PM_RETURN_IF_ERROR(status);
    PM_RETURN_IF_ERROR(rest);
    if (cache.forgets()) std::copy(part.begin(), part.end(), history.begin() + position + done);
  }
  position += static_cast<int64_t>(tokens.size());
  return std::span<const float>(e.host.logits, static_cast<size_t>(e.config.vocab_size));
}

Status Session::Impl::resume() {
  if (cache.reaches(position)) return ok_status();
  Engine::Impl& e = *engine;
  PM_ASSIGN_OR_RETURN(int64_t at, cache.restore(*e.stream, position));
  while (at < position) {
    const int64_t n = std::min(e.plan.prefill_chunk, position - at);
    const Status status = run_pass(std::span(history).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), at, false, nullptr, nullptr);
    const Status rest = e.stream->synchronize();
    PM_RETURN_IF_ERROR(status);
    PM_RETURN_IF_ERROR(rest);
    at += n;
  }
  return ok_status();
}

Status Session::Impl::run_pass(std::span<const int32_t> tokens, int64_t first_position, bool is_last, TraceSink* sink,
                               TraceSource* replay) {
  Engine::Impl& e = *engine;
  ForwardPass pass({.ops = e.ops,
                    .config = e.config,
                    .options = e.forward,
                    .weights = *e.binding.weights,
                    .rope = e.rope,
                    .compress_rope = e.compress_rope,
                    .scratch = e.scratch,
                    .host = e.host,
                    .experts = e.store.get(),
                    .cache = cache,
                    .guard_fired = e.guard_fired,
                    .sink = sink,
                    .replay = replay,
                    .prediction = e.prediction.get()},
                   tokens, first_position);
  cache.begin_pass(first_position, first_position + static_cast<int64_t>(tokens.size()));
  const auto start = std::chrono::steady_clock::now();
  if (e.prediction != nullptr) e.prediction->begin_pass(static_cast<int64_t>(tokens.size()));
  PM_RETURN_IF_ERROR(pass.run(*e.arch));
  if (e.prediction != nullptr) {
    e.prediction->end_pass(static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count()));
  }
  PM_RETURN_IF_ERROR(cache.snapshot(*e.stream, first_position + static_cast<int64_t>(tokens.size())));
  if (sink != nullptr && sink->wants("logits")) PM_RETURN_IF_ERROR(pass.trace_logits());
  return is_last ? pass.last_logits() : ok_status();
}

}  // namespace pointsman
