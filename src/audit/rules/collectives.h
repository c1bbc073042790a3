// SPDX-License-Identifier: Apache-2.0
//
// Collectives as PyTorch code calls them: which calls they are, which group they use, and all-to-all exchanges in detail.
#pragma once

#include <optional>
#include <string>

#include "audit/python/query.h"

namespace pointsman::audit::rules {

// A call of torch.distributed that every rank of a group must make. new_group counts: all ranks of the job must make it.
bool is_collective(const python::Expr& call);
// Its group as written ("ep_group", "?" for an expression), empty for the default one.
std::string group_of(const python::Expr& call);

struct AllToAll {
  bool is_torch = false;                        // torch.distributed itself; else a wrapper whose name says all_to_all
  const python::Expr* output = nullptr;         // null for wrappers
  const python::Expr* input = nullptr;          // what is sent, where it is known
  const python::Expr* output_splits = nullptr;
  const python::Expr* input_splits = nullptr;
  bool is_async = false;                        // async_op=True
  bool has_lists = false;                       // all_to_all of lists of tensors: every slice has its own size
};

// Null optional: not an all-to-all.
std::optional<AllToAll> all_to_all(const python::Expr& call);
// It runs under `with torch.cuda.stream(...)` (or npu), with async_op=True, or on a named side stream.
bool is_overlapped(const python::Expr& call, const AllToAll& a);

}  // namespace pointsman::audit::rules
