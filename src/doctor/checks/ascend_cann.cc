// SPDX-License-Identifier: Apache-2.0
//
// The CANN installation that would be loaded: which one, its version, and whether it is new enough for the SoC.
#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {

CheckResult check_ascend_cann(const Context& context) {
  const AscendState& a = context.ascend;
  if (!a.present()) return CheckResult::not_applicable("no Ascend driver, CANN or npu-smi");
  const CannInstall* cann = a.cann();
  if (cann == nullptr) {
    CheckResult r = CheckResult::ok("no CANN toolkit found");
    r.fail(
        "ascend_cann.missing",
        "an Ascend driver or card is present, CANN is not: looked in ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME, /usr/local/Ascend",
        "install the toolkit and source its set_env.sh; " + context.facts.recommended);
    return r;
  }
  CheckResult r =
      CheckResult::ok(format("CANN {} in {} ({})", cann->version.empty() ? "of unknown version" : cann->version.text(),
                             printable(cann->root, 160), cann->chosen_by));
  r.data = Json::object();
  r.data.set("version", cann->version.text());
  r.data.set("root", printable(cann->root));
  if (!cann->version_file.empty()) r.evidence.push_back("version from " + printable(cann->version_file));
  if (!a.family.empty())
    r.evidence.push_back(format("family {} ({}{})", a.family, a.soc.empty() ? "" : a.soc + ", ", a.soc_source));
  for (size_t i = 1; i < a.installs.size(); ++i) {
    if (a.installs[i].version.compare(cann->version) != 0) {
      r.evidence.push_back(format("another CANN: {} in {}", a.installs[i].version.text(), printable(a.installs[i].root, 160)));
    }
  }
  const auto* soc = a.soc.empty() ? context.facts.family(a.family) : context.facts.soc(a.soc);
  if (soc != nullptr && !soc->min_cann.empty() && !cann->version.empty() && cann->version.compare(Version(soc->min_cann)) < 0) {
    r.fail("ascend_cann.too_old_for_soc",
           format("CANN {} predates the {}: its first version is {}", cann->version.text(), soc->family, soc->min_cann),
           format("install CANN {} or later; {}", soc->min_cann, context.facts.recommended));
  }
  const auto opp = context.machine.env("ASCEND_OPP_PATH");
  if (opp && opp->starts_with('/') && !context.machine.is_folder(*opp)) {
    r.fail("ascend_cann.opp_path_missing",
           format("ASCEND_OPP_PATH is {}, which does not exist: operators will fail at tiling (561002)", printable(*opp)),
           "source set_env.sh of the CANN that you use");
  } else if (opp && cann->chosen_by.starts_with("ASCEND") && !opp->starts_with(cann->root + "/") && a.installs.size() > 1) {
    r.warn("ascend_cann.opp_of_another",
           format("ASCEND_OPP_PATH is {}, outside of {}: runtime and operators of two CANNs", printable(*opp),
                  printable(cann->root)),
           "start a new shell and source one set_env.sh");
  }
  if (a.has_npu() && cann->chosen_by == "default place" && !context.machine.env("ASCEND_OPP_PATH")) {
    r.warn("ascend_cann.env_not_set", "CANN is installed, and its set_env.sh was not sourced in this environment",
           "source " + cann->root + "/set_env.sh");
  }
  return r;
}

}  // namespace pointsman::doctor
