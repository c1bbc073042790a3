// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "base/cpu_features.h"
#include "base/json.h"
#include "cli/args.h"
#include "cli/command.h"

namespace pointsman::cli {

int run_version(int argc, char** argv) {
  ArgParser args("version", "Version, compiler, and what this CPU can run.", "  pointsman version --json\n");
  bool json = false;
  args.flag("--json", json, "one JSON object");
  if (auto code = args.parse(argc, argv)) return *code;
  const CpuFeatures cpu = detect_cpu_features();
  const std::string isa = std::string(isa_name(cpu.best_isa())) + (cpu.avx512_bf16 ? "+bf16" : "");
  if (json) {
    Json j = Json::object();
    j.set("schema_version", 1);
    j.set("version", PM_VERSION);
    j.set("compiler", __VERSION__);
    j.set("build_type", PM_BUILD_TYPE);
    j.set("cpu", cpu.model_name);
    j.set("isa", isa);
    j.set("devices", Json(Json::Array{Json("cpu")}));
    std::puts(j.dump(2).c_str());
  } else {
    std::printf("pointsman %s (" PM_BUILD_TYPE ", compiler %s)\ncpu: %s, kernels: %s\n", PM_VERSION, __VERSION__,
                cpu.model_name.c_str(), isa.c_str());
  }
  return kExitOk;
}

}  // namespace pointsman::cli
