// SPDX-License-Identifier: Apache-2.0
//
// Command-line parsing (CLI11 inside, in one file: it costs seconds to compile).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace pointsman::cli {

// Exit codes: a stable contract.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFindings = 1;  // findings, or a mismatch
inline constexpr int kExitUsage = 2;
inline constexpr int kExitRefused = 3;  // config, checkpoint or budget refused
inline constexpr int kExitRuntime = 4;  // failed while running

class ArgParser {
 public:
  // `examples`: lines shown at the end of --help.
  ArgParser(const std::string& command, const std::string& summary, const std::string& examples);
  ~ArgParser();

  // Names are like "-n,--max-tokens". Variables keep their value when the option is absent.
  void positional(const std::string& name, std::string& out, const std::string& help, bool required = true);
  void option(const std::string& names, std::string& out, const std::string& help);
  void option(const std::string& names, int64_t& out, const std::string& help);
  void option(const std::string& names, double& out, const std::string& help);
  void list(const std::string& names, std::vector<std::string>& out, const std::string& help);
  void flag(const std::string& names, bool& out, const std::string& help);
  // True when the option was given.
  bool given(const std::string& name) const;

  // Parses what follows the subcommand. Nothing: go on. Otherwise the exit code: 0 after --help, 2 after a usage error that was
  // printed to stderr.
  std::optional<int> parse(int argc, char** argv);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace pointsman::cli
