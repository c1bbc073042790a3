// SPDX-License-Identifier: Apache-2.0
#include "doctor/logs/log_diagnosis.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "base/log.h"
#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

constexpr int64_t kDefaultConnectTimeoutS = 120;
constexpr int64_t kSilentUs = 5'000'000;  // a log that ends this long before the first complaint ended on its own

class Diagnoser {
 public:
  explicit Diagnoser(const LogCollection& logs) : logs_(logs) {
    // Loggers without a year are of the year of the others.
    for (const LogFile& f : logs.files) {
      for (const auto& t : {f.first, f.last}) {
        if (t && t->year > year_) year_ = t->year;
      }
    }
    has_year_ = year_ != 0;
    if (!has_year_) year_ = 2000;
    for (const LogEvent& e : logs.events) {
      d_.found_errors = true;
      if (e.what.role == Role::kVictim && e.rank >= 0) victims_.insert(e.rank);
    }
    d_.num_victims = victims_.size();
  }

  Diagnosis run() {
    if (d_.found_errors) {
      d_.found_root = verdict() || earliest_cause() || absent_or_late() || behind() || blamed() || silent();
      if (!d_.found_root) unknown();
    }
    return std::move(d_);
  }

 private:
  int64_t us(const std::optional<LogTime>& t) const { return t ? t->us(year_) : INT64_MAX; }

  void cite(const LogEvent& e) {
    if (d_.evidence.size() < 6)
      d_.evidence.push_back(format("{}:{}: {}", printable(logs_.files[e.file].path, 120), e.line, e.text));
  }

  // The first victim's complaint, as evidence beside the cause.
  void cite_first_victim() {
    const LogEvent* first = nullptr;
    for (const LogEvent& e : logs_.events) {
      if (e.what.role == Role::kVictim && (first == nullptr || us(e.time) < us(first->time))) first = &e;
    }
    if (first != nullptr) cite(*first);
  }

  static std::string name_of(int64_t rank) { return rank >= 0 ? format("rank {}", rank) : "a rank"; }

  // Where a rank was when something happened that does not say it.
  Phase phase_of(const LogEvent& e) const {
    if (e.what.phase != Phase::kUnknown) return e.what.phase;
    bool init = false, operators = false;
    for (const LogFile& f : logs_.files) {
      if (&f != &logs_.files[e.file] && (e.rank < 0 || f.rank != e.rank)) continue;
      init = init || f.has_init;
      operators = operators || f.has_operator;
    }
    if (operators) return Phase::kExecution;
    // Others that wait in an operator show that all had been connected.
    for (const LogEvent& other : logs_.events) {
      if (other.what.kind == EventKind::kNotifyTimeout || other.what.kind == EventKind::kClusterException)
        return Phase::kExecution;
      if (other.what.kind == EventKind::kSocketTimeout) return Phase::kConnect;
    }
    return init ? Phase::kExecution : Phase::kInit;
  }

  // The earliest cause that `rank` wrote itself.
  const LogEvent* own_cause(int64_t rank) const {
    const LogEvent* best = nullptr;
    for (const LogEvent& e : logs_.events) {
      if (e.what.role == Role::kCause && e.rank == rank && rank >= 0 && (best == nullptr || us(e.time) < us(best->time)))
        best = &e;
    }
    return best;
  }

  // "10.0.0.1/2" -> rank, by what the logs say of addresses, or by the device number when one host has all of them.
  int64_t rank_at(const std::string& location) const {
    const auto it = logs_.location_rank.find(location);
    if (it != logs_.location_rank.end()) return it->second;
    std::set<std::string> hosts;
    for (const LogEvent& e : logs_.events) {
      if (e.what.kind == EventKind::kClusterException) hosts.insert(e.what.location.substr(0, e.what.location.find('/')));
    }
    const size_t slash = location.find('/');
    const auto device = slash == std::string::npos ? std::nullopt : parse_int(location.substr(slash + 1));
    if (hosts.size() != 1 || !device) return -1;
    const auto rank = logs_.device_rank.find(*device);
    return rank != logs_.device_rank.end() && rank->second >= 0 ? rank->second : -1;
  }

  bool verdict() {
    struct Tally {
      int count = 0;
      const LogEvent* first = nullptr;
    };
    std::map<std::string, Tally> tally;
    for (const LogEvent& e : logs_.events) {
      if (e.what.kind != EventKind::kClusterException || e.what.location.empty()) continue;
      Tally& t = tally[e.what.location];
      ++t.count;
      if (t.first == nullptr || us(e.time) < us(t.first->time)) t.first = &e;
    }
    if (tally.empty()) return false;
    const auto best = std::max_element(tally.begin(), tally.end(),
                                       [](const auto& a, const auto& b) { return a.second.count < b.second.count; });
    const LogEvent& e = *best->second.first;
    const int64_t rank = rank_at(best->first);
    if (rank >= 0) d_.ranks = {rank};
    const size_t slash = best->first.find('/');
    d_.place = format("device {} of {}", slash == std::string::npos ? "?" : best->first.substr(slash + 1),
                      best->first.substr(0, slash));
    d_.phase = Phase::kExecution;
    d_.kind = e.what.exception.empty() ? "cluster exception" : lower(e.what.exception);
    d_.certainty = tally.size() == 1 ? "certain" : "likely";
    d_.why = format("HCCL names {}{}{} as the place of the fault ({} reports)", rank >= 0 ? name_of(rank) + ", " : "", d_.place,
                    e.what.exception.empty() ? "" : ", " + e.what.exception + ",", best->second.count);
    d_.advice = contains(e.what.exception, "Stuck") ? "this rank is alive and does not come to the operator: look where it is "
                                                      "(py-spy dump), and whether it issued another one"
                : contains(e.what.exception, "cqe")
                    ? event_advice(EventKind::kNetwork)
                    : "its process has ended, or its network has: look for the end of its own log and for dmesg";
    cite(e);
    if (const LogEvent* own = own_cause(rank)) {
      d_.kind = event_name(own->what.kind);
      d_.why += format("; its own log has: {}{}", event_name(own->what.kind),
                       own->what.code.empty() ? "" : " (" + own->what.code + ")");
      d_.advice = event_advice(own->what.kind);
      d_.phase = phase_of(*own);
      cite(*own);
    }
    cite_first_victim();
    return true;
  }

  bool earliest_cause() {
    const LogEvent* best = nullptr;
    const LogEvent* second = nullptr;  // of another rank
    for (const LogEvent& e : logs_.events) {
      if (e.what.role != Role::kCause) continue;
      if (best == nullptr || us(e.time) < us(best->time)) best = &e;
    }
    if (best == nullptr) return false;
    for (const LogEvent& e : logs_.events) {
      if (e.what.role == Role::kCause && e.rank != best->rank && (second == nullptr || us(e.time) < us(second->time)))
        second = &e;
    }
    if (best->rank >= 0) {
      d_.ranks = {best->rank};
    } else {
      d_.place = printable(logs_.files[best->file].path, 120);
    }
    d_.phase = phase_of(*best);
    d_.kind = event_name(best->what.kind);
    const bool close = second != nullptr && best->time && second->time && us(second->time) - us(best->time) < 2'000'000;
    d_.certainty = !best->time ? "hint" : close ? "likely" : "certain";
    d_.why = format("{} wrote the first error that is not a wait: {}{}{}", best->rank >= 0 ? name_of(best->rank) : d_.place,
                    d_.kind, best->what.code.empty() ? "" : " (" + best->what.code + ")",
                    best->time ? ", " + time_text(us(best->time), has_year_) : "");
    if (close) d_.why += format("; {} follows within two seconds, closer than clocks of hosts agree", name_of(second->rank));
    d_.advice = event_advice(best->what.kind);
    cite(*best);
    if (second != nullptr) cite(*second);
    cite_first_victim();
    return true;
  }

  bool has(EventKind kind) const {
    return std::any_of(logs_.events.begin(), logs_.events.end(), [&](const LogEvent& e) { return e.what.kind == kind; });
  }

  bool absent_or_late() {
    if (!has(EventKind::kNegotiation) && !has(EventKind::kSocketTimeout)) return false;
    const Phase phase = has(EventKind::kNegotiation) ? Phase::kInit : Phase::kConnect;
    if (logs_.world_size > 0 && logs_.world_size <= 262'144 && !logs_.inits.empty()) {
      std::vector<int64_t> missing;
      for (int64_t r = 0; r < logs_.world_size; ++r) {
        if (logs_.inits.count(r) == 0) missing.push_back(r);
      }
      // When most are missing, it is their logs that are, not the ranks.
      if (!missing.empty() && missing.size() <= static_cast<size_t>(logs_.world_size) / 2) {
        d_.ranks = missing;
        d_.phase = phase;
        d_.kind = "missing rank";
        d_.certainty = missing.size() == 1 ? "certain" : "likely";
        d_.why = format("{} of {} ranks entered the communicator; the others waited for {}", logs_.inits.size(),
                        logs_.world_size, list_of(missing));
        d_.advice = "start these ranks, or find out why their processes never came as far as HcclCommInit";
        cite_first_victim();
        return true;
      }
    }
    if (logs_.init_times.size() < 2) return false;
    const auto by_time = [&](const auto& a, const auto& b) { return a.second.us(year_) < b.second.us(year_); };
    const auto latest = std::max_element(logs_.init_times.begin(), logs_.init_times.end(), by_time);
    int64_t before = INT64_MIN;
    for (const auto& [rank, time] : logs_.init_times) {
      if (rank != latest->first) before = std::max(before, time.us(year_));
    }
    const int64_t limit = logs_.connect_timeout_s > 0 ? logs_.connect_timeout_s : kDefaultConnectTimeoutS;
    const int64_t late_s = (latest->second.us(year_) - before) / 1'000'000;
    if (late_s < limit) return false;
    d_.ranks = {latest->first};
    d_.phase = phase;
    d_.kind = "late rank";
    d_.certainty = "certain";
    d_.why = format("rank {} entered the communicator {} s after all others; they wait {} s", latest->first, late_s, limit);
    d_.advice = format("find out what holds rank {} up, or export HCCL_CONNECT_TIMEOUT={}", latest->first,
                       std::min<int64_t>(7200, late_s + 60));
    cite_first_victim();
    return true;
  }

  static std::string list_of(const std::vector<int64_t>& ranks) {
    std::string out = ranks.size() == 1 ? "rank " : "ranks ";
    for (size_t i = 0; i < ranks.size() && i < 16; ++i) out += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
    if (ranks.size() > 16) out += format(" and {} more", ranks.size() - 16);
    return out;
  }

  // torch's watchdog says at which collective each rank waits.
  bool behind() {
    std::map<int64_t, const LogEvent*> waits;
    for (const LogEvent& e : logs_.events) {
      if (e.what.kind == EventKind::kNotifyTimeout && e.what.sequence >= 0 && e.rank >= 0) waits.try_emplace(e.rank, &e);
    }
    if (waits.size() < 2) return false;
    std::map<int64_t, int> sequences;
    std::map<std::string, int> operations;
    for (const auto& [rank, e] : waits) {
      ++sequences[e->what.sequence];
      ++operations[e->what.operation];
    }
    const auto common =
        std::max_element(sequences.begin(), sequences.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const LogEvent* odd = nullptr;
    for (const auto& [rank, e] : waits) {
      if (e->what.sequence < common->first && (odd == nullptr || e->what.sequence < odd->what.sequence)) odd = e;
    }
    if (odd != nullptr) {
      d_.kind = "behind";
      d_.why = format("rank {} waits at collective {} ({}), most others are at {}", odd->rank, odd->what.sequence,
                      odd->what.operation, common->first);
      d_.advice = "this rank is slower or took another branch: compare what it did before this collective";
    } else if (operations.size() > 1) {
      const auto rare = std::min_element(operations.begin(), operations.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
      for (const auto& [rank, e] : waits) {
        if (e->what.operation == rare->first && odd == nullptr) odd = e;
      }
      const auto usual = std::max_element(operations.begin(), operations.end(),
                                          [](const auto& a, const auto& b) { return a.second < b.second; });
      d_.kind = "another operator";
      d_.why = format("rank {} waits in {}, the others in {}", odd->rank, rare->first, usual->first);
      d_.advice = event_advice(EventKind::kMismatch);
    } else {
      return false;
    }
    d_.ranks = {odd->rank};
    d_.phase = Phase::kNotifyWait;
    d_.certainty = "likely";
    cite(*odd);
    cite_first_victim();
    return true;
  }

  bool blamed() {
    std::map<int64_t, int> votes;
    for (const LogEvent& e : logs_.events) {
      if (e.what.role != Role::kVictim || e.what.peer < 0 || e.what.peer == e.rank) continue;
      // Ranks inside a sub-group are numbered anew: they say nothing about the world.
      if (e.what.group_size > 0 && logs_.world_size > 0 && e.what.group_size != logs_.world_size) continue;
      ++votes[e.what.peer];
    }
    const std::map<int64_t, int>::const_iterator none = votes.end();
    auto best = none;
    for (auto it = votes.cbegin(); it != none; ++it) {
      if (victims_.count(it->first) == 0 && (best == none || it->second > best->second)) best = it;
    }
    if (best == none) return false;
    d_.ranks = {best->first};
    const bool connecting = has(EventKind::kSocketTimeout) && !has(EventKind::kNotifyTimeout);
    d_.phase = connecting ? Phase::kConnect : Phase::kNotifyWait;
    d_.kind = "waited for";
    d_.certainty = "likely";
    d_.why = format("{} reports wait for rank {}, which reports no wait itself", best->second, best->first);
    d_.advice = event_advice(connecting ? EventKind::kSocketTimeout : EventKind::kNotifyTimeout);
    cite_first_victim();
    return true;
  }

  bool silent() {
    int64_t complaint = INT64_MAX;
    for (const LogEvent& e : logs_.events) complaint = std::min(complaint, us(e.time));
    if (complaint == INT64_MAX) return false;
    std::map<int64_t, int64_t> last;
    for (const LogFile& f : logs_.files) {
      if (f.rank < 0 || !f.last) continue;
      const auto [it, fresh] = last.try_emplace(f.rank, us(f.last));
      if (!fresh) it->second = std::max(it->second, us(f.last));
    }
    int64_t who = -1, when = INT64_MAX;
    for (const auto& [rank, time] : last) {
      if (victims_.count(rank) == 0 && time < when) {
        who = rank;
        when = time;
      }
    }
    if (who < 0 || last.size() < 2 || complaint - when < kSilentUs) return false;
    d_.ranks = {who};
    d_.phase = Phase::kExecution;
    d_.kind = "silent end";
    d_.certainty = "likely";
    d_.why = format("the log of rank {} ends at {}, {} s before the first complaint of another rank", who,
                    time_text(when, has_year_), (complaint - when) / 1'000'000);
    d_.advice = event_advice(EventKind::kProcessDied);
    cite_first_victim();
    return true;
  }

  void unknown() {
    d_.kind = "no root cause in these logs";
    d_.phase = has(EventKind::kNotifyTimeout)   ? Phase::kNotifyWait
               : has(EventKind::kSocketTimeout) ? Phase::kConnect
               : has(EventKind::kNegotiation)   ? Phase::kInit
                                                : Phase::kUnknown;
    d_.why = format("{} ranks wait, and none of the logs says for what", victims_.size());
    d_.advice =
        "collect the logs of every rank and host (plog under ~/ascend/log, stderr); all waiting alike: compare the order of "
        "collectives (HCCL_ENTRY_LOG_ENABLE=1, TORCH_NCCL_TRACE_BUFFER_SIZE)";
    cite_first_victim();
  }

  const LogCollection& logs_;
  Diagnosis d_;
  std::set<int64_t> victims_;
  int year_ = 0;
  bool has_year_ = false;
};

}  // namespace

Diagnosis diagnose(const LogCollection& logs) {
  return Diagnoser(logs).run();
}

}  // namespace pointsman::doctor
