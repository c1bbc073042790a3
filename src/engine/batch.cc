// SPDX-License-Identifier: Apache-2.0
//
// One pass over rows of one or several sessions, and batches of sessions.
#include <algorithm>
#include <array>
#include <chrono>

#include "base/log.h"
#include "engine/engine_impl.h"

namespace pointsman {
namespace {

Status run_pass_until_error(Engine::Impl& e, const PassRequest& r) {
  std::array<KvCache*, ops::kMaxSequences> caches;
  for (size_t i = 0; i < r.sessions.size(); ++i) caches[i] = &r.sessions[i]->cache;
  ForwardPass pass({.ops = e.ops,
                    .config = e.config,
                    .options = e.forward,
                    .weights = *e.binding.weights,
                    .rope = e.rope,
                    .compress_rope = e.compress_rope,
                    .scratch = e.scratch,
                    .host = e.host,
                    .experts = e.store.get(),
                    .caches = {caches.data(), r.sessions.size()},
                    .guard_fired = e.guard_fired,
                    .sink = r.sink,
                    .replay = r.replay,
                    .prediction = e.prediction.get()},
                   r.tokens, r.sequences);
  const auto end = [&](size_t i) { return r.sequences.end_position(static_cast<int>(i)); };
  for (size_t i = 0; i < r.sessions.size(); ++i) caches[i]->begin_pass(r.sequences.first_position[i], end(i));
  const auto start = std::chrono::steady_clock::now();
  if (e.prediction != nullptr) e.prediction->begin_pass(static_cast<int64_t>(r.tokens.size()));
  PM_RETURN_IF_ERROR(pass.run(*e.arch));
  if (e.prediction != nullptr) {
    e.prediction->end_pass(static_cast<uint64_t>(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count()));
  }
  for (size_t i = 0; i < r.sessions.size(); ++i) PM_RETURN_IF_ERROR(caches[i]->snapshot(*e.stream, end(i)));
  if (r.sink != nullptr && r.sink->wants("logits")) PM_RETURN_IF_ERROR(pass.trace_logits());
  return r.wants_logits ? pass.last_logits() : ok_status();
}

}  // namespace

Status run_pass(Engine::Impl& engine, const PassRequest& request) {
  const Status status = run_pass_until_error(engine, request);
  // Work that is left reads host tables that the next pass fills anew, tokens of the caller, and buffers that may be freed after a failure.
  const Status rest = engine.stream->synchronize();
  PM_RETURN_IF_ERROR(status);
  return rest;
}

Result<BatchLogits> Engine::run_batch(std::span<const BatchItem> items) {
  Impl& e = *impl_;
  if (items.empty()) return error(StatusCode::kInvalidArgument, "a batch of no sessions");
  if (static_cast<int64_t>(items.size()) > e.plan.max_sessions) {
    return error(StatusCode::kInvalidArgument, "a batch of {} sessions: the engine was loaded for {}; raise max_sessions", items.size(), e.plan.max_sessions);
  }
  std::array<Session::Impl*, ops::kMaxSequences> sessions;
  ops::Sequences sequences;
  int64_t room = e.plan.batch_tokens;
  for (size_t i = 0; i < items.size(); ++i) {
    const auto item = [i] { return format("batch item {}", i); };  // only for messages: a step allocates nothing
    if (items[i].session == nullptr) return error(StatusCode::kInvalidArgument, "{}: no session", item());
    Session::Impl* const s = items[i].session->impl_.get();
    if (s->engine != &e) return error(StatusCode::kInvalidArgument, "{}: a session of another engine", item());
    const auto others = std::span(sessions).first(i);
    if (const auto same = std::find(others.begin(), others.end(), s); same != others.end()) {
      return error(StatusCode::kInvalidArgument, "{}: the session of item {} again", item(), same - others.begin());
    }
    if (Status refused = s->check(items[i].tokens); !refused.ok()) return refused.with_context(item());
    const int64_t n = static_cast<int64_t>(items[i].tokens.size());
    if (n > room) {
      return error(StatusCode::kInvalidArgument, "{}: {} tokens, {} are left of the {} of one batch; give long prompts in parts", item(), n, room,
                   e.plan.batch_tokens);
    }
    room -= n;
    sessions[i] = s;
    sequences.add(n, s->position);
  }
  // Nothing is refused below; what fails leaves every position where it was.
  for (size_t i = 0; i < items.size(); ++i) {
    if (Status failed = sessions[i]->resume(); !failed.ok()) return failed.with_context(format("batch item {}", i));
  }
  int32_t* next = e.host.ids;
  for (const BatchItem& item : items) next = std::copy(item.tokens.begin(), item.tokens.end(), next);
  PM_RETURN_IF_ERROR(run_pass(e, {.sessions = std::span(sessions).first(items.size()),
                                  .sequences = sequences,
                                  .tokens = {e.host.ids, static_cast<size_t>(sequences.rows())}}));
  for (size_t i = 0; i < items.size(); ++i) {
    sessions[i]->remember(items[i].tokens, sessions[i]->position);
    sessions[i]->position += sequences.rows_of(static_cast<int>(i));
  }
  return BatchLogits(e.host.logits, items.size(), static_cast<size_t>(e.config.vocab_size));
}

Result<BatchLogits> Engine::decode_batch(std::span<const BatchStep> steps) {
  std::array<BatchItem, ops::kMaxSequences> items;
  if (steps.size() > items.size()) {
    return error(StatusCode::kInvalidArgument, "a batch of {} sessions: the engine was loaded for {}; raise max_sessions", steps.size(), impl_->plan.max_sessions);
  }
  for (size_t i = 0; i < steps.size(); ++i) items[i] = {steps[i].session, {&steps[i].token, 1}};
  return run_batch(std::span(items).first(steps.size()));
}

}  // namespace pointsman
