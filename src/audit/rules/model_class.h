// SPDX-License-Identifier: Apache-2.0
//
// The summary rules T1-T4: one finding for the whole tree, at the first place that speaks for the class.
#pragma once

#include <string>

#include "audit/rule.h"
#include "audit/verdict.h"

namespace pointsman::audit::rules {

// Notes the first function, class or import of a file that is a sign: names with one of `parts` in them, imports of `modules`.
void note_signs(const python::Module& m, std::initializer_list<std::string_view> parts, std::initializer_list<std::string_view> modules, Report& out);

// Reports the verdict of `model_class` at the first note of `rule`; nothing when the tree is not of that class or has no note.
void report_class(const Tree& tree, ModelClass model_class, std::string_view rule, Report& out);

}  // namespace pointsman::audit::rules
