// SPDX-License-Identifier: Apache-2.0
//
// torch, torch_npu, CANN and Python as a tuple, against the compatibility table that torch_npu publishes.
#include <algorithm>
#include <cstdlib>

#include "base/log.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

bool lists(const std::vector<std::string>& items, const Version& version) {
  return std::any_of(items.begin(), items.end(), [&](const std::string& item) { return Version(item).compare(version) == 0; });
}

// torch_npu releases of these lines run on a range of CANNs, not on their own alone.
bool in_extension_range(const VersionFacts& facts, const VersionFacts::TorchRow& row, const Version& cann) {
  const size_t dash = row.branch.rfind('-');
  if (dash == std::string::npos) return false;
  return lists(facts.extension_releases, Version(row.branch.substr(dash + 1))) && lists(facts.extension_cann, cann);
}

// The row for this torch and, if possible, this CANN: what to install instead.
std::string advice(const VersionFacts& facts, const Version& torch, const Version& cann) {
  const VersionFacts::TorchRow* best = nullptr;
  for (const auto& row : facts.torch_rows) {
    if (!cann.empty() && Version(row.cann).compare(cann) != 0) continue;
    if (best == nullptr || Version(row.torch).compare(torch) == 0) best = &row;
  }
  if (best == nullptr) return facts.recommended;
  return format("pip install torch=={} torch-npu=={} (with CANN {})", best->torch, best->torch_npu, best->cann);
}

}  // namespace

CheckResult check_ascend_torch(const Context& context) {
  const AscendState& a = context.ascend;
  const PythonEnvironment* python = a.python();
  if (!a.present()) return CheckResult::not_applicable("no Ascend driver, CANN or npu-smi");
  if (python == nullptr) return CheckResult::not_applicable("no torch in VIRTUAL_ENV, CONDA_PREFIX, /usr/local or /usr");
  const VersionFacts& facts = context.facts;
  const Version torch(python->torch), npu(python->torch_npu), cann = a.cann() != nullptr ? a.cann()->version : Version();
  CheckResult r = CheckResult::ok(format("torch {}, torch_npu {}, CANN {}, Python {}", torch.empty() ? "absent" : torch.text(),
                                         npu.empty() ? "absent" : npu.text(), cann.empty() ? "?" : cann.text(),
                                         python->python.empty() ? "?" : python->python.text()));
  r.evidence.push_back(printable(python->site));
  r.data = Json::object();
  r.data.set("torch", torch.text());
  r.data.set("torch_npu", npu.text());
  r.data.set("python", python->python.text());
  r.data.set("site", printable(python->site));
  if (npu.empty()) {
    if (a.has_npu())
      r.warn("ascend_torch.no_torch_npu", "torch is installed without torch_npu: it will not see the NPUs",
             advice(facts, torch, cann));
    return r;
  }
  if (torch.empty()) {
    r.fail("ascend_torch.no_torch", format("torch_npu {} is installed without torch", npu.text()),
           advice(facts, npu.base(), cann));
    return r;
  }
  const auto* row = facts.torch_row(npu);
  const Version expected = row != nullptr ? Version(row->torch) : npu.base();
  if (torch.base().compare(expected) != 0) {
    r.fail("ascend_torch.torch_mismatch",
           format("torch_npu {} is built for torch {}, found torch {}", npu.text(), expected.text(), torch.text()),
           format("pip install torch=={}, or the torch_npu of your torch: {}", expected.text(),
                  advice(facts, torch.base(), cann)));
  }
  if (row == nullptr) {
    r.evidence.push_back(format("unknown: torch_npu {} is not in the table of {} (post releases appear between readings)",
                                npu.text(), facts.generated));
  } else if (!cann.empty() && !cann.matches(row->cann) && Version(row->cann).compare(cann) != 0) {
    if (in_extension_range(facts, *row, cann)) {
      r.evidence.push_back(
          format("its own CANN is {}; releases of branch {} also run on CANN {}", row->cann, row->branch, cann.text()));
    } else if (cann.compare(Version(row->cann)) < 0) {
      r.fail("ascend_torch.cann_too_old",
             format("torch_npu {} goes with CANN {}, found the older {}", npu.text(), row->cann, cann.text()),
             format("install CANN {}, or: {}", row->cann, advice(facts, torch.base(), cann)));
    } else {
      r.warn("ascend_torch.cann_other",
             format("torch_npu {} goes with CANN {}, found the newer {}", npu.text(), row->cann, cann.text()),
             advice(facts, torch.base(), cann));
    }
  } else if (!cann.empty()) {
    r.evidence.push_back(format("listed row: torch_npu {}, torch {}, CANN {}", row->torch_npu, row->torch, row->cann));
  }
  const auto pythons = facts.torch_python.find(torch.base().text());
  if (pythons != facts.torch_python.end() && !python->python.empty()) {
    const bool known = std::any_of(pythons->second.begin(), pythons->second.end(),
                                   [&](const std::string& p) { return python->python.matches(p.substr(0, p.find('+'))); });
    if (!known) {
      r.fail("ascend_torch.python",
             format("torch_npu for torch {} has no wheel for Python {}", torch.base().text(), python->python.text()),
             format("use Python {} to {}", pythons->second.front(), pythons->second.back()));
    }
  }
  return r;
}

}  // namespace pointsman::doctor
