// SPDX-License-Identifier: Apache-2.0
#include "doctor/ascend.h"

#include <algorithm>

#include "base/fs.h"
#include "base/log.h"
#include "doctor/machine.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr const char* kKernelFolder = "/opp/built-in/op_impl/ai_core/tbe/kernel/config";
constexpr const char* kArches[] = {"aarch64-linux", "x86_64-linux"};

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Where the driver is: /etc/ascend_install.info says so when it was installed elsewhere.
std::string driver_folder(const Machine& machine) {
  const auto info = machine.read("/etc/ascend_install.info");
  if (info) {
    if (const auto path = field(*info, "Driver_Install_Path_Param="); path && path->starts_with('/')) {
      return without_slash(std::string(*path));
    }
  }
  return "/usr/local/Ascend";
}

std::optional<PackageInfo> package(const Machine& machine, const std::string& path) {
  const auto text = machine.read(path);
  if (!text) return std::nullopt;
  return parse_package_info(*text, path);
}

// "version=8.5.0" of an install.info, "Version=8.5.0.2.220" with "version_dir=8.5.0" of a version.info.
Version version_in(std::string_view text) {
  for (const std::string_view key : {"version_dir=", "version=", "Version="}) {
    if (const auto v = field(text, key); v && !v->empty()) return Version(*v);
  }
  return {};
}

std::optional<CannInstall> look_at_root(const Machine& machine, const std::string& root, std::string chosen_by) {
  CannInstall install{.root = root, .chosen_by = std::move(chosen_by)};
  std::vector<std::string> files;
  for (const char* arch : kArches) files.push_back(format("{}/{}/ascend_toolkit_install.info", root, arch));
  for (const char* part : {"compiler", "runtime", "opp"}) files.push_back(format("{}/{}/version.info", root, part));
  for (const std::string& file : files) {
    const auto text = machine.read(file);
    if (!text) continue;
    install.version = version_in(*text);
    if (install.version.empty()) continue;
    install.version_file = file;
    break;
  }
  for (const char* arch : kArches) {
    const auto text = machine.read(format("{}/{}/ascend_ops_install.info", root, arch));
    if (text && install.ops_version.empty()) install.ops_version = version_in(*text);
  }
  if (install.ops_version.empty()) {
    if (const auto text = machine.read(root + "/opp/version.info")) install.ops_version = version_in(*text);
  }
  const std::string kernels = root + kKernelFolder;
  install.has_kernel_folder = machine.is_folder(kernels);
  for (const std::string& name : machine.list(kernels)) {
    if (name.starts_with("ascend") && install.kernel_socs.size() < 64) install.kernel_socs.push_back(printable(name, 40));
  }
  if (install.version.empty() && !install.has_kernel_folder) return std::nullopt;
  return install;
}

// "torch-2.9.0+cpu.dist-info" -> "2.9.0+cpu" for "torch".
std::string dist_version(std::string_view name, std::string_view package_name) {
  constexpr std::string_view kSuffix = ".dist-info";
  if (!name.ends_with(kSuffix) || name.size() <= package_name.size() + 1 + kSuffix.size()) return {};
  if (!name.starts_with(package_name) || name[package_name.size()] != '-') return {};
  name.remove_suffix(kSuffix.size());
  return printable(name.substr(package_name.size() + 1), 60);
}

void look_at_site(const Machine& machine, const std::string& site, std::vector<PythonEnvironment>& out) {
  if (out.size() >= 32 || std::any_of(out.begin(), out.end(), [&](const PythonEnvironment& p) { return p.site == site; }))
    return;
  PythonEnvironment env{.site = site};
  for (const std::string_view piece : split(site, '/')) {
    if (piece.starts_with("python3.")) env.python = Version(piece.substr(6));
  }
  for (const std::string& name : machine.list(site)) {
    for (auto [package_name, where] :
         {std::pair{"torch", &env.torch}, {"torch_npu", &env.torch_npu}, {"torchvision", &env.torchvision}}) {
      const std::string version = dist_version(name, package_name);
      if (!version.empty()) *where = version;
    }
  }
  if (!env.torch.empty() || !env.torch_npu.empty()) out.push_back(std::move(env));
}

void look_at_prefix(const Machine& machine, const std::string& prefix, std::vector<PythonEnvironment>& out) {
  for (const std::string& name : machine.list(prefix + "/lib")) {
    if (!name.starts_with("python3")) continue;
    for (const char* packages : {"/site-packages", "/dist-packages"})
      look_at_site(machine, prefix + "/lib/" + name + packages, out);
  }
}

// The family of a SoC name that the tables know, or of a family's own name.
void name_soc(const VersionFacts& facts, std::string_view name, std::string source, AscendState& state) {
  const std::string full = lower(name).starts_with("ascend") ? std::string(name) : "Ascend" + std::string(name);
  if (const auto* row = facts.soc(full)) {
    state.soc = full;
    state.family = row->family;
  } else if (const auto* family = facts.family(name)) {
    state.family = family->family;
  } else {
    return;
  }
  state.soc_source = std::move(source);
}

void find_soc(const VersionFacts& facts, const std::string& wanted, AscendState& state) {
  if (!wanted.empty()) {
    name_soc(facts, wanted, "--soc", state);
    return;
  }
  if (state.smi.npus.empty()) return;
  const std::string& name = state.smi.npus[0].name;
  if (name == "Ascend910" || name == "910") {
    // The A3's npu-smi says "Ascend910" for every die and has a column Phy-ID; the first 910 has neither.
    if (state.smi.has_phy_id_column) {
      state.family = "A3";
      state.soc_source = "npu-smi: \"Ascend910\" with a column Phy-ID";
    }
    return;
  }
  name_soc(facts, name, "npu-smi", state);
}

}  // namespace

std::vector<PythonEnvironment> find_pythons(const Machine& machine) {
  std::vector<PythonEnvironment> out;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const auto prefix = machine.env(variable)) look_at_prefix(machine, without_slash(*prefix), out);
  }
  look_at_prefix(machine, "/usr/local", out);
  // Ascend images install Python below /usr/local/python3.11.13.
  for (const std::string& name : machine.list("/usr/local")) {
    if (name.starts_with("python3")) look_at_prefix(machine, "/usr/local/" + name, out);
  }
  look_at_prefix(machine, "/usr", out);
  return out;
}

AscendState look_at_ascend(const Machine& machine, const VersionFacts& facts, const std::string& soc) {
  AscendState state;
  for (const std::string& name : machine.list("/dev")) {
    if (name.starts_with("davinci") && name != "davinci_manager") state.device_nodes = true;
  }
  const std::string base = driver_folder(machine);
  state.driver = package(machine, base + "/driver/version.info");
  state.firmware = package(machine, base + "/firmware/version.info");

  const ToolOutput& smi = machine.run(Tool::kNpuSmi);
  state.npu_smi_found = smi.found;
  state.npu_smi_timed_out = smi.timed_out;
  state.npu_smi_ok = smi.ok();
  if (smi.found) state.smi = parse_npu_smi(smi.text);
  if (smi.found && !smi.ok()) {
    const auto lines = lines_of(smi.text);
    state.npu_smi_error =
        smi.timed_out ? "no answer in time"
                      : format("exit code {}{}", smi.exit_code, lines.empty() ? "" : ": " + printable(lines.back(), 120));
  }

  std::vector<std::pair<std::string, std::string>> roots;
  for (const char* variable : {"ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"}) {
    if (const auto path = machine.env(variable); path && path->starts_with('/'))
      roots.emplace_back(without_slash(*path), variable);
  }
  for (const char* path : {"/usr/local/Ascend/cann", "/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/latest"}) {
    roots.emplace_back(path, "default place");
  }
  for (const auto& [root, by] : roots) {
    const bool seen =
        std::any_of(state.installs.begin(), state.installs.end(), [&, r = root](const CannInstall& c) { return c.root == r; });
    if (seen) continue;
    if (auto install = look_at_root(machine, root, by)) state.installs.push_back(std::move(*install));
  }
  if (state.present()) state.pythons = find_pythons(machine);
  find_soc(facts, soc, state);
  return state;
}

}  // namespace pointsman::doctor
