// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA driver, CUDA runtime and torch as a tuple. The smallest driver per CUDA major version is NVIDIA's published
// minor-version compatibility rule: 450.80.02 for CUDA 11, 525.60.13 for 12, 580.65.06 for 13.
#include <algorithm>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

struct Floor {
  long cuda_major;
  const char* driver;
};
constexpr Floor kFloors[] = {{11, "450.80.02"}, {12, "525.60.13"}, {13, "580.65.06"}};

// The word after `key` in `text`.
std::string word_after(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  const auto words = words_of(text.substr(at + key.size(), 64));
  return words.empty() ? "" : printable(words[0], 30);
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue ...": the first word that is a driver version.
std::string kernel_module_version(std::string_view text) {
  for (const std::string_view word : words_of(text.substr(0, text.find('\n')))) {
    const auto parts = split(word, '.');
    if (parts.size() >= 2 && parse_int(parts[0]).value_or(0) >= 300 && parse_int(parts[1])) return printable(word, 30);
  }
  return {};
}

// "2.9.0+cu130" -> 13.
long cuda_major_of_torch(std::string_view version) {
  const size_t at = version.find("+cu");
  if (at == std::string_view::npos) return -1;
  const auto digits = leading_int(version.substr(at + 3));
  return digits && *digits >= 90 && *digits < 10000 ? static_cast<long>(*digits / 10) : -1;
}

std::string cuda_of(const Machine& machine) {
  if (const auto text = machine.read("/usr/local/cuda/version.json")) {
    const Result<Json> json = parse_json(*text);
    const Json* cuda = json.ok() ? json->find("cuda") : nullptr;
    const Json* version = cuda != nullptr ? cuda->find("version") : nullptr;
    if (version != nullptr && version->is_string()) return printable(version->as_string(), 30);
  }
  if (const auto text = machine.read("/usr/local/cuda/version.txt")) return word_after(*text, "CUDA Version");
  return {};
}

void check_floor(const Version& driver, long cuda_major, const std::string& what, CheckResult& r) {
  for (const Floor& floor : kFloors) {
    if (floor.cuda_major != cuda_major) continue;
    if (driver.compare(Version(floor.driver)) < 0) {
      r.fail("cuda.driver_too_old", format("{} needs driver {} or later, found {}", what, floor.driver, driver.text()),
             format("install driver {} or later, or a build for an older CUDA", floor.driver));
    }
    return;
  }
  r.evidence.push_back(format("unknown: no driver floor is known for {}", what));
}

}  // namespace

CheckResult check_cuda(const Context& context) {
  const Machine& machine = context.machine;
  const ToolOutput& smi = machine.run(Tool::kNvidiaSmi);
  const std::string module = kernel_module_version(machine.read("/proc/driver/nvidia/version").value_or(""));
  if (module.empty() && !smi.found) return CheckResult::not_applicable("no NVIDIA driver");
  const std::string library = word_after(smi.text, "Driver Version:"), cuda_limit = word_after(smi.text, "CUDA Version:");
  const ToolOutput& query = machine.run(Tool::kNvidiaSmiQuery);
  size_t gpus = 0;
  CheckResult r = CheckResult::ok("");
  if (query.ok()) {
    for (const std::string_view line : lines_of(query.text)) {
      // "0, NVIDIA H200, 580.95.05, 143771 MiB, 00000000:18:00.0"
      const auto cells = split(line, ',');
      if (cells.size() < 5 || !parse_int(trim(cells[0]))) continue;
      ++gpus;
      if (r.evidence.size() < 16)
        r.evidence.push_back(
            format("{}: {}, {}", printable(trim(cells[0]), 8), printable(trim(cells[1]), 60), printable(trim(cells[3]), 30)));
    }
  }
  const Version driver(library.empty() ? module : library);
  const std::string runtime = cuda_of(machine);
  std::string torch;
  std::string site;
  for (const PythonEnvironment& p : find_pythons(machine)) {
    if (torch.empty() && cuda_major_of_torch(p.torch) > 0) {
      torch = p.torch;
      site = p.site;
    }
  }
  r.summary = format("driver {}, {} GPU{}, CUDA {}{}", driver.text(), gpus, gpus == 1 ? "" : "s",
                     runtime.empty() ? "runtime not found" : runtime, torch.empty() ? "" : ", torch " + torch);
  r.data = Json::object();
  r.data.set("driver", driver.text());
  r.data.set("gpus", static_cast<int64_t>(gpus));
  r.data.set("cuda_limit", cuda_limit);
  r.data.set("cuda_runtime", runtime);
  r.data.set("torch", torch);
  if (smi.found && !smi.ok()) {
    const bool mismatch = contains(smi.text, "version mismatch");
    const auto lines = lines_of(smi.text);
    r.fail(mismatch ? "cuda.driver_library_mismatch" : "cuda.nvidia_smi_failed",
           smi.timed_out ? "nvidia-smi does not answer"
                         : format("nvidia-smi: {}",
                                  lines.empty() ? format("exit code {}", smi.exit_code) : printable(lines.front(), 160)),
           mismatch ? "the driver was upgraded under a running kernel: reload the module (rmmod nvidia_uvm nvidia, modprobe "
                      "nvidia) or reboot"
                    : "check 'dmesg | grep -i nvrm', and that the container was given the GPUs");
    return r;
  }
  if (!module.empty() && !library.empty() && Version(module).compare(Version(library)) != 0) {
    r.fail("cuda.driver_library_mismatch", format("kernel module {}, user libraries {}", module, library),
           "reboot after a driver upgrade; in a container use the host's driver libraries");
  }
  if (gpus == 0 && query.found) r.warn("cuda.no_gpu", "a driver without a GPU", "pass the GPUs to the container (--gpus all)");
  if (!runtime.empty()) check_floor(driver, Version(runtime).major(), "the CUDA " + runtime + " runtime", r);
  if (!torch.empty()) {
    check_floor(driver, cuda_major_of_torch(torch), "torch " + torch, r);
    if (!runtime.empty() && Version(runtime).major() != cuda_major_of_torch(torch)) {
      r.warn(
          "cuda.two_majors",
          format("torch {} brings its own CUDA, {} is installed: extensions compiled here will not load there", torch, runtime),
          "compile extensions with the CUDA major version of torch");
    }
    r.evidence.push_back(printable(site));
  }
  return r;
}

}  // namespace pointsman::doctor
