// SPDX-License-Identifier: Apache-2.0
//
// What entries of YAML, JSON, TOML and INI files stand for: environment, pins, images, commands.
#include <algorithm>

#include "audit/config/scan.h"

namespace pointsman::audit::config {
namespace {

bool one_of(std::string_view s, std::initializer_list<std::string_view> list) { return std::find(list.begin(), list.end(), s) != list.end(); }

// The last key of a path, indices dropped: "jobs.build.steps[0]" -> "steps".
std::string_view last_key(std::string_view path) {
  while (path.ends_with(']')) {
    const size_t open = path.rfind('[');
    if (open == path.npos) break;  // a key that ends so: "shape]"
    path = path.substr(0, open);
  }
  const size_t dot = path.rfind('.');
  return dot == path.npos ? path : path.substr(dot + 1);
}
std::string_view parent_path(std::string_view path) {
  if (path.ends_with(']')) return path.substr(0, path.rfind('['));
  const size_t dot = path.rfind('.');
  return dot == path.npos ? std::string_view() : path.substr(0, dot);
}

bool is_environment_key(std::string_view key) {
  return one_of(key, {"env", "environment", "variables", "env_vars", "environs", "envs", "environment_variables", "containerEnv", "remoteEnv", "build-args", "args_env"});
}

void environment(Document& d, size_t i) {
  const Entry& e = d.entries[i];
  const std::string_view parent = parent_path(e.path);
  if (e.key_span.end > e.key_span.begin && is_variable_name(e.key)) {
    d.environment.push_back({e.key, e.value, false, {e.key_span.begin, std::max(e.key_span.end, e.value_span.end)}});
  } else if (e.key.empty() && is_environment_key(last_key(parent))) {  // - NAME=value
    const size_t equals = e.value.find('=');
    if (equals != std::string::npos && is_variable_name(std::string_view(e.value).substr(0, equals)))
      d.environment.push_back({e.value.substr(0, equals), e.value.substr(equals + 1), false, e.value_span});
  } else if (e.key == "name" && is_variable_name(e.value) && i + 1 < d.entries.size() && d.entries[i + 1].key == "value" && parent_path(d.entries[i + 1].path) == parent) {
    d.environment.push_back({e.value, d.entries[i + 1].value, false, {e.value_span.begin, d.entries[i + 1].value_span.end}});
  }
}

void pins(Document& d, const Entry& e) {
  const bool is_list = e.key.empty();
  const std::string_view list = last_key(parent_path(e.path));
  const FileKind kind = d.unit->kind;
  if (kind == FileKind::kToml) {
    if (is_list && (one_of(list, {"dependencies", "requires", "requirements", "constraint-dependencies", "override-dependencies"}) ||
                    e.path.find("optional-dependencies.") != std::string::npos || e.path.find("dependency-groups.") != std::string::npos)) {
      add_pin(d, e.value, e.value_span, "project");
    } else if (!is_list && e.path.find("poetry") != std::string::npos) {
      // torch = "^2.1" or torch = {version = "^2.1"}
      const bool nested = e.key == "version" && last_key(parent_path(parent_path(e.path))).ends_with("dependencies");
      if (nested || list.ends_with("dependencies")) {
        const std::string name(nested ? last_key(parent_path(e.path)) : std::string_view(e.key));
        const bool digits = !e.value.empty() && e.value[0] >= '0' && e.value[0] <= '9';
        add_pin(d, name + (digits ? "==" : "") + (e.value == "*" ? "" : e.value), {e.key_span.begin, std::max(e.key_span.end, e.value_span.end)}, "poetry");
      }
    }
  } else if (kind == FileKind::kYaml) {
    if (is_list && (list == "dependencies" || list == "pip" || list == "requirements") && e.path.find("dependencies") != std::string::npos)
      add_pin(d, e.value, e.value_span, list == "pip" ? "pip" : "conda");
  } else if (kind == FileKind::kIni) {
    if (one_of(e.key, {"install_requires", "requires", "setup_requires", "deps", "tests_require"}) || e.path.starts_with("options.extras_require.")) add_pin(d, e.value, e.value_span, "setup");
  }
}

}  // namespace

void collect(Document& d) {
  if (one_of(file_kind_name(d.unit->kind), {"shell", "dockerfile", "requirements"})) return;  // these gave theirs already
  const bool yaml = d.unit->kind == FileKind::kYaml, json = d.unit->kind == FileKind::kJson;
  for (size_t i = 0; i < d.entries.size(); ++i) {
    environment(d, i);
    pins(d, d.entries[i]);
    const Entry& e = d.entries[i];
    const std::string_view key = e.key.empty() ? last_key(parent_path(e.path)) : std::string_view(e.key);
    if ((yaml || json) && one_of(key, {"image", "container", "base_image", "docker_image", "baseImage"})) {
      Image image;
      if (parse_image(e.value, image)) {
        image.span = e.value_span;
        d.images.push_back(std::move(image));
      }
    }
    if (yaml && one_of(key, {"run", "script", "before_script", "after_script", "command", "commands", "setup", "cmd", "entrypoint", "postCreateCommand"}) &&
        e.value_span.end > e.value_span.begin) {
      const Span span = e.value_span;  // scan_shell() leaves entries alone
      const bool was_quoted = d.unit->text[span.begin] == '"' || d.unit->text[span.begin] == '\'';
      scan_shell(d, was_quoted ? Span{span.begin + 1, span.end - 1} : span);
    }
  }
}

}  // namespace pointsman::audit::config
