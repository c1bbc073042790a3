// SPDX-License-Identifier: Apache-2.0
//
// Which instruction sets the CPU has, and which kernels will therefore run.
#include "base/cpu_features.h"
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {

CheckResult check_cpu(const Context& context) {
  const std::string cpuinfo = context.machine.read("/proc/cpuinfo").value_or("");
  const bool is_arm = field(cpuinfo, "CPU implementer").has_value();
  if (is_arm) {
    CheckResult r = CheckResult::ok(
        "64-bit Arm: this program's kernels are for x86-64; the port checks (audit, doctor, compare) run anywhere");
    return r;
  }
  const CpuFeatures cpu = context.machine.cpu_features();
  if (cpuinfo.empty() && !context.machine.is_live()) return CheckResult::not_applicable("no /proc/cpuinfo");
  const std::string wanted = context.machine.env("POINTSMAN_ISA").value_or("");
  const Result<Isa> isa = choose_isa(wanted, cpu);
  std::string sets = isa_name(cpu.best_isa());
  if (cpu.avx512_bf16) sets += ", bf16 dot";
  if (cpu.avx512_vnni) sets += ", vnni";
  CheckResult r = CheckResult::ok(format("{}: {}; kernels: {}{}", cpu.model_name.empty() ? "unknown CPU" : cpu.model_name, sets,
                                         isa.ok() ? isa_name(*isa) : "none", wanted.empty() ? "" : " (POINTSMAN_ISA)"));
  r.data = Json::object();
  r.data.set("model", cpu.model_name);
  r.data.set("best_isa", isa_name(cpu.best_isa()));
  r.data.set("kernels", isa.ok() ? Json(isa_name(*isa)) : Json());
  r.data.set("avx512_bf16", cpu.avx512_bf16);
  r.data.set("avx512_vnni", cpu.avx512_vnni);

  if (const auto flags = field(cpuinfo, "flags"); flags && !contains(*flags, "sse4_2")) {
    r.fail("cpu.below_x86_64_v2", "no SSE4.2: the program needs an x86-64-v2 CPU",
           "use another machine, or give the virtual machine the host's CPU model");
  }
  if (!isa.ok()) {
    r.fail("cpu.isa_not_supported", isa.status().message(),
           "unset POINTSMAN_ISA, or choose scalar, avx2 or avx512 as the CPU has it");
  } else if (!cpu.avx2) {
    r.warn("cpu.no_avx2", "no AVX2 with FMA and F16C: the scalar reference kernels will run, an order of magnitude slower",
           "in a virtual machine pass the host's CPU model through (for example -cpu host); otherwise use another machine");
  }
  const std::string governor(trim(context.machine.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").value_or("")));
  if (!governor.empty()) r.evidence.push_back("frequency governor " + printable(governor, 40));
  if (governor == "powersave") {
    const std::string driver(trim(context.machine.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver").value_or("")));
    // intel_pstate and amd-pstate in active mode call their normal, dynamic mode "powersave".
    if (!driver.starts_with("intel_pstate") && !driver.starts_with("amd-pstate")) {
      r.warn("cpu.governor", "the frequency governor is powersave: the CPU stays at its lowest clock",
             "cpupower frequency-set -g performance");
    }
  }
  return r;
}

}  // namespace pointsman::doctor
