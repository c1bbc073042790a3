// SPDX-License-Identifier: Apache-2.0
#include "cli/args.h"

#include <CLI/CLI.hpp>

#include <cstdio>

namespace pointsman::cli {

struct ArgParser::Impl {
  CLI::App app;
  std::string command;
  std::vector<std::pair<CLI::Option*, std::string>> required;  // and how the usage line calls them
};

ArgParser::ArgParser(const std::string& command, const std::string& summary, const std::string& examples)
    : impl_(std::make_unique<Impl>()) {
  impl_->command = command;
  impl_->app.name("pointsman " + command);
  impl_->app.description(summary);
  impl_->app.get_formatter()->column_width(36);
  if (!examples.empty()) impl_->app.footer("Examples:\n" + examples);
}
ArgParser::~ArgParser() = default;

void ArgParser::positional(const std::string& name, std::string& out, const std::string& help, bool required) {
  CLI::Option* o = impl_->app.add_option(name, out, help);
  if (required) impl_->required.emplace_back(o, name.substr(0, name.find(',')));
}
void ArgParser::option(const std::string& names, std::string& out, const std::string& help) {
  impl_->app.add_option(names, out, help);
}
void ArgParser::option(const std::string& names, int64_t& out, const std::string& help) {
  impl_->app.add_option(names, out, help);
}
void ArgParser::option(const std::string& names, double& out, const std::string& help) {
  impl_->app.add_option(names, out, help);
}
void ArgParser::list(const std::string& names, std::vector<std::string>& out, const std::string& help) {
  // One value per use: a list must not swallow the positional that follows it.
  impl_->app.add_option(names, out, help)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}
void ArgParser::flag(const std::string& names, bool& out, const std::string& help) {
  impl_->app.add_flag(names, out, help);
}
bool ArgParser::given(const std::string& name) const {
  return impl_->app.count(name) > 0;
}

std::optional<int> ArgParser::parse(int argc, char** argv) {
  try {
    impl_->app.parse(argc, argv);
    for (const auto& [option, name] : impl_->required) {
      if (option->count() > 0) continue;
      std::fprintf(stderr, "pointsman %s: %s is missing\nRun 'pointsman %s --help' for the options.\n", impl_->command.c_str(),
                   name.c_str(), impl_->command.c_str());
      return kExitUsage;
    }
    return std::nullopt;
  } catch (const CLI::CallForHelp&) {
    std::fputs(impl_->app.help().c_str(), stdout);
    return kExitOk;
  } catch (const CLI::ParseError& e) {
    std::fprintf(stderr, "pointsman %s: %s\nRun 'pointsman %s --help' for the options.\n", impl_->command.c_str(), e.what(),
                 impl_->command.c_str());
    return kExitUsage;
  }
}

}  // namespace pointsman::cli
