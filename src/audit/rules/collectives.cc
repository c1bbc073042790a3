// SPDX-License-Identifier: Apache-2.0
#include "audit/rules/collectives.h"

#include "audit/rules/words.h"

namespace pointsman::audit::rules {

using python::Expr;
using python::ExprKind;

bool is_collective(const Expr& call) {
  if (!python::is_under(call, "torch.distributed")) return false;
  return is_one_of(call.last_name(), {"all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single", "barrier", "broadcast",
                                      "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "new_group", "new_subgroups", "reduce", "reduce_scatter",
                                      "reduce_scatter_tensor", "scatter", "scatter_object_list"});
}

std::string group_of(const Expr& call) {
  const Expr* g = call.keyword("group");
  if (!g) g = call.keyword("process_group");
  if (!g && call.last_name() == "barrier") g = call.positional(0);
  if (!g && is_one_of(call.last_name(), {"broadcast", "all_reduce", "all_gather", "all_gather_into_tensor"})) g = call.positional(2);
  if (!g || (g->is(ExprKind::kConstant) && g->text == "None")) return {};
  const std::string name = python::dotted(*g);
  if (is_one_of(name, {"dist.group.WORLD", "torch.distributed.group.WORLD"})) return {};
  return name.empty() ? "?" : name;
}

std::optional<AllToAll> all_to_all(const Expr& call) {
  if (!call.is(ExprKind::kCall)) return std::nullopt;
  const std::string_view name = call.last_name();
  AllToAll a;
  a.is_torch = python::is_under(call, "torch.distributed") && (name == "all_to_all_single" || name == "all_to_all");
  // The functional form: all_to_all_single(input, output_split_sizes, input_split_sizes, group).
  const bool functional = a.is_torch && contains(call.full_name, "functional_collectives");
  if (functional) {
    a.is_torch = false;
    a.input = call.argument(0, "self");
    a.output_splits = call.argument(1, "output_split_sizes");
    a.input_splits = call.argument(2, "input_split_sizes");
  } else if (a.is_torch) {
    a.output = call.argument(0, name == "all_to_all" ? "output_tensor_list" : "output");
    a.input = call.argument(1, name == "all_to_all" ? "input_tensor_list" : "input");
    if (name == "all_to_all_single") {
      a.output_splits = call.argument(2, "output_split_sizes");
      a.input_splits = call.argument(3, "input_split_sizes");
    } else {
      a.has_lists = true;
    }
  } else {
    // all_to_all(...), AllToAll.apply(...), _AllToAll.apply(...), all_to_all_single_autograd(...)
    std::string_view holder = name;
    if (name == "apply" && call.callee()->is(ExprKind::kAttribute)) holder = call.callee()->children[0]->last_name();
    const std::string s = lower(holder);
    const bool all_to_all_name = s == "all_to_all" || s == "alltoall" || s == "_all_to_all" || s == "all_to_all_single" || s == "all_to_all_v" || s == "alltoallv" ||
                                 (name == "apply" && (contains(s, "alltoall") || contains(s, "all_to_all"))) || s.starts_with("all_to_all_single_autograd");
    if (!all_to_all_name || contains(s, "async")) return std::nullopt;
    for (size_t i = 1; i < call.children.size(); ++i) {
      const Expr* e = call.children[i];
      const Expr* v = e->is(ExprKind::kKeyword) ? e->children[0] : e;
      const std::string text = lower(e->is(ExprKind::kKeyword) ? e->text : v->last_name());
      if (!contains(text, "split") && !contains(text, "sizes") && !contains(text, "counts")) continue;
      if (!a.output_splits) {
        a.output_splits = v;
      } else if (!a.input_splits) {
        a.input_splits = v;
      }
    }
  }
  const auto is_none = [](const Expr* e) { return e && e->is(ExprKind::kConstant) && e->text == "None"; };
  if (is_none(a.output_splits)) a.output_splits = nullptr;
  if (is_none(a.input_splits)) a.input_splits = nullptr;
  if (const Expr* async = call.keyword("async_op")) a.is_async = python::constant_bool(*async).value_or(true);
  return a;
}

bool is_overlapped(const Expr& call, const AllToAll& a) {
  if (a.is_async) return true;
  for (const Expr* manager : python::with_managers(call)) {
    if (manager->is(ExprKind::kCall) && contains(lower(manager->last_name()), "stream")) return true;
  }
  return false;
}

}  // namespace pointsman::audit::rules
