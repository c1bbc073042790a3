// SPDX-License-Identifier: Apache-2.0
//
// Comments that silence findings:
//   x = y.cuda()  # pointsman: ignore[X4] only on the training machines
//   // pointsman: ignore[R20,X16]        on a line of its own: the next line
//   # pointsman: ignore-file[X4]         anywhere: the whole file
// Without brackets every rule is meant. The text after the bracket is the justification.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "audit/finding.h"
#include "audit/source.h"

namespace pointsman::audit {

struct Suppression {
  Location location;               // of the comment
  std::string excerpt;
  int line = 0;                    // of the file that it is about; 0: the whole file
  std::vector<std::string> rules;  // empty: all
  std::string justification;
  bool used = false;
};

std::vector<Suppression> find_suppressions(const Unit& unit);

// Marks what is silenced, and the suppressions that were of use.
void apply(std::vector<Suppression>& suppressions, std::vector<Finding>& findings);

}  // namespace pointsman::audit
