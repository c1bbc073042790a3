// SPDX-License-Identifier: Apache-2.0
#include "pointsman/session.h"

#include <algorithm>

#include "base/log.h"
#include "engine/engine_impl.h"
#include "engine/planner.h"

namespace pointsman {

Result<std::unique_ptr<Session>> Engine::new_session() {
  auto session = std::make_unique<Session::Impl>();
  session->engine = impl_.get();
  PM_ASSIGN_OR_RETURN(session->cache, KvCache::make(*impl_->device, impl_->budget, impl_->config,
                                                    KvCache::dtype_for(impl_->options.numerics, impl_->options.kv_cache), impl_->options.context_length));
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
  const uint64_t per_token = trace_bytes_per_token(e.config), kept = output_bytes(e.config, e.options.max_sessions);
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

Status Session::Impl::check(std::span<const int32_t> tokens) const {
  if (tokens.empty()) return error(StatusCode::kInvalidArgument, "no tokens to run");
  if (static_cast<int64_t>(tokens.size()) > cache.capacity() - position) {
    return error(StatusCode::kInvalidArgument, "{} tokens after {}: the context holds {}; raise --ctx-size", tokens.size(), position,
                 cache.capacity());
  }
  const int64_t vocab = engine->config.vocab_size;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab) {
      return error(StatusCode::kInvalidArgument, "token {} at position {}: the vocabulary has ids 0 to {}", tokens[i],
                   position + static_cast<int64_t>(i), vocab - 1);
    }
  }
  return ok_status();
}

void Session::Impl::remember(std::span<const int32_t> tokens, int64_t first) {
  if (cache.forgets()) std::copy(tokens.begin(), tokens.end(), history.begin() + first);
}

Result<std::span<const float>> Session::Impl::run(std::span<const int32_t> tokens, TraceSink* sink, TraceSource* replay) {
  Engine::Impl& e = *engine;
  PM_RETURN_IF_ERROR(check(tokens));
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
    PM_RETURN_IF_ERROR(run_chunk(part, position + done, is_last, sink, replay));
    remember(part, position + done);
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
    PM_RETURN_IF_ERROR(run_chunk(std::span(history).subspan(static_cast<size_t>(at), static_cast<size_t>(n)), at, false, nullptr, nullptr));
    at += n;
  }
  return ok_status();
}

Status Session::Impl::run_chunk(std::span<const int32_t> tokens, int64_t first_position, bool is_last, TraceSink* sink, TraceSource* replay) {
  Session::Impl* const self = this;
  return run_pass(*engine, {.sessions = {&self, 1},
                            .sequences = {static_cast<int64_t>(tokens.size()), first_position},
                            .tokens = tokens,
                            .wants_logits = is_last,
                            .sink = sink,
                            .replay = replay});
}

}  // namespace pointsman
