// SPDX-License-Identifier: Apache-2.0
//
// pointsman.lock.json: what the checkpoint's bytes must be. SHA-256 of configuration and tokenizer files, of every dense tensor
// and of every expert (its parts in the order gate, up, down, one after the other), with sizes. Format:
// docs/formats/lockfile.md.
//
// An expert's entry may hold XXH3-128 of the same bytes as well (`pointsman lock` writes it): five times as fast to check, and it
// detects damage, but not somebody who wants to deceive. It is no part of the model's digest.
//
// The lock is bound to names and ranges, not to shard files: a checkpoint sharded anew still matches.
//
// Reading is strict: another format_version is kUnsupported; an unknown or missing key, a name that is not plain, or entries
// that do not add up to "model_digest" are kCorrupt. The clock is the caller's: the same lock gives the same text.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/hash.h"
#include "pointsman/status.h"

namespace pointsman {

inline constexpr const char* kLockFileName = "pointsman.lock.json";
// The small files that a lock covers, where they exist: what decides how the model is read and spoken to. Sorted.
inline constexpr const char* kLockedFiles[] = {"chat_template.jinja", "config.json", "generation_config.json", "tokenizer.json",
                                               "tokenizer_config.json"};

struct LockFile {
  int format_version = 1;
  std::string tool_version;
  std::string created;  // ISO 8601, UTC
  struct Entry {
    Sha256Digest sha256{};
    uint64_t size_bytes = 0;
    std::optional<Xxh3Digest> xxh3;  // of experts only
    // The same bytes; XXH3 follows from them and need not be there.
    friend bool operator==(const Entry& a, const Entry& b) { return a.sha256 == b.sha256 && a.size_bytes == b.size_bytes; }
  };
  std::map<std::string, Entry, std::less<>> files;    // "config.json", "tokenizer.json", ...
  std::map<std::string, Entry, std::less<>> tensors;  // dense tensors by checkpoint name
  // "layers.3.experts.17" -> digest over gate|up|down bytes.
  std::map<std::string, Entry, std::less<>> experts;

  // SHA-256 over all entries in order (names, digests, sizes; not versions and time): names the model in traces and reports.
  Sha256Digest model_digest() const;
};

Result<LockFile> read_lock_file(FileSystem& fs, const std::string& directory);  // kNotFound when absent
Status write_lock_file(FileSystem& fs, const std::string& directory, const LockFile& lock);
// Of a regular file, read through a buffer of at most 256 KiB.
Result<LockFile::Entry> hash_file(FileSystem& fs, const std::string& path);
std::string lock_to_json(const LockFile& lock);
Result<LockFile> parse_lock_json(std::string_view text);

}  // namespace pointsman
