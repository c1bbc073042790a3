// SPDX-License-Identifier: Apache-2.0
//
// A folder that appears whole or not at all: it is filled as "NAME.partial" beside its place and renamed when it is complete. Whatever happens
// in between - an error, a signal, a loss of power - leaves nothing under the name, and the partial folder for the next try.
//
// One process at a time fills it (flock on the marker inside, which also tells it from a folder of somebody else's). Real files only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "pointsman/status.h"

namespace pointsman {

class StagedFolder {
 public:
  static constexpr const char* kMarker = ".pointsman-partial";

  // Makes or takes over "PATH.partial"; with `keep` its files stay, else they are removed. kInvalidArgument: PATH exists, or something else has
  // the partial name. kUnavailable: another process is filling it. kNotFound: no parent folder. kIo.
  static Result<std::unique_ptr<StagedFolder>> open(const std::string& path, bool keep);
  ~StagedFolder();
  StagedFolder(const StagedFolder&) = delete;
  StagedFolder& operator=(const StagedFolder&) = delete;

  const std::string& directory() const { return directory_; }  // "PATH.partial"
  // Removes a file inside; it need not exist.
  Status remove(const std::string& name);
  // Flushes the folder and gives it its name, which must still be free. Files are the writer's to flush.
  Status commit();
  // Removes everything.
  void discard();

 private:
  StagedFolder(std::string path, std::string directory, int marker_fd) : path_(std::move(path)), directory_(std::move(directory)), marker_fd_(marker_fd) {}
  Status remove_files(bool with_marker);

  const std::string path_;
  std::string directory_;
  int marker_fd_;
};

// Bytes that an ordinary user may still write where `path` is.
Result<uint64_t> free_disk_bytes(const std::string& path);

}  // namespace pointsman
