// SPDX-License-Identifier: Apache-2.0
//
// HCCL_BUFFSIZE against what the MoE dispatch needs. Applies when the shape of the job is given.
#include "doctor/hccl_buffer.h"

#include "base/log.h"
#include "checkpoint/model_config.h"
#include "doctor/check.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr int64_t kDefaultMb = 200;

}  // namespace

CheckResult check_hccl_buffer(const Context& context) {
  const Options& o = context.options;
  const auto text = context.machine.env("HCCL_BUFFSIZE");
  const auto set = text ? parse_int(trim(*text)) : std::nullopt;
  if (text && (!set || *set < 1)) {
    CheckResult r = CheckResult::ok("");
    r.summary = "HCCL_BUFFSIZE=" + printable(*text, 60);
    r.fail("hccl_buffer.not_a_number", "HCCL_BUFFSIZE is in MB, a whole number from 1", "export HCCL_BUFFSIZE=200");
    return r;
  }
  const int64_t mb = set.value_or(kDefaultMb);
  if (o.ep == 0) {
    if (!context.ascend.present() && !text)
      return CheckResult::not_applicable("no Ascend; give --experts --ep --batch --hidden --topk --soc to calculate");
    CheckResult r = CheckResult::ok(format("{} MB{}: every communicator takes twice that", mb, text ? "" : " (default)"));
    r.evidence.push_back("whether it holds a MoE dispatch: give --experts --ep --batch --hidden --topk");
    return r;
  }
  HcclBufferRequest q{o.experts, o.ep, o.batch, o.hidden, o.top_k, o.shared_experts, context.ascend.family, o.comm_alg};
  if (q.family.empty()) q.family = o.soc;
  // What the flags leave open, the model's config says.
  if (!o.model.empty() && (q.experts == 0 || q.hidden == 0 || q.top_k == 0)) {
    const Result<ModelConfig> config = read_model_config(FileSystem::real(), o.model);
    if (!config.ok()) return CheckResult::not_applicable(config.status().message());
    if (q.experts == 0) q.experts = config->num_experts;
    if (q.hidden == 0) q.hidden = config->hidden_size;
    if (q.top_k == 0) q.top_k = config->num_experts_per_tok;
  }
  const Result<HcclBufferNeed> need = hccl_buffer_need(q);
  if (!need.ok() && need.status().code() == StatusCode::kInvalidArgument) {
    CheckResult r = CheckResult::ok("HCCL_BUFFSIZE for a MoE dispatch");
    r.fail("hccl_buffer.request", need.status().message(), "correct the shape of the job");
    return r;
  }
  if (!need.ok()) {
    CheckResult r = CheckResult::not_applicable(need.status().message());
    return r;
  }
  CheckResult r = CheckResult::ok(
      format("{} MB{}; the dispatch needs {} MB ({})", mb, text ? "" : " (default)", need->megabytes, need->formula));
  r.evidence.push_back(format("{} bytes for {} experts over {} ranks, {} tokens a rank, hidden {}, top-{}", need->bytes,
                              q.experts, q.ep, q.batch, q.hidden, q.top_k));
  if (!need->note.empty()) r.evidence.push_back(need->note);
  r.data = Json::object();
  r.data.set("buffsize_mb", mb);
  r.data.set("needed_mb", need->megabytes);
  r.data.set("needed_bytes", need->bytes);
  r.data.set("formula", need->formula);
  if (static_cast<uint64_t>(mb) < need->megabytes) {
    r.fail("hccl_buffer.too_small",
           format("HCCL_BUFFSIZE={} MB does not hold the dispatch window of {} MB", mb, need->megabytes),
           format("export HCCL_BUFFSIZE={} on every rank (each communicator then takes {} MB of device memory)",
                  need->megabytes, 2 * need->megabytes));
  }
  return r;
}

}  // namespace pointsman::doctor
