// SPDX-License-Identifier: Apache-2.0
//
// Driver, firmware and CANN as a tuple: the driver's own list of firmware, and the public table of drivers per CANN. A pair
// that the table does not name is "unknown", not wrong.
#include <algorithm>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

std::string ranges_text(const std::vector<VersionRange>& ranges) {
  std::string out;
  for (const auto& [first, last] : ranges) out += format("{}{} to {}", out.empty() ? "" : ", ", first, last);
  return out;
}

std::string joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out;
}

// "25.2.X" as a bound from below: 25.2 with the smallest release candidate.
bool older_than(const Version& driver, const std::string& pattern) {
  return !driver.matches(pattern) &&
         driver.compare(Version(lower(pattern).ends_with(".x") ? pattern.substr(0, pattern.size() - 2) + ".alpha0" : pattern)) <
             0;
}

void check_firmware(const AscendState& a, CheckResult& r) {
  if (!a.firmware) {
    r.evidence.push_back("firmware: no version.info (containers often do not mount it)");
    return;
  }
  r.evidence.push_back(
      format("firmware {} (package {}), {}", a.firmware->version.text(), a.firmware->package.text(), a.firmware->path));
  if (!a.driver->compatible_firmware.empty() && !a.firmware->version.empty() &&
      !in_ranges(a.firmware->version, a.driver->compatible_firmware)) {
    r.fail("ascend_driver.firmware_mismatch",
           format("firmware {} is outside what driver {} takes: {}", a.firmware->version.text(), a.driver->version.text(),
                  ranges_text(a.driver->compatible_firmware)),
           "install the firmware package that was released with the driver, then reboot");
  } else if (!a.firmware->compatible_driver.empty() && !in_ranges(a.driver->package, a.firmware->compatible_driver)) {
    r.warn("ascend_driver.firmware_names_other_drivers",
           format("driver {} is not among those that firmware {} names: {}", a.driver->package.text(),
                  a.firmware->version.text(), ranges_text(a.firmware->compatible_driver)),
           "install driver and firmware of one package version");
  }
}

// Cards of the 950 generation have drivers of their own.
bool is_950(const AscendState& a) {
  return a.family == "950PR" || a.family == "950DT";
}

void check_pair(const Context& context, const Version& driver, const Version& cann, CheckResult& r) {
  const VersionFacts& facts = context.facts;
  if (is_950(context.ascend)) {
    std::string known;
    for (const auto& row : facts.hardware_drivers) {
      if (row.hardware.starts_with("others") || Version(row.cann).compare(cann) != 0) continue;
      if (driver.matches(row.hdk)) {
        r.evidence.push_back(format("driver {} goes with CANN {} on {}", driver.text(), row.cann, row.hardware));
        return;
      }
      known += format("{}{} for {}", known.empty() ? "" : ", ", row.hdk, row.hardware);
    }
    r.evidence.push_back(format("unknown pair: driver {}, CANN {} on {}{}", driver.text(), cann.text(), context.ascend.family,
                                known.empty() ? "" : "; the table names " + known));
    return;
  }
  const auto* row = facts.driver_row(cann);
  if (row == nullptr || row->hdk.empty()) {
    r.evidence.push_back(format("unknown pair: the table of {} has no row for CANN {}", facts.generated, cann.text()));
    return;
  }
  const auto listed = [&](const std::string& pattern) { return driver.matches(pattern); };
  if (std::any_of(row->excluded.begin(), row->excluded.end(), listed)) {
    r.fail("ascend_driver.excluded",
           format("driver {} is named as incompatible with CANN {}; listed: {}", driver.text(), cann.text(), joined(row->hdk)),
           format("install a driver package of {} (with its firmware), or an older CANN", joined(row->hdk)));
  } else if (std::any_of(row->hdk.begin(), row->hdk.end(), listed)) {
    r.evidence.push_back(format("listed pair: driver {} with CANN {} (row {})", driver.text(), cann.text(), row->cann));
  } else if (std::all_of(row->hdk.begin(), row->hdk.end(), [&](const std::string& p) { return older_than(driver, p); })) {
    r.fail("ascend_driver.too_old",
           format("driver {} is older than every driver that is listed for CANN {}: {}", driver.text(), cann.text(),
                  joined(row->hdk)),
           format("install a driver package of {} (with its firmware), or an older CANN", joined(row->hdk)));
  } else {
    r.evidence.push_back(
        format("unknown pair: driver {} is not in the row of CANN {}: {}", driver.text(), row->cann, joined(row->hdk)));
  }
}

}  // namespace

CheckResult check_ascend_driver(const Context& context) {
  const AscendState& a = context.ascend;
  if (!a.present()) return CheckResult::not_applicable("no Ascend driver, CANN or npu-smi");
  CheckResult r = CheckResult::ok("");
  const Version cann = a.cann() != nullptr ? a.cann()->version : Version();
  r.summary = format("driver {}, {}{}",
                     a.driver ? a.driver->package.text() : (a.smi.version.empty() ? "unknown" : a.smi.version + " (npu-smi)"),
                     counted(static_cast<int64_t>(a.smi.npus.size()), "device"),
                     a.family.empty() ? "" : format(" of family {}", a.family));
  if (a.npu_smi_found && !a.npu_smi_ok) {
    r.fail("ascend_driver.npu_smi_failed", "npu-smi info: " + a.npu_smi_error,
           "the driver is not answering: check 'lsmod | grep drv', the group of /dev/davinci_manager, and whether the "
           "container has the devices");
  } else if (a.driver && !a.npu_smi_found && a.device_nodes) {
    r.warn("ascend_driver.no_npu_smi", "a driver and device nodes are present, npu-smi is not in PATH",
           "add /usr/local/sbin to PATH, or mount it into the container");
  } else if (a.driver && a.npu_smi_ok && a.smi.npus.empty()) {
    r.fail("ascend_driver.no_devices", "npu-smi answers and lists no device",
           "pass the devices to the container (--device /dev/davinciN, /dev/davinci_manager, /dev/devmm_svm, /dev/hisi_hdc)");
  }
  std::string unhealthy;
  for (const Npu& npu : a.smi.npus) {
    if (npu.health != "OK" && unhealthy.size() < 200)
      unhealthy += format("{}{}/{}: {}", unhealthy.empty() ? "" : ", ", npu.npu, npu.chip, npu.health);
  }
  if (!unhealthy.empty()) {
    r.fail("ascend_driver.unhealthy", "devices that are not OK: " + unhealthy,
           "npu-smi info -t health -i ID names the fault; leave these devices out (ASCEND_RT_VISIBLE_DEVICES)");
  }
  if (a.driver) {
    r.evidence.push_back(format("driver {}, {}", a.driver->package.text(), a.driver->path));
    if (!a.smi.version.empty() && Version(a.smi.version).compare(a.driver->package) != 0) {
      r.warn("ascend_driver.two_versions",
             format("npu-smi belongs to driver {}, version.info says {}", a.smi.version, a.driver->package.text()),
             "in a container: mount npu-smi and the driver folder of the host together");
    }
    check_firmware(a, r);
  }
  const Version driver = a.driver ? a.driver->package : Version(a.smi.version);
  if (!driver.empty() && !cann.empty()) check_pair(context, driver, cann, r);
  r.data = Json::object();
  r.data.set("driver", driver.text());
  r.data.set("firmware", a.firmware ? a.firmware->version.text() : "");
  r.data.set("devices", static_cast<int64_t>(a.smi.npus.size()));
  r.data.set("family", a.family);
  return r;
}

}  // namespace pointsman::doctor
