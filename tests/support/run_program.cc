// SPDX-License-Identifier: Apache-2.0
#include "support/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "base/check.h"

namespace pointsman::testing {
namespace {

// In the child, before exec: only what is safe after fork.
void enter_cgroup(const char* procs) {
  const int fd = ::open(procs, O_WRONLY | O_CLOEXEC);
  if (fd < 0 || ::write(fd, "0", 1) != 1) ::_exit(126);
  ::close(fd);
}

}  // namespace

ProgramResult run_program(const std::vector<std::string>& args, const std::string& cgroup) {
  const std::string program = std::string(PM_BINARY_DIR) + "/pointsman";
  PM_CHECK(::access(program.c_str(), X_OK) == 0, "%s is not built", program.c_str());
  const std::string procs = cgroup + "/cgroup.procs";
  std::vector<char*> argv = {const_cast<char*>(program.c_str())};
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  int pipes[2][2];
  for (auto& p : pipes) PM_CHECK(::pipe2(p, O_CLOEXEC) == 0);
  const pid_t child = ::fork();
  PM_CHECK(child >= 0);
  if (child == 0) {
    if (!cgroup.empty()) enter_cgroup(procs.c_str());
    ::dup2(pipes[0][1], 1);
    ::dup2(pipes[1][1], 2);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  for (auto& p : pipes) ::close(p[1]);
  ProgramResult result;
  std::string* const texts[2] = {&result.out, &result.err};
  pollfd polls[2] = {{pipes[0][0], POLLIN, 0}, {pipes[1][0], POLLIN, 0}};
  for (int open = 2; open > 0;) {
    if (::poll(polls, 2, -1) < 0) continue;
    for (int i = 0; i < 2; ++i) {
      if (polls[i].fd < 0 || polls[i].revents == 0) continue;
      char buffer[4096];
      const ssize_t n = ::read(polls[i].fd, buffer, sizeof buffer);
      if (n > 0) {
        texts[i]->append(buffer, static_cast<size_t>(n));
      } else {
        ::close(polls[i].fd);
        polls[i].fd = -1;
        --open;
      }
    }
  }
  int status = 0;
  PM_CHECK(::waitpid(child, &status, 0) == child);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

std::vector<std::string> greedy_run_args(const GreedyRun& run) {
  // clang-format off
  std::vector<std::string> args = {"run", run.model, "--tokens", run.tokens, "-n", std::to_string(run.num_tokens),
                                   "-c", std::to_string(run.context_length), "-t", "2", "--temp", "0", "--ignore-eos", "--print-ids",
                                   "--no-progress", "--log-level", "error", "--stats", "json",
                                   "--memory", std::to_string(run.budget_bytes)};
  // clang-format on
  args.insert(args.end(), run.more.begin(), run.more.end());
  return args;
}

Json last_json_line(const std::string& text) {
  std::string found;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (text[at] == '{') found = text.substr(at, end - at);
    at = end + 1;
  }
  auto json = parse_json(found);
  return json.ok() ? *json : Json();
}

std::string join_ids(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace pointsman::testing
