// SPDX-License-Identifier: Apache-2.0
#include "base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log.h"

namespace pointsman {
namespace {

Status os_error(int err, const char* what, const std::string& path) {
  const StatusCode code = err == ENOENT || err == ENOTDIR ? StatusCode::kNotFound
                          : err == EINTR                  ? StatusCode::kUnavailable
                                                          : StatusCode::kIo;
  return error(code, "{}: {}: {}", path, what, std::strerror(err));
}

FileInfo to_info(const struct stat& st) {
  return {.size_bytes = static_cast<uint64_t>(st.st_size),
          .mtime_ns = st.st_mtim.tv_sec * 1'000'000'000LL + st.st_mtim.tv_nsec,
          .inode = st.st_ino,
          .device = st.st_dev,
          .is_regular = S_ISREG(st.st_mode)};
}

class PosixFile final : public File {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override { ::close(fd_); }

  Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0) return os_error(errno, "pread", path_);
    return static_cast<size_t>(n);
  }
  Result<FileInfo> stat() override {
    struct stat st;
    if (::fstat(fd_, &st) != 0) return os_error(errno, "fstat", path_);
    return to_info(st);
  }
  void forget(uint64_t offset, uint64_t bytes) override {
    ::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  }
  int descriptor() const override { return fd_; }
  Result<std::unique_ptr<File>> open_direct() override {
    // By the descriptor's own name: the path may lead elsewhere by now.
    const int fd = ::open(format("/proc/self/fd/{}", fd_).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
    if (fd < 0 && errno == EINVAL) return error(StatusCode::kUnsupported, "{}: its file system has no O_DIRECT", path_);
    if (fd < 0) return os_error(errno, "open with O_DIRECT", path_);
    return std::unique_ptr<File>(new PosixFile(fd, path_));
  }
  const std::string& path() const override { return path_; }

 private:
  int fd_;
  std::string path_;
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(int fd, std::string path, std::string temporary)
      : fd_(fd), path_(std::move(path)), temporary_(std::move(temporary)) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(temporary_.c_str());
  }

  Status pwrite(std::span<const std::byte> data, uint64_t offset) override {
    while (!data.empty()) {
      const ssize_t n = ::pwrite(fd_, data.data(), data.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return os_error(n < 0 ? errno : EIO, "pwrite", temporary_);
      data = data.subspan(static_cast<size_t>(n));
      offset += static_cast<uint64_t>(n);
    }
    return ok_status();
  }

  Status commit() override {
    if (::fsync(fd_) != 0) return os_error(errno, "fsync", temporary_);
    if (::close(std::exchange(fd_, -1)) != 0) return os_error(errno, "close", temporary_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return os_error(errno, "rename", path_);
    committed_ = true;
    const size_t slash = path_.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const int dir_fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir_fd < 0) return os_error(errno, "open", directory);
    const int rc = ::fsync(dir_fd);
    const int err = errno;
    ::close(dir_fd);
    // Some file systems refuse fsync on directories; the rename itself has happened.
    if (rc != 0 && err != EINVAL) return os_error(err, "fsync", directory);
    return ok_status();
  }

 private:
  int fd_;
  std::string path_;
  std::string temporary_;
  bool committed_ = false;
};

class PosixFileSystem final : public FileSystem {
 public:
  Result<std::unique_ptr<File>> open(const std::string& path) override {
    // O_NONBLOCK: a FIFO in a model folder must not hang the loader. Regular files lose the flag again: pread(2) ignores it, but to
    // io_uring it means that nothing may wait for the disk.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return os_error(errno, "open", path);
    struct stat st;
    if (::fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) ::fcntl(fd, F_SETFL, 0);
    return std::unique_ptr<File>(new PosixFile(fd, path));
  }

  Result<FileInfo> stat(const std::string& path) override {
    struct stat link;
    if (::lstat(path.c_str(), &link) != 0) return os_error(errno, "stat", path);
    struct stat st;
    if (::stat(path.c_str(), &st) != 0) {
      if (S_ISLNK(link.st_mode)) {
        return error(StatusCode::kNotFound, "{}: a symbolic link whose target does not exist; fetch the file it names", path);
      }
      return os_error(errno, "stat", path);
    }
    FileInfo info = to_info(st);
    info.is_symlink = S_ISLNK(link.st_mode);
    return info;
  }

  Result<std::vector<std::string>> list(const std::string& directory) override {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return os_error(errno, "open directory", directory);
    std::vector<std::string> names;
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    ::closedir(dir);
    std::sort(names.begin(), names.end());
    return names;
  }

  Result<std::unique_ptr<WritableFile>> create_atomic(const std::string& path) override {
    const std::string temporary = format("{}.tmp.{}", path, ::getpid());
    const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return os_error(errno, "create", temporary);
    return std::unique_ptr<WritableFile>(new PosixWritableFile(fd, path, temporary));
  }

  Result<std::unique_ptr<ReadQueue>> make_read_queue(ReadMethod method, int depth) override {
    if (method == ReadMethod::kUring) return make_uring_queue(depth);
    return make_pread_queue(depth);
  }
};

}  // namespace

Result<std::unique_ptr<File>> File::open_direct() {
  return error(StatusCode::kUnsupported, "{}: this kind of file has no O_DIRECT", path());
}

Result<std::unique_ptr<ReadQueue>> FileSystem::make_read_queue(ReadMethod method, int depth) {
  if (method == ReadMethod::kUring) return error(StatusCode::kUnavailable, "io_uring: these files have no descriptors");
  return make_pread_queue(depth);
}

FileSystem& FileSystem::real() {
  static PosixFileSystem instance;
  return instance;
}

Status read_exact(File& file, std::span<std::byte> out, uint64_t offset) {
  while (!out.empty()) {
    Result<size_t> n = file.pread(out, offset);
    if (!n.ok()) {
      if (n.status().code() == StatusCode::kUnavailable) continue;  // interrupted
      return n.status();
    }
    if (*n == 0) {
      return error(StatusCode::kCorrupt, "{}: truncated: {} bytes missing at offset {}; fetch the file again", file.path(),
                   out.size(), offset);
    }
    out = out.subspan(*n);
    offset += *n;
  }
  return ok_status();
}

Result<std::string> read_text_file(FileSystem& fs, const std::string& path, uint64_t max_bytes) {
  PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, fs.open(path));
  PM_ASSIGN_OR_RETURN(const FileInfo info, file->stat());
  if (!info.is_regular) return error(StatusCode::kUnsupported, "{}: not a regular file", path);
  if (info.size_bytes > max_bytes) {
    return error(StatusCode::kUnsupported, "{}: {} bytes, more than the {} that such a file may have", path, info.size_bytes,
                 max_bytes);
  }
  std::string text(info.size_bytes, '\0');
  PM_RETURN_IF_ERROR(read_exact(*file, std::as_writable_bytes(std::span(text)), 0));
  return text;
}

Status write_text_file(FileSystem& fs, const std::string& path, std::string_view text) {
  PM_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs.create_atomic(path));
  PM_RETURN_IF_ERROR(file->pwrite(std::as_bytes(std::span(text)), 0));
  return file->commit();
}

std::string join_path(const std::string& directory, const std::string& name) {
  if (directory.empty() || directory.back() == '/') return directory + name;
  return directory + "/" + name;
}

}  // namespace pointsman
