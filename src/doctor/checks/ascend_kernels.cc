// SPDX-License-Identifier: Apache-2.0
//
// The operator package of the SoC. CANN's toolkit runs without it until the first operator, which then fails with 561xxx and a
// text that does not say so.
#include <algorithm>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

std::string joined(const std::vector<std::string>& items) {
  std::string out;
  for (const std::string& item : items) out += (out.empty() ? "" : ", ") + item;
  return out.empty() ? "none" : out;
}

}  // namespace

CheckResult check_ascend_kernels(const Context& context) {
  const AscendState& a = context.ascend;
  const CannInstall* cann = a.cann();
  if (cann == nullptr) return CheckResult::not_applicable("no CANN");
  CheckResult r = CheckResult::ok(format("kernels for: {}", joined(cann->kernel_socs)));
  r.data = Json::object();
  r.data.set("kernels", Json(Json::Array(cann->kernel_socs.begin(), cann->kernel_socs.end())));
  r.data.set("ops_version", cann->ops_version.text());
  if (!cann->ops_version.empty()) r.evidence.push_back("operator package " + cann->ops_version.text());
  if (a.family.empty()) {
    if (cann->kernel_socs.empty()) return CheckResult::not_applicable("CANN without kernels, and no card that would need them");
    r.evidence.push_back("the SoC is not known (no npu-smi): give --soc to check it");
    return r;
  }
  const std::vector<std::string> wanted = kernel_folders(a.family);
  const bool found = std::any_of(wanted.begin(), wanted.end(), [&](const std::string& w) {
    return std::find(cann->kernel_socs.begin(), cann->kernel_socs.end(), w) != cann->kernel_socs.end();
  });
  if (wanted.empty()) {
    r.evidence.push_back("unknown which package serves family " + a.family);
  } else if (!found) {
    r.fail("ascend_kernels.missing",
           format("the {} needs kernels of {}; installed: {}. The first operator will fail with 561xxx",
                  a.soc.empty() ? a.family : a.soc, joined(wanted), joined(cann->kernel_socs)),
           format("install the kernels (to CANN 8.3) or ops (8.5 and later) package for {} of version {}",
                  kernel_package_hint(a.family), cann->version.text()));
  }
  if (!cann->ops_version.empty() && !cann->version.empty()) {
    // "8.5.0.2.220" belongs to "8.5.0".
    const bool same = cann->ops_version.matches(cann->version.text()) || cann->version.matches(cann->ops_version.text());
    if (!same) {
      r.fail("ascend_kernels.version",
             format("operator package {} in a toolkit {}", cann->ops_version.text(), cann->version.text()),
             "install toolkit and operator package of one version");
    }
  }
  return r;
}

}  // namespace pointsman::doctor
