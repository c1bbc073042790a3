// SPDX-License-Identifier: Apache-2.0
// What the doctor reads of an Ascend installation: version.info, the table of npu-smi, mounts, the recorded disk; and the
// version tables. Order is an order: antisymmetric, equal to itself.
#include "doctor/ascend.h"
#include "doctor/disk_probe.h"
#include "doctor/machine.h"
#include "doctor/text.h"
#include "fuzz_input.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto text = pm::fuzz::text_of(data, size);
  const auto [first, second] = pm::fuzz::split(text);
  const pm::doctor::Version a(first), b(second);
  pm::fuzz::expect(a.compare(a) == 0 && a.compare(b) == -b.compare(a));
  a.matches(second);
  const auto info = pm::doctor::parse_package_info(text, "version.info");
  pm::fuzz::expect(info.compatible_firmware.size() <= 64);
  pm::doctor::in_ranges(a, info.compatible_firmware);
  const auto smi = pm::doctor::parse_npu_smi(text);
  pm::fuzz::expect(smi.npus.size() <= 4096);
  for (const auto& npu : smi.npus) pm::fuzz::expect(npu.npu >= 0 && npu.chip >= 0 && npu.name.size() <= 60);
  pm::doctor::mount_of(first, second);
  pm::doctor::cpu_features_of_cpuinfo(text);
  if (const auto cpus = pm::doctor::parse_cpu_list(first, 1024)) pm::fuzz::expect(cpus->size() <= 1024);
  const std::string shown = pm::doctor::printable(text, 64);
  pm::fuzz::expect(shown.size() <= 70);
  (void)pm::doctor::parse_version_facts(text);
  if (const auto json = pm::parse_json(text); json.ok()) {
    if (const auto disk = pm::doctor::parse_disk_json(*json); disk.ok()) pm::fuzz::expect(disk->samples.size() <= 256);
  }
  return 0;
}
