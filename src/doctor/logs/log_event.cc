// SPDX-License-Identifier: Apache-2.0
#include "doctor/logs/log_event.h"

#include <algorithm>
#include <array>

#include "doctor/text.h"

namespace pointsman::doctor {
namespace {

struct Marker {
  std::string_view text;
  EventKind kind;
  Phase phase;
  Role role;
  std::string_view code;
};

// In order: the first marker that a line contains decides. Causes come before the waits that a line often mentions as well.
constexpr Marker kMarkers[] = {
    {"Cluster Exception Location", EventKind::kClusterException, Phase::kExecution, Role::kPointer, ""},
    {"EI0011", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, "EI0011"},
    {"Resource_Error_Insufficient_Device_Memory", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, "EI0011"},
    {"NPU out of memory", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, "207018"},
    {"CUDA out of memory", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, ""},
    {"Cuda failure 'out of memory'", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, ""},
    {"OutOfMemoryError", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, ""},
    {"error code is 207018", EventKind::kOutOfMemory, Phase::kUnknown, Role::kCause, "207018"},
    {"EI0012", EventKind::kSdma, Phase::kExecution, Role::kCause, "EI0012"},
    {"fftsplus sdma error", EventKind::kSdma, Phase::kExecution, Role::kCause, "EI0012"},
    {"EI0013", EventKind::kNetwork, Phase::kExecution, Role::kCause, "EI0013"},
    {"error cqe status", EventKind::kNetwork, Phase::kExecution, Role::kCause, "EI0013"},
    {"cqe err status", EventKind::kNetwork, Phase::kExecution, Role::kCause, "EI0013"},
    {"EI0005", EventKind::kMismatch, Phase::kExecution, Role::kCause, "EI0005"},
    {"EI0019", EventKind::kPortInUse, Phase::kConnect, Role::kCause, "EI0019"},
    {"Please check the port status", EventKind::kPortInUse, Phase::kConnect, Role::kCause, "EI0019"},
    {"error code is 507010", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, "507010"},
    {"error code is 507011", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, "507011"},
    {"error code is 507014", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, "507014"},
    {"error code is 507015", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, "507015"},
    {"error code is 507018", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, "507018"},
    {"an illegal memory access was encountered", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, ""},
    {"unspecified launch failure", EventKind::kDeviceFault, Phase::kExecution, Role::kCause, ""},
    {"EI0015", EventKind::kNegotiation, Phase::kInit, Role::kVictim, "EI0015"},
    {"EI0006", EventKind::kSocketTimeout, Phase::kConnect, Role::kVictim, "EI0006"},
    {"wait socket establish timeout", EventKind::kSocketTimeout, Phase::kConnect, Role::kVictim, "EI0006"},
    {"Transport init error! createLink", EventKind::kSocketTimeout, Phase::kConnect, Role::kVictim, ""},
    {"EI0002", EventKind::kNotifyTimeout, Phase::kNotifyWait, Role::kVictim, "EI0002"},
    {"error code is 507048", EventKind::kNotifyTimeout, Phase::kNotifyWait, Role::kVictim, "507048"},
    {"Watchdog caught collective operation timeout", EventKind::kNotifyTimeout, Phase::kNotifyWait, Role::kVictim, ""},
    {"Connection reset by peer", EventKind::kPeerGone, Phase::kUnknown, Role::kVictim, ""},
    {"Connection closed by remote peer", EventKind::kPeerGone, Phase::kUnknown, Role::kVictim, ""},
    {"Connection closed by peer", EventKind::kPeerGone, Phase::kUnknown, Role::kVictim, ""},
    {"ncclRemoteError", EventKind::kPeerGone, Phase::kUnknown, Role::kVictim, "ncclRemoteError"},
};

// A Python exception that only passes on what a wait has reported is no cause.
constexpr std::string_view kWaiting[] = {"timed out",
                                         "timeout",
                                         "Timeout",
                                         "times out",
                                         "507048",
                                         "EI0002",
                                         "EI0006",
                                         "EI0015",
                                         "DistBackendError",
                                         "NCCL error",
                                         "hccl",
                                         "Hccl",
                                         "HCCL",
                                         "Broken pipe",
                                         "Connection reset",
                                         "Connection closed",
                                         "ChildFailedError",
                                         "KeyboardInterrupt",
                                         "SIGTERM",
                                         "SignalException",
                                         "DistStoreError",
                                         "DistNetworkError",
                                         "ACL stream synchronize failed",
                                         "AclrtSynchronize"};

struct Signal {
  int number;
  std::string_view name;
};
constexpr Signal kSignals[] = {{4, "SIGILL"}, {6, "SIGABRT"}, {7, "SIGBUS"}, {8, "SIGFPE"}, {9, "SIGKILL"}, {11, "SIGSEGV"}};

std::string_view signal_name(int64_t number) {
  for (const Signal& s : kSignals) {
    if (s.number == number) return s.name;
  }
  return {};
}

std::string bracketed(std::string_view text, std::string_view key, size_t max_bytes = 80) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  const size_t begin = at + key.size();
  const size_t end = text.find(']', begin);
  if (end == std::string_view::npos || end - begin > max_bytes) return {};
  return printable(text.substr(begin, end - begin), max_bytes);
}

std::string word_after(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return {};
  size_t end = at + key.size();
  while (end < text.size() && end < at + key.size() + 48 && text[end] != ',' && text[end] != ')' && text[end] != ' ') ++end;
  return printable(text.substr(at + key.size(), end - at - key.size()), 48);
}

void add_details(std::string_view line, LineEvent& e) {
  switch (e.kind) {
    case EventKind::kClusterException:
      e.location = bracketed(line, "Location[IP/ID]:[");
      e.exception = bracketed(line, "ExceptionType:[");
      break;
    case EventKind::kNotifyTimeout:
      e.peer = std::max(number_after(line, "remote rank:["), number_after(line, "remote rank ["));
      e.group_size = number_after(line, "rankSize[");
      e.sequence = number_after(line, "SeqNum=");
      e.operation = word_after(line, "OpType=");
      break;
    case EventKind::kSocketTimeout:
      e.peer = std::max(number_after(line, "remoteUserrank["), number_after(line, "role[0] rank["));
      if (e.peer < 0) e.peer = number_after(line, "role[1] rank[");
      break;
    default: break;
  }
}

// "Entry-HcclCommInitRootInfoInner:ranks[4], rank[3], ...", "V910_95, rankId[2], rankNum[8]", "comm 0x.. rank 3 nranks 8 ...
// Init START".
std::optional<LineEvent> comm_init(std::string_view line) {
  LineEvent e{.kind = EventKind::kCommInit, .phase = Phase::kInit};
  if (contains(line, "Entry-HcclCommInit")) {
    e.rank = std::max(number_after(line, ", rank["), number_after(line, "rankId["));
    e.group_size = std::max(number_after(line, "ranks["), number_after(line, "rankNum["));
  } else if (contains(line, "NCCL INFO") && contains(line, " nranks ") && contains(line, "Init ")) {
    e.rank = number_after(line, " rank ");
    e.group_size = number_after(line, " nranks ");
  } else {
    return std::nullopt;
  }
  if (e.rank < 0 || e.group_size < 1 || e.rank >= e.group_size) return std::nullopt;
  return e;
}

std::optional<LineEvent> died(std::string_view line) {
  LineEvent e{.kind = EventKind::kProcessDied, .phase = Phase::kUnknown, .role = Role::kCause};
  // torchrun: "failed (exitcode: -9) local_rank: 3 (pid: 1234)", and its table "exitcode : -9 (pid: 1234)".
  int64_t code = 0;
  bool found = false;
  for (const std::string_view key : {"exitcode: ", "exitcode  : ", "exit code: ", "exited with code "}) {
    const size_t at = line.find(key);
    if (at == std::string_view::npos) continue;
    const auto n = leading_int(line.substr(at + key.size(), 12));
    if (n && *n != 0) {
      code = *n;
      found = true;
      break;
    }
  }
  if (found) {
    const int64_t number = code < 0 ? -code : code > 128 ? code - 128 : 0;
    // A launcher ends the others with SIGTERM: those are victims.
    if (number == 15) return std::nullopt;
    e.code =
        number > 0 && !signal_name(number).empty() ? std::string(signal_name(number)) : "exit code " + std::to_string(code);
    // A plain exit code says less than what the process itself has written.
    if (number == 0) e.role = Role::kVictim;
    e.rank = number_after(line, "local_rank: ");
    return e;
  }
  for (const Signal& s : kSignals) {
    if (contains(line, s.name) && (contains(line, "received") || contains(line, "Signal ") || contains(line, "signal "))) {
      e.code = s.name;
      return e;
    }
  }
  if (contains(line, "Segmentation fault")) {
    e.code = "SIGSEGV";
    return e;
  }
  // The kernel's own line: "Out of memory: Killed process 1234 (python)".
  if (contains(line, "Out of memory: Killed process") || contains(line, "oom-kill:")) {
    e.code = "SIGKILL";
    return e;
  }
  return std::nullopt;
}

// "RuntimeError: ...", "torch.cuda.SomeError: ...", at the start of a line or after a "[rank3]: " prefix.
std::optional<LineEvent> exception(std::string_view line) {
  std::string_view text = line;
  if (text.starts_with("[rank")) {
    const size_t colon = text.find("]: ");
    if (colon == std::string_view::npos || colon > 16) return std::nullopt;
    text.remove_prefix(colon + 3);
  }
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos || colon == 0 || colon > 80) return std::nullopt;
  const std::string_view name = text.substr(0, colon);
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_';
  });
  if (!plain || !(name.ends_with("Error") || name.ends_with("Exception"))) return std::nullopt;
  for (const std::string_view waiting : kWaiting) {
    if (contains(text, waiting)) return std::nullopt;
  }
  return LineEvent{.kind = EventKind::kException, .phase = Phase::kUnknown, .role = Role::kCause, .code = printable(name, 60)};
}

}  // namespace

const char* phase_name(Phase phase) {
  switch (phase) {
    case Phase::kUnknown: return "unknown";
    case Phase::kInit: return "init";
    case Phase::kConnect: return "connect";
    case Phase::kExecution: return "execution";
    case Phase::kNotifyWait: return "notify wait";
  }
  return "unknown";
}

const char* event_name(EventKind kind) {
  switch (kind) {
    case EventKind::kCommInit: return "communicator init";
    case EventKind::kOperator: return "operator";
    case EventKind::kNegotiation: return "negotiation failed";
    case EventKind::kSocketTimeout: return "connection timeout";
    case EventKind::kPortInUse: return "port in use";
    case EventKind::kNotifyTimeout: return "notify timeout";
    case EventKind::kMismatch: return "operator mismatch";
    case EventKind::kNetwork: return "network error (CQE)";
    case EventKind::kSdma: return "SDMA error";
    case EventKind::kOutOfMemory: return "out of memory";
    case EventKind::kDeviceFault: return "device fault";
    case EventKind::kClusterException: return "cluster exception";
    case EventKind::kPeerGone: return "peer gone";
    case EventKind::kProcessDied: return "process died";
    case EventKind::kException: return "exception";
  }
  return "unknown";
}

const char* event_advice(EventKind kind) {
  switch (kind) {
    case EventKind::kNegotiation:
      return "start every rank within HCCL_CONNECT_TIMEOUT; name the interface with HCCL_SOCKET_IFNAME on every host";
    case EventKind::kSocketTimeout:
      return "is the peer alive, late, behind a firewall, or with another TLS switch (hccn_tool -i ID -tls -g)?";
    case EventKind::kPortInUse:
      return "end the process that holds the port, or set HCCL_NPU_SOCKET_PORT_RANGE=auto for several processes on a device";
    case EventKind::kNotifyTimeout:
      return "the rank that is waited for issued another operator, is slower than HCCL_EXEC_TIMEOUT, or has ended without a "
             "word";
    case EventKind::kMismatch:
      return "the ranks issue different collectives, counts or types: compare the branches and shapes of this rank with its "
             "peers";
    case EventKind::kNetwork: return "check cables, switches and flow control (PFC) of this device: hccn_tool -i ID -stat -g";
    case EventKind::kSdma: return "memory was freed under a transfer, or the device is faulty: npu-smi info -t health -i ID";
    case EventKind::kOutOfMemory:
      return "lower the batch or the number of process groups (each takes 2 x HCCL_BUFFSIZE), or free the device";
    case EventKind::kDeviceFault:
      return "a kernel failed: a wrong address or shape, or the device; run with ASCEND_LAUNCH_BLOCKING=1 or "
             "CUDA_LAUNCH_BLOCKING=1 to name it";
    case EventKind::kClusterException: return "look into the logs of the rank that is named";
    case EventKind::kPeerGone: return "the other end has gone: find out why";
    case EventKind::kProcessDied:
      return "SIGKILL: usually out of host memory (dmesg, the container's events); SIGSEGV, SIGABRT: the end of its own log";
    case EventKind::kException: return "fix the exception; what the other ranks report follows from it";
    case EventKind::kCommInit:
    case EventKind::kOperator: return "";
  }
  return "";
}

int64_t number_after(std::string_view text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string_view::npos) return -1;
  int64_t value = 0;
  size_t i = at + key.size();
  const size_t begin = i;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9' && i - begin < 15; ++i) value = value * 10 + (text[i] - '0');
  return i == begin ? -1 : value;
}

int64_t rank_of_line(std::string_view line) {
  const std::string_view head = line.substr(0, 400);
  if (head.starts_with("[rank")) {
    const int64_t rank = number_after(head, "[rank");
    if (rank >= 0) return rank;
  }
  for (const std::string_view key : {"RankID:", "[Rank ", " Rank ", " rank="}) {
    if (key == " Rank " && !contains(head, "[PG")) continue;
    const int64_t rank = number_after(head, key);
    if (rank >= 0) return rank;
  }
  return -1;
}

int64_t pid_of_line(std::string_view line) {
  const std::string_view head = line.substr(0, 200);
  for (const std::string_view key : {"HCCL(", "RUNTIME(", "ASCENDCL(", "(PID:", "[PID: ", "(pid: ", " pid="}) {
    const int64_t pid = number_after(head, key);
    if (pid > 0) return pid;
  }
  // NCCL: "host:1201:1301 [1] NCCL INFO ..."
  if (const size_t at = head.find(" NCCL "); at != std::string_view::npos) {
    const auto words = words_of(head.substr(0, at));
    for (const std::string_view word : words) {
      const auto parts = split(word, ':');
      const auto pid = parts.size() >= 3 ? parse_int(parts[parts.size() - 2]) : std::nullopt;
      if (pid && *pid > 0 && parse_int(parts.back())) return *pid;
    }
  }
  return -1;
}

std::optional<LineEvent> classify_line(std::string_view line) {
  for (const Marker& m : kMarkers) {
    if (!contains(line, m.text)) continue;
    LineEvent e{.kind = m.kind, .phase = m.phase, .role = m.role, .code = std::string(m.code)};
    add_details(line, e);
    return e;
  }
  if (auto e = comm_init(line)) return e;
  if (auto e = died(line)) return e;
  if (contains(line, "Entry-Hccl") || contains(line, "opCount "))
    return LineEvent{.kind = EventKind::kOperator, .phase = Phase::kExecution};
  return exception(line);
}

}  // namespace pointsman::doctor
