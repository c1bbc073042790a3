// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <set>

#include "base/log.h"
#include "doctor/machine.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr size_t kMaxToolBytes = size_t{1} << 20;
// npu-smi on a busy eight-card server takes seconds; on a broken driver it hangs.
constexpr int kToolTimeoutMs = 6000;

// Notes what was read: file contents, and the names in folders.
class RecordingFs final : public FileSystem {
 public:
  struct Seen {
    std::map<std::string, std::string> files;
    std::map<std::string, std::vector<std::string>> folders;
    std::set<std::string> present;  // stat() found them
  };

  Result<std::unique_ptr<File>> open(const std::string& path) override {
    PM_ASSIGN_OR_RETURN(std::unique_ptr<File> file, real().open(path));
    return std::unique_ptr<File>(new RecordingFile(std::move(file), seen_.files[path]));
  }
  Result<FileInfo> stat(const std::string& path) override {
    Result<FileInfo> info = real().stat(path);
    if (info.ok()) seen_.present.insert(path);
    return info;
  }
  Result<std::vector<std::string>> list(const std::string& directory) override {
    Result<std::vector<std::string>> names = real().list(directory);
    if (names.ok()) seen_.folders[directory] = *names;
    return names;
  }
  Result<std::unique_ptr<WritableFile>> create_atomic(const std::string& path) override { return real().create_atomic(path); }

  const Seen& seen() const { return seen_; }

 private:
  class RecordingFile final : public File {
   public:
    RecordingFile(std::unique_ptr<File> file, std::string& copy) : file_(std::move(file)), copy_(copy) { copy_.clear(); }
    Result<size_t> pread(std::span<std::byte> out, uint64_t offset) override {
      Result<size_t> n = file_->pread(out, offset);
      if (n.ok() && offset == copy_.size()) copy_.append(reinterpret_cast<const char*>(out.data()), *n);
      return n;
    }
    Result<FileInfo> stat() override { return file_->stat(); }
    void forget(uint64_t offset, uint64_t bytes) override { file_->forget(offset, bytes); }
    const std::string& path() const override { return file_->path(); }

   private:
    std::unique_ptr<File> file_;
    std::string& copy_;
  };
  Seen seen_;
};

class LiveMachine final : public Machine {
 public:
  LiveMachine(char** variables, bool record) {
    name_ = "this machine";
    if (record) recorder_ = std::make_unique<RecordingFs>();
    fs_ = record ? static_cast<FileSystem*>(recorder_.get()) : &FileSystem::real();
    for (char** v = variables; v != nullptr && *v != nullptr; ++v) {
      const std::string_view text = *v;
      const size_t equals = text.find('=');
      if (equals == std::string_view::npos) continue;
      if (text.substr(0, equals) == "PATH") {
        for (const std::string_view folder : split(text.substr(equals + 1), ':')) {
          if (folder.starts_with('/')) path_.emplace_back(folder);  // never from the current folder
        }
      }
      if (is_relevant_variable(text.substr(0, equals))) {
        environment_[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
      }
    }
  }
  bool is_live() const override { return true; }
  const RecordingFs* recorder() const { return recorder_.get(); }

  const ToolOutput& run(Tool tool) const override {
    const auto it = outputs_.find(tool);
    if (it != outputs_.end()) return it->second;
    std::vector<std::string> folders = path_;
    for (const char* more :
         {"/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/local/Ascend/driver/tools", "/usr/local/nvidia/bin"}) {
      folders.emplace_back(more);
    }
    ToolOutput out;
    switch (tool) {
      case Tool::kNpuSmi: out = run_tool({"npu-smi", "info"}, folders, kToolTimeoutMs); break;
      case Tool::kNvidiaSmi: out = run_tool({"nvidia-smi"}, folders, kToolTimeoutMs); break;
      case Tool::kNvidiaSmiQuery:
        out = run_tool({"nvidia-smi", "--query-gpu=index,name,driver_version,memory.total,pci.bus_id", "--format=csv,noheader"},
                       folders, kToolTimeoutMs);
        break;
    }
    return outputs_[tool] = std::move(out);
  }
  CpuFeatures cpu_features() const override {
    read("/proc/cpuinfo");  // a capture needs it
    return detect_cpu_features();
  }

 private:
  std::unique_ptr<RecordingFs> recorder_;
  std::vector<std::string> path_;
  mutable std::map<Tool, ToolOutput> outputs_;
};

// Absolute path of an executable file, or empty.
std::string find_program(const std::string& name, const std::vector<std::string>& folders) {
  for (const std::string& folder : folders) {
    const std::string candidate = join_path(folder, name);
    struct stat st;
    if (::stat(candidate.c_str(), &st) == 0 && S_ISREG(st.st_mode) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return {};
}

Status make_folders(const std::string& path) {
  for (size_t at = 1; at <= path.size(); ++at) {
    if (at < path.size() && path[at] != '/') continue;
    const std::string part = path.substr(0, at);
    if (::mkdir(part.c_str(), 0755) != 0 && errno != EEXIST)
      return error(StatusCode::kIo, "{}: mkdir failed ({})", part, errno);
  }
  return ok_status();
}

Status write_below(const std::string& directory, const std::string& name, std::string_view text) {
  const std::string path = directory + (name.starts_with('/') ? name : "/" + name);
  PM_RETURN_IF_ERROR(make_folders(path.substr(0, path.rfind('/'))));
  return write_text_file(FileSystem::real(), path, text);
}

}  // namespace

std::unique_ptr<Machine> Machine::live(char** environment, bool record) {
  return std::make_unique<LiveMachine>(environment, record);
}

ToolOutput run_tool(const std::vector<std::string>& arguments, const std::vector<std::string>& folders, int timeout_ms) {
  using Clock = std::chrono::steady_clock;
  ToolOutput out;
  const std::string program = find_program(arguments[0], folders);
  if (program.empty()) return out;
  out.found = true;
  // Everything that allocates happens before fork(): the process may have threads.
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  int pipe_fds[2];
  if (::pipe2(pipe_fds, O_CLOEXEC) != 0) {
    out.exit_code = 127;
    return out;
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::setpgid(0, 0);
    const int nothing = ::open("/dev/null", O_RDONLY);
    ::dup2(nothing, 0);
    ::dup2(pipe_fds[1], 1);
    ::dup2(pipe_fds[1], 2);
    ::signal(SIGPIPE, SIG_DFL);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  ::close(pipe_fds[1]);
  if (child < 0) {
    ::close(pipe_fds[0]);
    out.exit_code = 127;
    return out;
  }
  const auto deadline = Clock::now() + std::chrono::milliseconds(timeout_ms);
  std::array<char, 16384> chunk;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{pipe_fds[0], POLLIN, 0};
    const int ready = left > 0 ? ::poll(&waiting, 1, static_cast<int>(left)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      out.timed_out = true;
      break;
    }
    const ssize_t n = ::read(pipe_fds[0], chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    if (out.text.size() < kMaxToolBytes) out.text.append(chunk.data(), static_cast<size_t>(n));
  }
  ::close(pipe_fds[0]);
  // The group, so that a shell wrapper takes its children along. A process that closed its output but runs on gets the rest of
  // its time.
  int status = 0;
  while (!out.timed_out && ::waitpid(child, &status, WNOHANG) == 0) {
    if (Clock::now() >= deadline) out.timed_out = true;
    ::usleep(2000);
  }
  if (out.timed_out) {
    ::kill(-child, SIGKILL);
    ::kill(child, SIGKILL);  // in case it had not yet made its group
    // A process that hangs in the kernel (a broken driver) does not die: it is not waited for longer than this.
    for (int i = 0; i < 100 && ::waitpid(child, &status, WNOHANG) == 0; ++i) ::usleep(2000);
    return out;
  }
  out.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

Status write_capture(const Machine& machine, const std::string& directory, Json notes, const std::string& topology_xml) {
  const auto* live = dynamic_cast<const LiveMachine*>(&machine);
  if (live == nullptr || live->recorder() == nullptr) {
    return {StatusCode::kInvalidArgument, "only a live machine can be captured"};
  }
  if (const auto names = FileSystem::real().list(directory); names.ok() && !names->empty()) {
    return error(StatusCode::kInvalidArgument, "{}: not empty; a capture goes into a new folder", directory);
  }
  PM_RETURN_IF_ERROR(make_folders(directory));
  const RecordingFs::Seen& seen = live->recorder()->seen();
  const std::string root = directory + "/root";
  PM_RETURN_IF_ERROR(make_folders(root));
  for (const auto& [path, text] : seen.files) PM_RETURN_IF_ERROR(write_below(root, path, text));
  for (const auto& [path, names] : seen.folders) {
    PM_RETURN_IF_ERROR(make_folders(root + path));
    for (const std::string& name : names) {
      const std::string whole = join_path(path, name);
      if (seen.files.count(whole) > 0 || FileSystem::real().stat(root + whole).ok()) continue;
      if (FileSystem::real().list(whole).ok()) {
        PM_RETURN_IF_ERROR(make_folders(root + whole));
      } else {
        PM_RETURN_IF_ERROR(write_below(root, whole, ""));
      }
    }
  }
  for (const std::string& path : seen.present) {
    if (FileSystem::real().stat(root + path).ok()) continue;
    if (FileSystem::real().list(path).ok()) {
      PM_RETURN_IF_ERROR(make_folders(root + path));
    } else {
      PM_RETURN_IF_ERROR(write_below(root, path, ""));
    }
  }
  std::string variables;
  for (const auto& [name, value] : machine.environment()) {
    if (value.find('\n') == std::string::npos) variables += name + "=" + value + "\n";
  }
  PM_RETURN_IF_ERROR(write_below(directory, "environment", variables));
  for (const Tool tool : kTools) {
    const ToolOutput& out = machine.run(tool);
    if (!out.found) continue;
    const std::string stem = std::string("commands/") + tool_file_name(tool);
    PM_RETURN_IF_ERROR(write_below(directory, stem + ".txt", out.text));
    if (out.timed_out || out.exit_code != 0) {
      PM_RETURN_IF_ERROR(
          write_below(directory, stem + ".rc", out.timed_out ? "timeout\n" : std::to_string(out.exit_code) + "\n"));
    }
  }
  if (!topology_xml.empty()) PM_RETURN_IF_ERROR(write_below(directory, "topology.xml", topology_xml));
  return write_below(directory, "machine.json", notes.dump(2) + "\n");
}

}  // namespace pointsman::doctor
