// SPDX-License-Identifier: Apache-2.0
//
// What a port will take, computed from what was found: shares of the calls and a work list. No percentage is fixed anywhere.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "audit/audit.h"

namespace pointsman::audit {

// What has to be done about a finding.
enum class Work : uint8_t {
  kRename,   // mechanical: another name for the same thing
  kFuse,     // runs, slowly: a fused operator exists
  kCheck,    // runs, and may compute something else: numbers have to be compared
  kKernel,   // own kernels or extensions: to be written or replaced
  kBlocks,   // fails or hangs until it is changed by hand
  kNote,     // versions and remarks
};
const char* work_words(Work work);
Work work_of(const Finding& finding);

enum class ModelClass : uint8_t { kDense, kMoe, kVision, kReinforcement };
const char* model_class_words(ModelClass c);

struct ClassVerdict {
  ModelClass model_class;
  size_t signs = 0;     // names and imports that speak for it
  size_t findings = 0;  // about what is particular to it
  std::string text;     // one sentence
};

struct WorkItem {
  Work work;
  std::string rule;
  Severity severity;
  size_t findings = 0;
  size_t files = 0;
  Location first;
  std::string fix;
};

struct Verdict {
  size_t uses = 0;      // calls of torch and CUDA, kernels, launches, extensions
  size_t places[6] = {};  // lines with findings, by Work; a line counts once, for its worst
  size_t direct = 0;    // uses - places with something to do; maps one to one
  std::vector<ClassVerdict> classes;  // those that the tree has signs of
  std::vector<WorkItem> work;         // in the order of doing: what blocks, kernels, numbers, names, speed
};

// Findings that are silenced or of confidence "hint" count for nothing.
Verdict make_verdict(std::span<const Finding> findings, const ApiUse& api, const ModelSigns& signs);

// Percent of the uses that map one to one; 100 when there are none.
double direct_percent(const Verdict& verdict);

}  // namespace pointsman::audit
