// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/model_class.h"

#include <algorithm>

#include "audit/rules/words.h"

namespace pointsman::audit::rules {

void note_signs(const python::Module& m, std::initializer_list<std::string_view> parts, std::initializer_list<std::string_view> modules, Report& out) {
  for (const python::Stmt* s : m.statements()) {
    if (s->kind == python::StmtKind::kFunction || s->kind == python::StmtKind::kClass) {
      if (std::any_of(parts.begin(), parts.end(), [&](std::string_view p) { return contains(s->name, p); })) {
        out.note("sign", std::string(s->name), s->header);
        return;
      }
    } else if (s->kind == python::StmtKind::kImport || s->kind == python::StmtKind::kImportFrom) {
      const auto is_sign = [&](std::string_view name) { return std::any_of(modules.begin(), modules.end(), [&](std::string_view x) { return python::is_under(name, x); }); };
      const bool any = s->kind == python::StmtKind::kImportFrom ? is_sign(s->name) : std::any_of(s->imports.begin(), s->imports.end(), [&](const python::ImportedName& n) { return is_sign(n.name); });
      if (any) {
        out.note("sign", "import", s->header);
        return;
      }
    }
  }
}

void report_class(const Tree& tree, ModelClass model_class, std::string_view rule, Report& out) {
  const auto notes = tree.notes_of(rule, "sign");
  if (notes.empty()) return;
  const Verdict v = make_verdict(tree.findings, tree.api, tree.signs);
  for (const ClassVerdict& c : v.classes) {
    if (c.model_class == model_class) out.add(*notes.front(), Confidence::kLikely, std::string("port of a model of class ") + model_class_words(model_class) + ": " + c.text);
  }
}

}  // namespace pointsman::audit::rules
