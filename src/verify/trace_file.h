// SPDX-License-Identifier: Apache-2.0
//
// Trace files: intermediate tensors of a forward pass as safetensors, written while it runs and read back in blocks of rows, so
// that memory does not grow with the prompt. Names: docs/formats/trace.md; rows are positions.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fs.h"
#include "checkpoint/model_config.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "pointsman/session.h"
#include "pointsman/status.h"

namespace pointsman {

inline constexpr std::string_view kTraceSelectionWords = "logits, router, hidden, embedding, attention, mlp, experts, norm, all";

struct TraceSelection {
  bool logits = true, router = true, hidden = true;
  bool embedding = false, attention = false, mlp = false, experts = false, norm = false;  // inside the layers
};
// "logits,router,hidden", in any order; "all" is everything. kInvalidArgument names what it does not know.
Result<TraceSelection> parse_trace_selection(std::string_view text);

class TraceWriter final : public TraceSink {
 public:
  // The file appears under `path` when commit() succeeded.
  static Result<std::unique_ptr<TraceWriter>> create(FileSystem& fs, const std::string& path, const ModelConfig& config,
                                                     const TraceSelection& selection, int64_t tokens,
                                                     const std::vector<std::pair<std::string, std::string>>& metadata);
  bool wants(std::string_view name) override;
  Status rows_f32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, const float* data) override;
  Status rows_i32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, const int32_t* data) override;
  // kInternal when a declared row never came.
  Status commit() { return file_->commit(); }
  size_t num_tensors() const { return tensors_.size(); }
  uint64_t bytes() const { return bytes_; }

 private:
  Status rows(std::string_view name, DType dtype, int64_t first_row, int64_t rows, int64_t cols, const void* data);

  std::map<std::string, SafetensorsWriter::Declaration, std::less<>> tensors_;
  std::unique_ptr<SafetensorsWriter> file_;
  uint64_t bytes_ = 0;
};

// A tensor as rows: all dimensions but the last are one.
struct TraceTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t rows = 0, cols = 0;
  uint64_t offset = 0;
  std::string file = {};                     // its own file, when the trace is a folder
  std::vector<std::byte> inline_bytes = {};  // small values that lie in no file of their own
  bool is_integer() const { return dtype == DType::kI32 || dtype == DType::kI64; }
};

// A recorded run as the source of a replay. Borrowed by the session for the call.
class TraceReader;
class TraceReplay final : public TraceSource {
 public:
  // `inputs`: every layer runs on the recorded output of the layer before it (a shadow run). `routes`: tokens go to the recorded
  // experts. kInvalidArgument when `reader` has no tensor that could be replayed so.
  static Result<std::unique_ptr<TraceReplay>> create(TraceReader& reader, bool inputs, bool routes);
  TraceReplay(TraceReader& reader, bool inputs, bool routes) : reader_(reader), inputs_(inputs), routes_(routes) {}

  Result<bool> rows_f32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, float* out) override;
  Result<bool> rows_i32(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, int32_t* out) override;

 private:
  Result<bool> read(std::string_view name, int64_t first_row, int64_t rows, int64_t cols, bool is_integer);

  TraceReader& reader_;
  const bool inputs_, routes_;
  std::vector<double> values_;
};

// The token ids that a trace says it is of: `tokens` of its metadata, or its tensor `tokens`. kNotFound when it says nothing.
Result<std::vector<int32_t>> trace_tokens(TraceReader& reader);

// F32, F64, BF16, F16, I32 or I64: what a reader converts.
bool is_trace_type(DType dtype);

class TraceReader {
 public:
  // A folder is read by verify/foreign_trace.h. Otherwise any safetensors file whose tensors are F32, F64, BF16, F16, I32 or I64; others are listed in skipped().
  static Result<std::unique_ptr<TraceReader>> open(FileSystem& fs, const std::string& path);

  const std::string& path() const { return path_; }
  const std::vector<TraceTensor>& tensors() const { return tensors_; }  // sorted by name
  const TraceTensor* find(std::string_view name) const;
  // "" when absent.
  std::string metadata(std::string_view key) const;
  const std::vector<std::pair<std::string, std::string>>& all_metadata() const { return metadata_; }
  const std::vector<std::string>& skipped() const { return skipped_; }
  // What a reader of a foreign format guessed or could not confirm.
  const std::vector<std::string>& notes() const { return notes_; }

  // Rows [first, first + count) as doubles (exact for every type but I64 beyond 2^53) into out [count * cols].
  Status read_rows(const TraceTensor& t, int64_t first, int64_t count, std::vector<double>& out);
  // The same bytes as they are in the file.
  Status read_bytes(const TraceTensor& t, int64_t first, int64_t count, std::vector<std::byte>& out);

 private:
  std::string path_;
  FileSystem* fs_ = nullptr;
  std::unique_ptr<File> file_;
  std::string open_path_;  // of file_, when the trace is a folder
  std::vector<TraceTensor> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<std::string> skipped_, notes_;
  std::vector<std::byte> raw_;
};

}  // namespace pointsman
