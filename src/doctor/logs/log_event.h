// SPDX-License-Identifier: Apache-2.0
//
// What one line of a log says about a distributed job: HCCL and CANN (plog, slog, torch_npu's messages), NCCL and torch, and
// the ends of processes. The texts and codes are those of the vendors' fault pages.
//
// The point of the classification is who is to blame: a *cause* happened on the rank that wrote it; a *victim* waited for
// somebody else; a *pointer* names another rank; *progress* says how far a rank has come.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace pointsman::doctor {

enum class Phase { kUnknown, kInit, kConnect, kExecution, kNotifyWait };
const char* phase_name(Phase phase);  // "init", "connect", "execution", "notify wait", "unknown"

enum class Role { kProgress, kVictim, kPointer, kCause };

enum class EventKind {
  kCommInit,          // a communicator is being made: rank and number of ranks
  kOperator,          // an operator was issued or completed
  kNegotiation,       // EI0015: some rank never arrived, or a wrong interface
  kSocketTimeout,     // EI0006: no connection to the peer in time
  kPortInUse,         // EI0019
  kNotifyTimeout,     // EI0002, 507048, torch's watchdog
  kMismatch,          // EI0005: ranks issued different operators, counts or types
  kNetwork,           // EI0013: error CQE, retransmission exceeded
  kSdma,              // EI0012
  kOutOfMemory,       // EI0011, 207018, CUDA and NPU out of memory
  kDeviceFault,       // 507011, 507014, 507015, 507018, illegal memory access, Xid
  kClusterException,  // HCCL's own verdict: which device is the root
  kPeerGone,          // connection reset, closed by the remote side
  kProcessDied,       // signal, exit code
  kException,         // the last line of a Python traceback that is not about waiting
};
const char* event_name(EventKind kind);  // "notify timeout", ...
// What to do about it; one line.
const char* event_advice(EventKind kind);

struct LineEvent {
  EventKind kind = EventKind::kOperator;
  Phase phase = Phase::kUnknown;
  Role role = Role::kProgress;
  std::string code;         // "EI0002", "507048", "SIGKILL"; may be empty
  int64_t peer = -1;        // rank that is waited for; -1: not said
  std::string location;     // kClusterException: "127.10.0.1/1"
  std::string exception;    // kClusterException: "Heartbeat Lost Occurred"
  int64_t group_size = -1;  // of the communicator, where the line says so
  int64_t sequence = -1;    // number of the collective, torch only
  std::string operation;    // "ALLREDUCE", torch only
  int64_t rank = -1;        // kCommInit: own rank; kProcessDied: the rank that died, when a launcher says it
};

// Nothing: the line is of no interest. `in_traceback`: the line closes a Python traceback.
std::optional<LineEvent> classify_line(std::string_view line);

// Rank and process that a line names as its writer: "[rank3]:", "[Rank 3]", "RankID:3", "(worker rank=3 pid=12)"; -1: not said.
int64_t rank_of_line(std::string_view line);
int64_t pid_of_line(std::string_view line);  // "HCCL(1234,python)", "(PID:1234", "[PID: 1234]"

// The number right after `key`, or -1.
int64_t number_after(std::string_view text, std::string_view key);

}  // namespace pointsman::doctor
