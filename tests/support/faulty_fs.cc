// SPDX-License-Identifier: Apache-2.0
#include "support/faulty_fs.h"

#include <algorithm>
#include <thread>

#include "base/log.h"

namespace pointsman::testing {

std::optional<FaultyFs::Fault> FaultyFs::meet(Op op) {
  const auto i = static_cast<size_t>(op);
  const uint64_t n = calls_[i].fetch_add(1);
  const Plan& plan = plans_[i];
  if (n < plan.first || n - plan.first >= plan.times) return std::nullopt;
  return plan.fault;
}

Status FaultyFs::status_of(Fault fault, const std::string& path) {
  switch (fault) {
    case Fault::kInterrupted: return error(StatusCode::kUnavailable, "{}: Interrupted system call (injected)", path);
    case Fault::kNoSpace: return error(StatusCode::kIo, "{}: No space left on device (injected)", path);
    default: return error(StatusCode::kIo, "{}: Input/output error (injected)", path);
  }
}

void FaultyFs::fail(Op op, uint64_t n, Fault fault, uint64_t times) {
  plans_[static_cast<size_t>(op)] = {n, times, fault};
}

void FaultyFs::adjust(const std::string& path, FileInfo& info) const {
  const auto it = sizes_.find(path);
  if (it != sizes_.end()) info.size_bytes = std::min(info.size_bytes, it->second);
}

class FaultyFile final : public File {
 public:
  FaultyFile(FaultyFs& fs, std::unique_ptr<File> base, bool is_direct = false) : fs_(fs), base_(std::move(base)), is_direct_(is_direct) {}

  Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
    size_t most = 0;
    if (auto decided = decide(out, offset, most)) return *decided;
    // O_DIRECT takes whole blocks only: then the bytes are read and not reported.
    return after(base_->pread(is_direct_ ? out : out.first(most), offset), out, offset, most);
  }

  // Before a read: its outcome, if that is decided already, or how many bytes it may bring.
  std::optional<Result<size_t>> decide(std::span<std::byte> out, uint64_t offset, size_t& most) {
    const auto fault = fs_.meet(FaultyFs::Op::kRead);
    if (fs_.delay_.count() > 0) std::this_thread::sleep_for(fs_.delay_);
    most = out.size();
    if (fault) {
      switch (*fault) {
        case FaultyFs::Fault::kEndOfFile: return size_t{0};
        case FaultyFs::Fault::kShortOne: most = std::min<size_t>(1, most); break;
        // A positional read of something never returns 0 before the end.
        case FaultyFs::Fault::kShortHalf: most = (most + 1) / 2; break;
        default: return FaultyFs::status_of(*fault, path());
      }
    }
    const auto size = fs_.sizes_.find(path());
    if (size != fs_.sizes_.end()) {
      if (offset >= size->second) return size_t{0};
      most = static_cast<size_t>(std::min<uint64_t>(most, size->second - offset));
    }
    return std::nullopt;
  }
  Result<size_t> after(Result<size_t> n, std::span<std::byte> out, uint64_t offset, size_t most) {
    if (!n.ok()) return n;
    *n = std::min(*n, most);
    for (auto it = fs_.flips_.lower_bound({path(), offset});
         it != fs_.flips_.end() && it->first.first == path() && it->first.second - offset < *n; ++it) {
      out[it->first.second - offset] ^= static_cast<std::byte>(it->second);
    }
    return n;
  }
  File& base() { return *base_; }
  bool is_direct() const { return is_direct_; }
  int descriptor() const override { return base_->descriptor(); }
  Result<std::unique_ptr<File>> open_direct() override {
    PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_->open_direct());
    return std::unique_ptr<File>(new FaultyFile(fs_, std::move(file), true));
  }

  Result<FileInfo> stat() override {
    if (const auto fault = fs_.meet(FaultyFs::Op::kFileStat)) return FaultyFs::status_of(*fault, path());
    Result<FileInfo> info = base_->stat();
    if (info.ok()) fs_.adjust(path(), *info);
    return info;
  }
  void forget(uint64_t offset, uint64_t bytes) override { base_->forget(offset, bytes); }
  const std::string& path() const override { return base_->path(); }

 private:
  FaultyFs& fs_;
  std::unique_ptr<File> base_;
  const bool is_direct_;
};

class FaultyQueue final : public ReadQueue {
 public:
  explicit FaultyQueue(std::unique_ptr<ReadQueue> base) : base_(std::move(base)) {}
  void submit(File& file, std::span<std::byte> out, uint64_t offset, uint32_t tag) override {
    auto& faulty = static_cast<FaultyFile&>(file);
    size_t most = 0;
    if (auto decided = faulty.decide(out, offset, most)) {
      decided_.push_back({.tag = tag, .bytes = *decided});
      return;
    }
    reads_[tag] = {&faulty, out, offset, most};
    base_->submit(faulty.base(), faulty.is_direct() ? out : out.first(most), offset, tag);
  }
  Completion wait() override {
    // What is really under way first: failures come while others are still on their way.
    if (reads_.empty()) {
      Completion c = std::move(decided_.front());
      decided_.erase(decided_.begin());
      return c;
    }
    Completion c = base_->wait();
    const Read r = reads_.at(c.tag);
    reads_.erase(c.tag);
    c.bytes = r.file->after(std::move(c.bytes), r.out, r.offset, r.most);
    return c;
  }

 private:
  struct Read {
    FaultyFile* file = nullptr;
    std::span<std::byte> out;
    uint64_t offset = 0;
    size_t most = 0;
  };
  std::unique_ptr<ReadQueue> base_;
  std::map<uint32_t, Read> reads_;
  std::vector<Completion> decided_;
};

class FaultyWritableFile final : public WritableFile {
 public:
  FaultyWritableFile(FaultyFs& fs, std::unique_ptr<WritableFile> base, std::string path)
      : fs_(fs), base_(std::move(base)), path_(std::move(path)) {}
  Status pwrite(std::span<const std::byte> data, uint64_t offset) override {
    if (const auto fault = fs_.meet(FaultyFs::Op::kWrite)) return FaultyFs::status_of(*fault, path_);
    return base_->pwrite(data, offset);
  }
  Status commit() override {
    if (const auto fault = fs_.meet(FaultyFs::Op::kCommit)) return FaultyFs::status_of(*fault, path_);
    return base_->commit();
  }

 private:
  FaultyFs& fs_;
  std::unique_ptr<WritableFile> base_;
  std::string path_;
};

Result<std::unique_ptr<File>> FaultyFs::open(const std::string& path) {
  if (const auto fault = meet(Op::kOpen)) return status_of(*fault, path);
  PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, base_.open(path));
  return std::unique_ptr<File>(new FaultyFile(*this, std::move(file)));
}

Result<std::unique_ptr<ReadQueue>> FaultyFs::make_read_queue(ReadMethod method, int depth) {
  if (method == ReadMethod::kPread) return make_pread_queue(depth);
  PM_ASSIGN_OR_RETURN(std::unique_ptr<ReadQueue> queue, base_.make_read_queue(method, depth));
  return std::unique_ptr<ReadQueue>(new FaultyQueue(std::move(queue)));
}

Result<FileInfo> FaultyFs::stat(const std::string& path) {
  if (const auto fault = meet(Op::kStat)) return status_of(*fault, path);
  Result<FileInfo> info = base_.stat(path);
  if (info.ok()) adjust(path, *info);
  return info;
}

Result<std::vector<std::string>> FaultyFs::list(const std::string& directory) {
  if (const auto fault = meet(Op::kList)) return status_of(*fault, directory);
  return base_.list(directory);
}

Result<std::unique_ptr<WritableFile>> FaultyFs::create_atomic(const std::string& path) {
  if (const auto fault = meet(Op::kCreate)) return status_of(*fault, path);
  PM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, base_.create_atomic(path));
  return std::unique_ptr<WritableFile>(new FaultyWritableFile(*this, std::move(file), path));
}

}  // namespace pointsman::testing
