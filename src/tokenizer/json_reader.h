// SPDX-License-Identifier: Apache-2.0
//
// A pull parser for tokenizer.json. The file of a 200,000-token vocabulary has 28 MB; a tree of it would cost ten times that
// and the text itself is never needed as a whole, so the reader sees 64 KiB at a time, and sections can be visited twice.
//
// Strict JSON: no comments, no trailing commas, valid UTF-8, no lone surrogates, nesting of at most 64 levels. Every failure is
// sticky: the functions return false from then on and status() says what and where (kCorrupt, byte offset). A caller checks
// status() after its loops.
//
// Used by one thread at a time.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/fs.h"
#include "pointsman/status.h"

namespace pointsman {

// Random access to the bytes of a document.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  // REQUIRES: offset + out.size() <= size().
  virtual Status read(std::span<char> out, uint64_t offset) = 0;
};

class TextSource final : public ByteSource {
 public:
  // `text` is borrowed.
  explicit TextSource(std::string_view text) : text_(text) {}
  uint64_t size() const override { return text_.size(); }
  Status read(std::span<char> out, uint64_t offset) override;

 private:
  std::string_view text_;
};

class FileSource final : public ByteSource {
 public:
  // `file` is borrowed.
  FileSource(File& file, uint64_t size) : file_(file), size_(size) {}
  uint64_t size() const override { return size_; }
  Status read(std::span<char> out, uint64_t offset) override;

 private:
  File& file_;
  uint64_t size_;
};

class JsonReader {
 public:
  explicit JsonReader(ByteSource& source);

  const Status& status() const { return status_; }
  bool failed() const { return !status_.ok(); }
  bool fail(std::string_view what);

  // First character of the next value, '\0' at the end of the text or after a failure.
  char peek();
  bool begin_object();
  // The key of the next member; false after the last one.
  bool next_key(std::string& key);
  bool begin_array();
  // True when there is another element to read.
  bool next_element();
  bool read_string(std::string& out);
  bool read_int(int64_t& out);
  bool skip_value();
  // The text of the next value, checked and passed over. kUnsupported beyond `max_bytes`.
  bool read_raw(std::string& out, uint64_t max_bytes);
  // Only white space is left.
  bool at_end();

  // Byte offset of the next value, for seek(). REQUIRES for seek: the offset came from here.
  uint64_t offset();
  void seek(uint64_t offset);

 private:
  static constexpr size_t kBufferBytes = 65536;
  static constexpr size_t kMaxDepth = 64;

  bool refill();
  // The next byte without and with taking it; -1 at the end.
  int look() { return position_ < limit_ || refill() ? static_cast<unsigned char>(buffer_[position_]) : -1; }
  int get() {
    const int c = look();
    if (c >= 0) ++position_;
    return c;
  }
  void skip_space();
  bool expect(char c);
  bool open(char c);
  bool read_escape(std::string& out);
  bool read_hex4(uint32_t& out);
  bool read_number(std::string& out);

  ByteSource& source_;
  std::vector<char> buffer_;
  size_t position_ = 0;  // in buffer_
  size_t limit_ = 0;
  uint64_t buffer_offset_ = 0;  // of buffer_[0] in the source
  std::vector<char> first_;     // per open container: nothing has been read from it yet
  std::string scratch_;
  Status status_;
};

}  // namespace pointsman
