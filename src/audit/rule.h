// SPDX-License-Identifier: Apache-2.0
//
// How to write a rule.
//
// One rule is one file rules/<id>_<name>.cc and one line in rules/rule_list.inc (sorted by id), with fixtures in
// tests/audit/fixtures/<id>/. Look at rules/r16_init_backend.cc (names and literals), x04_device_strings.cc (strings),
// x01_invented_api.cc (facts) and r01_gate.cc (data flow) first.
//
//   namespace pointsman::audit::rules {
//   namespace {
//   void python_file(const python::Module& m, Report& out) {
//     for (const python::Expr* call : m.calls()) {
//       if (call->full_name != "torch.jit.trace") continue;                // names are resolved through imports and aliases
//       if (python::runs_only_on_cuda(*call)) continue;                    // guarded branches do not fire
//       out.add(*call->callee(), "torch.jit.trace freezes ...");           // the receiver was resolved: certain, else likely
//     }
//   }
//   }  // namespace
//   const Rule& r15_jit_trace() {
//     static constexpr Rule kRule = {.id = "R15", .name = "jit-trace", .title = ..., .severity = Severity::kWrongNumbers, .why = ...,
//                                    .fix = ..., .versions = ..., .source = "guide table, row 15; ...", .python = python_file};
//     return kRule;
//   }
//   }  // namespace pointsman::audit::rules
//
// What a callback may ask: python/ast.h (tree, lists of calls, strings, references) and python/query.h (guards, loops, flows_from,
// definitions_of, constant_string); cpp/file.h (calls with arguments, launches, includes, runs_under); config/document.h (entries,
// environment, pins, images, commands); Report (facts, soc). Callbacks are called from several threads, for one unit each; they
// keep no state. Code blocks of documents and cells of notebooks arrive as units of their language.
//
// Facts of several files: note() what a file says, and read the notes of all files in the tree callback, which runs once, after
// every file. Environment, pins and images of the tree are collected without a note (Tree).
//
// Confidence. kCertain: an import was resolved and the API is exact, or an exact key has an exact value. kLikely: the receiver is
// not known but the name is distinctive. kHint: a pattern of text. add(Expr) chooses kCertain or kLikely by the resolution.
//
// Wording. The message says what is there and what happens on CANN, in one sentence, without figures that no public source backs.
// The fix names a true API. An id never changes its meaning.
//
// Fixtures: tests/audit/fixtures/<ID>/{pos,neg}_*.ext, or folders pos_*/ and neg_*/ that are scanned as one tree. A line on which
// findings are expected ends in a comment `expect: R15` (several: `expect: R15, X4`); where a line can have no comment, the line
// before says `expect-next: R15`. `options: soc=a2` anywhere in a fixture sets options. Every rule runs over every fixture and
// all findings must be marked. `build/release/audit_score tests/audit/fixtures` prints mismatches, precision and recall.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "audit/config/document.h"
#include "audit/cpp/file.h"
#include "audit/facts.h"
#include "audit/finding.h"
#include "audit/python/ast.h"
#include "audit/python/query.h"
#include "audit/source.h"
#include "audit/tree.h"

namespace pointsman::audit {

struct Rule;

// Where a rule reports. One thread, one unit (or the tree), one rule.
class Report {
 public:
  Report(const Rule& rule, const Facts& known, Soc target, const Unit* unit, std::vector<Finding>& findings, std::vector<Located<Note>>& notes)
      : facts(known), soc(target), rule_(rule), unit_(unit), findings_(findings), notes_(notes) {}

  const Facts& facts;
  const Soc soc;  // what the user named; kUnknown: any

  // The finding may be refined: out.add(...).severity = Severity::kInfo. The reference holds until the next add.
  // REQUIRES: a unit.
  Finding& add(Span span, Confidence confidence, std::string message);
  // At an expression: certain when its name (or its callee's) was resolved through an import, else likely.
  Finding& add(const python::Expr& e, std::string message);
  Finding& add(const python::Expr& e, Confidence confidence, std::string message) { return add(e.span, confidence, std::move(message)); }
  // In tree callbacks.
  template <class T>
  Finding& add(const Located<T>& fact, Confidence confidence, std::string message) {
    Finding& f = add_at(fact.location, fact.excerpt, fact.label, confidence, std::move(message));
    f.excerpt_column = fact.excerpt_column;
    return f;
  }
  Finding& add_at(const Location& location, std::string excerpt, std::string label, Confidence confidence, std::string message);

  // A place to point to. REQUIRES: a unit.
  Related related(Span span, std::string message) const { return {unit_->location(span), std::move(message)}; }
  Edit edit(Span span, std::string text) const { return {unit_->location(span), std::move(text)}; }

  // In tree callbacks: replaces `what` by `text` where it stands exactly once in the line of the fact; no edit otherwise.
  template <class T>
  static void add_edit(Finding& finding, const Located<T>& fact, std::string_view what, std::string text) {
    add_edit_at(finding, fact.location, fact.excerpt, fact.excerpt_column, what, std::move(text));
  }

  // Says something about this file to the tree callback of the same rule. REQUIRES: a unit.
  void note(std::string key, std::string value, Span span);

 private:
  static void add_edit_at(Finding& finding, const Location& location, std::string_view line, int line_column, std::string_view what, std::string text);
  const Rule& rule_;
  const Unit* unit_;
  std::vector<Finding>& findings_;
  std::vector<Located<Note>>& notes_;
};

struct Rule {
  std::string_view id;      // "R16": rows of the pitfall table R01-R22, its model classes T1-T4, extra ones X1-X17
  std::string_view name;    // "init-backend"
  std::string_view title;   // "Process group with the NCCL backend"
  Severity severity;        // what a finding has unless the rule says otherwise
  std::string_view why;     // what goes wrong on CANN, with the mechanism
  std::string_view fix;     // what to write instead
  std::string_view versions;  // "all", "torch_npu >= 2.1", "CANN < 8.5 on 950PR", ...
  std::string_view source;    // where the knowledge is from
  // Any may be null.
  void (*python)(const python::Module& module, Report& out) = nullptr;
  void (*cpp)(const cpp::File& file, Report& out) = nullptr;
  void (*config)(const config::Document& document, Report& out) = nullptr;
  // The prose of a document, once per file, code blocks included: for names that stand in sentences.
  void (*prose)(const Unit& document, Report& out) = nullptr;
  void (*tree)(const Tree& tree, Report& out) = nullptr;
  // After all others: tree.findings holds everything that was found, what a comment silences marked.
  void (*verdict)(const Tree& tree, Report& out) = nullptr;
};

// All, in the order of rule_list.inc.
std::span<const Rule* const> all_rules();
// Ignores case; "R1" is R01, "X01" is X1. Null when there is none.
const Rule* find_rule(std::string_view id);

}  // namespace pointsman::audit
