// SPDX-License-Identifier: Apache-2.0
//
// Session: one mutable timeline of tokens with its KV cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "pointsman/status.h"

namespace pointsman {

class Engine;
class Session;

// Receives intermediate tensors of a forward pass (pointsman trace). Rows are positions, first_row is absolute.
class TraceSink {
 public:
  virtual ~TraceSink() = default;
  // Which names are wanted: asked once per name and pass, so that nothing else is copied.
  virtual bool wants(std::string_view name) = 0;
  virtual Status rows_f32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, const float* data) = 0;
  virtual Status rows_i32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, const int32_t* data) = 0;
};

// Gives rows of an earlier run back to a forward pass (pointsman trace --replay). With `layers.N.hidden` layer N + 1 runs on the
// recorded output of layer N instead of its own (`embedding` before layer 0, the last hidden before the head), so that what a layer
// does wrong shows in that layer only. With `layers.N.router.ids` tokens go to the recorded experts, weighted from live logits.
class TraceSource {
 public:
  virtual ~TraceSource() = default;
  // Fills `out` [rows, cols], or gives false when the run has no such tensor: then the pass goes on with its own values.
  // kInvalidArgument: it has one of another shape, or fewer rows.
  virtual Result<bool> rows_f32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, float* out) = 0;
  virtual Result<bool> rows_i32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, int32_t* out) = 0;
};

// One session's part of a batch (Engine::run_batch).
struct BatchItem {
  Session* session = nullptr;
  std::span<const int32_t> tokens;
};
struct BatchStep {
  Session* session = nullptr;
  int32_t token = 0;
};

// Logits [vocab_size] of the last token of every item, in their order. Valid until the next call that computes on any session of the engine.
class BatchLogits {
 public:
  BatchLogits(const float* data, size_t rows, size_t vocab_size) : data_(data), rows_(rows), vocab_size_(vocab_size) {}
  size_t size() const { return rows_; }
  std::span<const float> operator[](size_t item) const { return {data_ + item * vocab_size_, vocab_size_}; }

 private:
  const float* data_;
  size_t rows_, vocab_size_;
};

class Session {
 public:
  ~Session();

  // Appends tokens and returns the logits [vocab_size] of the last one, valid until the next call on any session of the engine. Splitting the tokens over
  // several calls changes nothing, bit for bit. On any error the session is as it was before the call.
  // kInvalidArgument: no tokens, an id outside the vocabulary, or more tokens than context_length.
  // kCorrupt: a weight that failed verification, or a router logit that is NaN or infinite (the message names layer and token).
  Result<std::span<const float>> prefill(std::span<const int32_t> tokens);
  Result<std::span<const float>> decode(int32_t token) { return prefill({&token, 1}); }

  // The same, handing intermediate tensors to `sink` (names: docs/formats/trace.md); with sink->wants("logits"), logits of every
  // position. `replay`: values of another run that take the place of this one's; null for none.
  Result<std::span<const float>> trace(std::span<const int32_t> tokens, TraceSink& sink, TraceSource* replay = nullptr);

  int64_t position() const;                 // tokens so far
  int64_t context_length() const;
  // Forgets everything after the first `position` tokens. REQUIRES: 0 <= position <= position(). Free of work, but for models that keep
  // only a window of their past (DeepSeek-V4): stepping back more than 16 tokens makes the next call compute the tokens since the
  // nearest snapshot again, at most a fifth of the context.
  Status rewind(int64_t position);

  struct Impl;

 private:
  friend class Engine;
  explicit Session(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace pointsman
