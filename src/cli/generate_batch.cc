// SPDX-License-Identifier: Apache-2.0
#include "cli/generate_batch.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include "base/log.h"
#include "checkpoint/model_config.h"
#include "cli/interrupt.h"
#include "cli/load.h"
#include "tokenizer/tokenizer.h"

namespace pointsman::cli {
namespace {

constexpr size_t kNobody = SIZE_MAX;

// A session and who uses it at the moment.
struct Lane {
  std::unique_ptr<Session> session;
  std::optional<Sampler> sampler;
  std::optional<StreamingDetokenizer> detokenizer;
  size_t prompt = kNobody;
};

class BatchRun {
 public:
  BatchRun(Engine& engine, const DetokenizerOptions& detokenizing, const GenerateOptions& options, std::span<BatchPrompt> prompts)
      : engine_(engine), detokenizing_(detokenizing), options_(options), prompts_(prompts), is_done_(prompts.size(), false) {}

  Status open_lanes(const SamplerOptions& sampling) {
    const size_t n = std::min(prompts_.size(), static_cast<size_t>(engine_.memory_plan().max_sessions));
    lanes_.resize(n);
    for (Lane& lane : lanes_) {
      PM_ASSIGN_OR_RETURN(lane.session, engine_.new_session());
      PM_ASSIGN_OR_RETURN(Sampler sampler, Sampler::make(sampling, engine_.config().vocab_size, num_token_ids(engine_)));
      lane.sampler.emplace(std::move(sampler));
    }
    return ok_status();
  }

  bool is_finished() const { return next_ == prompts_.size() && std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& l) { return l.prompt == kNobody; }); }

  // Free lanes take the next prompts; then one pass over all lanes.
  Status step(BatchSummary& summary) {
    for (Lane& lane : lanes_) {
      if (lane.prompt == kNobody && next_ < prompts_.size()) PM_RETURN_IF_ERROR(begin(lane));
    }
    std::vector<BatchItem> items;
    std::vector<Lane*> who;
    // Everybody has a row; what is left goes to prompts, first come, first served.
    int64_t room = engine_.memory_plan().batch_tokens;
    for (const Lane& lane : lanes_) room -= lane.prompt != kNobody;
    for (Lane& lane : lanes_) {
      if (lane.prompt == kNobody) continue;
      const std::span<const int32_t> rest = pending(lane);
      const size_t n = std::min(rest.size(), static_cast<size_t>(1 + room));
      room -= static_cast<int64_t>(n) - 1;
      items.push_back({lane.session.get(), rest.first(n)});
      who.push_back(&lane);
    }
    PM_ASSIGN_OR_RETURN(const BatchLogits logits, engine_.run_batch(items));
    ++summary.passes;
    for (size_t i = 0; i < items.size(); ++i) {
      Lane& lane = *who[i];
      BatchPrompt& p = prompts_[lane.prompt];
      if (p.out.ids.empty()) summary.prompt_tokens += static_cast<int64_t>(items[i].tokens.size());
      if (lane.session->position() < static_cast<int64_t>(p.ids.size())) continue;
      PM_RETURN_IF_ERROR(take(lane, logits[i]));
      ++summary.generated_tokens;
    }
    return ok_status();
  }

  // What is left when the user has had enough.
  void interrupt() {
    for (Lane& lane : lanes_) {
      if (lane.prompt != kNobody) end(lane, "interrupted");
    }
    for (; next_ < prompts_.size(); ++next_) {
      prompts_[next_].out.finish_reason = "interrupted";
      is_done_[next_] = true;
    }
  }

  // Prompts that are done, as far as all before them are.
  Status report(FunctionRef<bool(size_t)> on_done) {
    for (; reported_ < prompts_.size() && is_done_[reported_]; ++reported_) {
      if (!on_done(reported_)) return error(StatusCode::kIo, "stdout could not be written");
    }
    return ok_status();
  }

 private:
  Status begin(Lane& lane) {
    lane.prompt = next_++;
    PM_RETURN_IF_ERROR(lane.session->rewind(0));
    lane.sampler->forget_all();
    lane.sampler->observe(prompts_[lane.prompt].ids);
    if (engine_.tokenizer() != nullptr) lane.detokenizer.emplace(*engine_.tokenizer(), detokenizing_);
    return ok_status();
  }

  // What the session has not seen yet: the rest of the prompt, or the token that was drawn last.
  std::span<const int32_t> pending(const Lane& lane) const {
    const BatchPrompt& p = prompts_[lane.prompt];
    const size_t at = static_cast<size_t>(lane.session->position());
    if (at < p.ids.size()) return std::span(p.ids).subspan(at);
    return {&p.out.ids.back(), 1};
  }

  Status take(Lane& lane, std::span<const float> logits) {
    BatchPrompt& p = prompts_[lane.prompt];
    const auto on_text = [&](std::string_view delta) {
      p.text += delta;
      return true;
    };
    StreamingDetokenizer* const text = lane.detokenizer ? &*lane.detokenizer : nullptr;
    const int64_t position = lane.session->position();
    Result<bool> goes_on = take_token(logits, position, *lane.sampler, text, options_, on_text, p.out);
    if (!goes_on.ok()) return goes_on.status().with_context(format("prompt {}", lane.prompt));
    if (!*goes_on) {
      end(lane, "stop");
    } else if (static_cast<int64_t>(p.out.ids.size()) >= options_.max_tokens) {
      end(lane, "length");
    } else if (position >= lane.session->context_length()) {
      end(lane, "context");
    }
    return ok_status();
  }

  void end(Lane& lane, const char* why) {
    BatchPrompt& p = prompts_[lane.prompt];
    p.out.finish_reason = why;
    if (lane.detokenizer) p.text += lane.detokenizer->flush();
    is_done_[lane.prompt] = true;
    lane.prompt = kNobody;
  }

  Engine& engine_;
  const DetokenizerOptions& detokenizing_;
  const GenerateOptions& options_;
  std::span<BatchPrompt> prompts_;
  std::vector<bool> is_done_;
  std::vector<Lane> lanes_;
  size_t next_ = 0, reported_ = 0;
};

}  // namespace

Status generate_batch(Engine& engine, const SamplerOptions& sampling, const DetokenizerOptions& detokenizing, const GenerateOptions& options,
                      std::span<BatchPrompt> prompts, FunctionRef<bool(size_t)> on_done, BatchSummary& summary) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t context = engine.memory_plan().context_length;
  for (size_t i = 0; i < prompts.size(); ++i) {
    if (prompts[i].ids.empty()) return error(StatusCode::kInvalidArgument, "prompt {}: no tokens", i);
    if (static_cast<int64_t>(prompts[i].ids.size()) > context) {
      return error(StatusCode::kInvalidArgument, "prompt {}: {} tokens, the context holds {}; raise --ctx-size", i, prompts[i].ids.size(), context);
    }
  }
  BatchRun run(engine, detokenizing, options, prompts);
  PM_RETURN_IF_ERROR(run.open_lanes(sampling));
  while (!run.is_finished()) {
    if (was_interrupted()) {
      run.interrupt();
    } else {
      PM_RETURN_IF_ERROR(run.step(summary));
    }
    summary.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    PM_RETURN_IF_ERROR(run.report(on_done));
  }
  return ok_status();
}

}  // namespace pointsman::cli
