// SPDX-License-Identifier: Apache-2.0
//
// X9. Style: names, and the conditions under which they run.
#include "audit/rule.h"
#include "audit/rules/collectives.h"
#include "audit/rules/words.h"

namespace pointsman::audit::rules {
namespace {

using python::Expr;
using python::ExprKind;
using python::Guard;
using python::Stmt;

constexpr auto is_rank = [](const Expr& e) -> bool {
  if (e.is(ExprKind::kCall)) return is_one_of(e.last_name(), {"get_rank", "get_global_rank", "is_main_process", "is_rank_0", "is_rank_zero", "is_master"});
  if (!e.is(ExprKind::kName) && !e.is(ExprKind::kAttribute)) return false;
  if (e.parent && e.parent->is(ExprKind::kCall) && e.parent->callee() == &e) return false;  // said by the call
  return e.text == "rank" || e.text.ends_with("_rank") || is_one_of(e.text, {"is_main_process", "is_rank_0", "is_rank_zero", "is_master"});
};

// rank == 0, not is_main_process(), dist.get_rank() in (0, -1); not `rank is None`.
const Expr* rank_in(const Expr& condition) {
  if (condition.is(ExprKind::kCompare)) {
    if (condition.text.starts_with("is")) return nullptr;
    // rank >= 0, rank != -1: is this a distributed run at all?
    const Expr& right = *condition.children[1];
    const bool minus_one = right.is(ExprKind::kUnary) && right.text == "-";
    if (minus_one || (condition.text == ">=" && right.is(ExprKind::kNumber) && right.text == "0")) return nullptr;
  }
  if (condition.is(ExprKind::kBool)) {
    for (const Expr* c : condition.children) {
      if (const Expr* r = rank_in(*c)) return r;
    }
    return nullptr;
  }
  return python::find_within(condition, is_rank);
}

// A value of the device or of the data, which may differ between ranks.
const Expr* data_in(const Expr& condition) {
  return python::find_within(condition, [](const Expr& e) { return e.is(ExprKind::kCall) && e.callee()->is(ExprKind::kAttribute) && is_one_of(e.last_name(), {"item", "any", "nonzero"}) && e.full_name != "builtins.any"; });
}

bool has_call(std::span<const Stmt* const> body, std::string_view last_name) {
  for (const Stmt* s : body) {
    if (python::find_within(*s, [&](const Expr& e) { return e.is(ExprKind::kCall) && e.last_name() == last_name; })) return true;
  }
  return false;
}

// if rank == src: broadcast(x) else: broadcast(empty): every rank makes the call, whichever branch it takes.
bool other_branch_calls_too(const Expr& call) {
  for (const Stmt* s = call.stmt; s; s = s->parent) {
    for (const Stmt* c = s->previous_clause; c; c = c->previous_clause) {
      if (has_call(c->body, call.last_name())) return true;
    }
    for (const Stmt* c = s->next_clause; c; c = c->next_clause) {
      if (has_call(c->body, call.last_name())) return true;
    }
    if (s->kind == python::StmtKind::kFunction) break;
  }
  return false;
}

// if rank != 0: barrier() ... if rank == 0: barrier(): one rank works first, the others wait. Both sides meet in one barrier.
bool meets_elsewhere(const Expr& call, const python::Module& m) {
  int under_rank = 0, in_function = 0;
  const Stmt* function = python::enclosing_function(call);
  for (const Expr* c : m.calls()) {
    if (python::enclosing_function(*c) != function || !is_collective(*c) || c->last_name() != call.last_name()) continue;
    ++in_function;
    for (const Guard& g : python::guards(*c)) {
      if (rank_in(*g.condition)) {
        ++under_rank;
        break;
      }
    }
  }
  return under_rank >= 2 && in_function >= 2;
}

// `if rank ...: raise` before it: that rank ends, and the job with it; nobody waits for it in silence.
bool ends_the_process(const Guard& g, const Expr& call) {
  const Stmt* s = g.condition->stmt;
  for (const Stmt* p = call.stmt; p; p = p->parent) {
    if (p == s) return false;  // around the call
    for (const Stmt* c = p->previous_clause; c; c = c->previous_clause) {
      if (c == s) return false;
    }
  }
  for (const Stmt* b : s->body) {
    if (b->kind == python::StmtKind::kRaise || b->kind == python::StmtKind::kAssert) return true;
    if (b->kind == python::StmtKind::kExpr && python::find_within(*b, [](const Expr& e) { return e.is(ExprKind::kCall) && is_one_of(e.last_name(), {"exit", "_exit", "abort", "kill"}); })) return true;
  }
  return false;
}

void check_guards(const Expr& call, const python::Module& m, Report& out) {
  const bool makes_group = is_one_of(call.last_name(), {"new_group", "new_subgroups"});
  if (!makes_group && !group_of(call).empty()) return;  // a condition on the rank may well be membership of that group
  for (const Guard& g : python::guards(call)) {
    if (const Expr* r = rank_in(*g.condition)) {
      if (ends_the_process(g, call)) continue;
      if (other_branch_calls_too(call) || meets_elsewhere(call, m)) return;
      const bool exact = g.condition->is(ExprKind::kCompare) || g.condition->is(ExprKind::kCall);
      const bool resolved = call.resolution == python::Resolution::kImported;
      Finding& f = out.add(call, exact && resolved && !makes_group ? Confidence::kCertain : Confidence::kLikely,
                           makes_group ? "only some ranks create this group; every rank of the job must call new_group, in the same order"
                                       : "only some ranks reach this collective; the others never answer, and HCCL reports a notify timeout on the ranks that wait");
      f.related.push_back(out.related(r->span, "depends on the rank"));
      return;
    }
    if (const Expr* d = data_in(*g.condition)) {
      if (other_branch_calls_too(call)) return;
      Finding& f = out.add(call, Confidence::kHint, "whether this collective runs depends on data; where the value differs between ranks, they hang");
      f.related.push_back(out.related(d->span, "depends on data"));
      return;
    }
  }
}

std::string stream_of(const Expr& call) {
  for (const Expr* manager : python::with_managers(call)) {
    if (manager->is(ExprKind::kCall) && manager->last_name() == "stream") return manager->children.size() > 1 ? python::dotted(*manager->children[1]) + "()" : "()";
  }
  return {};
}

// Two streams of one function use one communicator.
void check_streams(const python::Module& m, Report& out) {
  std::vector<const Expr*> seen;
  for (const Expr* c : m.calls()) {
    if (!is_collective(*c) || is_one_of(c->last_name(), {"barrier", "new_group", "new_subgroups"})) continue;
    for (const Expr* before : seen) {
      if (python::enclosing_function(*before) != python::enclosing_function(*c) || group_of(*before) != group_of(*c)) continue;
      if (stream_of(*before) == stream_of(*c)) continue;
      Finding& f = out.add(*c, Confidence::kHint, "collectives of one group are issued on two streams; without events between them their order differs between ranks");
      f.related.push_back(out.related(before->span, "on another stream"));
      f.fix = "One stream per communicator, or events that order the two; a group of its own for traffic that overlaps.";
      break;
    }
    seen.push_back(c);
  }
}

void python_file(const python::Module& m, Report& out) {
  for (const Expr* c : m.calls()) {
    if (is_collective(*c)) check_guards(*c, m, out);
  }
  check_streams(m, out);
}

}  // namespace

const Rule& x09_collective_order() {
  static constexpr Rule kRule = {
      .id = "X9",
      .name = "collective-order",
      .title = "Collective that not every rank makes in the same order",
      .severity = Severity::kBlocks,
      .why = "Every rank of a communicator must issue the same collectives in the same order. NCCL code that happens to work (a late rank, two streams) hangs on HCCL until "
             "HCCL_EXEC_TIMEOUT, and the ranks that report are the victims, not the cause.",
      .fix = "Move the collective out of the branch, let every rank of the group take part, and create groups on all ranks in one order.",
      .versions = "all",
      .source = "torch.distributed documentation (new_group); HCCL fault pages (EI0002, EI0005)",
      .python = python_file,
  };
  return kRule;
}

}  // namespace pointsman::audit::rules
