// SPDX-License-Identifier: Apache-2.0
#include "base/staged_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace pointsman {
namespace {

Status failed(const char* what, const std::string& path, int err) {
  return error(err == ENOENT || err == ENOTDIR ? StatusCode::kNotFound : StatusCode::kIo, "{}: {}: {}", path, what, std::strerror(err));
}

bool exists(const std::string& path) {
  struct stat st;
  return ::lstat(path.c_str(), &st) == 0;
}

std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}
std::string parent_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

Status flush_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return failed("open", path, errno);
  const int rc = ::fsync(fd);
  const int err = errno;
  ::close(fd);
  // Some file systems refuse fsync on directories.
  return rc != 0 && err != EINVAL ? failed("fsync", path, err) : ok_status();
}

}  // namespace

Result<std::unique_ptr<StagedFolder>> StagedFolder::open(const std::string& given, bool keep) {
  const std::string path = without_slashes(given);
  if (path.empty()) return error(StatusCode::kInvalidArgument, "the folder to write has no name");
  if (exists(path)) return error(StatusCode::kInvalidArgument, "{}: exists already; nothing is written over, remove it or choose another name", path);
  const std::string directory = path + ".partial", marker = directory + "/" + kMarker;
  const bool is_new = ::mkdir(directory.c_str(), 0777) == 0;
  if (!is_new && errno != EEXIST) return failed("mkdir", directory, errno);
  if (!is_new && !exists(marker)) {
    DIR* dir = ::opendir(directory.c_str());
    if (dir == nullptr) return failed("open directory", directory, errno);
    bool empty = true;  // a run that was killed before it made the marker
    while (const dirent* entry = ::readdir(dir)) empty = empty && (std::strcmp(entry->d_name, ".") == 0 || std::strcmp(entry->d_name, "..") == 0);
    ::closedir(dir);
    if (!empty) return error(StatusCode::kInvalidArgument, "{}: is not a folder that this program began; move it away", directory);
  }
  const int fd = ::open(marker.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return failed("create", marker, errno);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    ::close(fd);
    return error(StatusCode::kUnavailable, "{}: another process is writing there", directory);
  }
  std::unique_ptr<StagedFolder> folder(new StagedFolder(path, directory, fd));
  if (!keep) PM_RETURN_IF_ERROR(folder->remove_files(false));
  return folder;
}

StagedFolder::~StagedFolder() {
  if (marker_fd_ >= 0) ::close(marker_fd_);
}

Status StagedFolder::remove(const std::string& name) {
  const std::string path = directory_ + "/" + name;
  return ::unlink(path.c_str()) != 0 && errno != ENOENT ? failed("remove", path, errno) : ok_status();
}

Status StagedFolder::remove_files(bool with_marker) {
  DIR* dir = ::opendir(directory_.c_str());
  if (dir == nullptr) return failed("open directory", directory_, errno);
  Status status;
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name == "." || name == ".." || (name == kMarker && !with_marker)) continue;
    if (Status s = remove(name); !s.ok() && status.ok()) status = std::move(s);
  }
  ::closedir(dir);
  return status;
}

Status StagedFolder::commit() {
  PM_RETURN_IF_ERROR(flush_folder(directory_));
  int rc = ::renameat2(AT_FDCWD, directory_.c_str(), AT_FDCWD, path_.c_str(), RENAME_NOREPLACE);
  // Where the file system cannot say "only if free": rename() replaces nothing but an empty folder.
  if (rc != 0 && (errno == EINVAL || errno == ENOSYS)) rc = ::rename(directory_.c_str(), path_.c_str());
  if (rc != 0) return failed("rename", path_, errno);
  directory_ = path_;
  PM_RETURN_IF_ERROR(flush_folder(parent_of(path_)));
  return remove(kMarker);
}

void StagedFolder::discard() {
  if (const Status s = remove_files(true); !s.ok()) return;
  ::rmdir(directory_.c_str());
}

Result<uint64_t> free_disk_bytes(const std::string& path) {
  struct statvfs st;
  if (::statvfs(path.c_str(), &st) != 0) return failed("statvfs", path, errno);
  return static_cast<uint64_t>(st.f_bavail) * st.f_frsize;
}

}  // namespace pointsman
