// SPDX-License-Identifier: Apache-2.0
#include "audit/walk.h"

#include <algorithm>

#include "base/log.h"

namespace pointsman::audit {
namespace {

bool is_left_out_folder(std::string_view name) {
  constexpr std::string_view kNames[] = {
      ".git",        ".hg",       ".svn",      ".tox",       ".nox",   ".venv",  "venv",      "node_modules",  "__pycache__",
      ".mypy_cache", ".eggs",     ".cache",    "build",      "_build", "dist",   "third_party", "third-party", "thirdparty",
      "3rdparty",    "vendor",    "vendored",  "_vendor",    "site-packages",    ".ipynb_checkpoints", ".pytest_cache",
  };
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) || name.starts_with("cmake-build-") ||
         name.ends_with(".egg-info");
}

class Walker {
 public:
  Walker(FileSystem& fs, const WalkOptions& options) : fs_(fs), options_(options) {}

  void folder(const std::string& full, const std::string& relative, int depth, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      if (result_.files.size() >= options_.max_files) {
        skip(relative.empty() ? "." : relative, format("more than {} files", options_.max_files));
        return;
      }
      const std::string path = relative.empty() ? name : relative + "/" + name;
      const std::string child = join_path(full, name);
      if (std::find(options_.excludes.begin(), options_.excludes.end(), path) != options_.excludes.end()) {
        skip(path, "excluded");
        continue;
      }
      const Result<FileInfo> info = fs_.stat(child);
      if (!info.ok()) {
        // A broken link is no loss.
        if (info.status().code() != StatusCode::kNotFound) skip(path, info.status().message());
        continue;
      }
      if (info->is_symlink) {
        skip(path, "symbolic link");
      } else if (info->is_regular) {
        file(path, child, info->size_bytes);
      } else {
        enter(path, child, name, depth);
      }
    }
  }

  void file(const std::string& path, const std::string& full, uint64_t size) {
    const FileKind kind = kind_of_file(path, "");
    const size_t slash = path.rfind('/');
    const bool has_ending = path.find('.', slash == path.npos ? 0 : slash + 1) != path.npos;
    if (kind == FileKind::kUnknown && has_ending) return;
    if (size > options_.max_file_bytes) {
      if (kind != FileKind::kUnknown) skip(path, format("{} bytes, more than {}", size, options_.max_file_bytes));
      return;
    }
    result_.files.push_back({path, full, kind, size});
  }

  WalkResult take() { return std::move(result_); }

 private:
  void enter(const std::string& path, const std::string& full, const std::string& name, int depth) {
    if (!options_.include_vendored && is_left_out_folder(name)) {
      if (name != ".git" && name != "__pycache__") skip(path + "/", "build or vendored folder (--all looks into it)");
      return;
    }
    if (depth >= options_.max_depth) {
      skip(path + "/", format("deeper than {} folders", options_.max_depth));
      return;
    }
    const Result<std::vector<std::string>> names = fs_.list(full);  // fails on pipes and devices, which are never opened
    if (!names.ok()) {
      skip(path, "neither file nor readable folder");
      return;
    }
    folder(full, path, depth + 1, *names);
  }
  void skip(const std::string& path, std::string reason) { result_.skipped.push_back({path, std::move(reason)}); }

  FileSystem& fs_;
  const WalkOptions& options_;
  WalkResult result_;
};

}  // namespace

Result<WalkResult> walk(FileSystem& fs, const std::string& root, const WalkOptions& options) {
  PM_ASSIGN_OR_RETURN(const FileInfo info, fs.stat(root));
  Walker walker(fs, options);
  if (info.is_regular) {
    const size_t slash = root.rfind('/');
    const std::string name = slash == root.npos ? root : root.substr(slash + 1);
    walker.file(name, root, info.size_bytes);
    WalkResult result = walker.take();
    // A file that was named is looked at, whatever its ending.
    if (result.files.empty() && info.size_bytes <= options.max_file_bytes)
      result.files.push_back({name, root, FileKind::kDocument, info.size_bytes});
    return result;
  }
  PM_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs.list(root));
  walker.folder(root, "", 0, names);
  return walker.take();
}

}  // namespace pointsman::audit
