// SPDX-License-Identifier: Apache-2.0
#include "doctor/logs/log_diagnosis.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace pointsman::doctor {
namespace {

LogCollection read(std::initializer_list<std::pair<const char*, std::string>> files, LogLimits limits = {}) {
  LogCollection logs;
  for (const auto& [path, text] : files) read_log_text(text, path, limits, logs);
  resolve_ranks(logs);
  return logs;
}

std::string when(std::string_view line) {
  const auto t = find_time(line);
  return t ? time_text(t->us(2000)) : "none";
}

TEST(LogTime, EveryFormat) {
  EXPECT_EQ(when("[ERROR] HCCL(836,x):2025-10-23-17:28:06.049.385 [a.cc:1]"), "2025-10-23 17:28:06.049");
  EXPECT_EQ(when("[2025-05-13 02:25:58.64217] [error]"), "2025-05-13 02:25:58.642");
  EXPECT_EQ(when("2024-10-21 10:42:00,218 - lmdeploy - ERROR"), "2024-10-21 10:42:00.218");
  EXPECT_EQ(when("2026-01-02T03:04:05.5Z x"), "2026-01-02 03:04:05.500");
  EXPECT_EQ(when("[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607]"), "2000-03-21 02:07:08.408");
  EXPECT_EQ(when("E1206 18:44:12.715298746 x.cpp:1]"), "2000-12-06 18:44:12.715");
  EXPECT_EQ(when("no time 12:34 here"), "none");
  EXPECT_EQ(when("2025-13-41-99:99:99 nonsense"), "none");
  ASSERT_TRUE(parse_ctime("Thu Oct 23 17:25:58 2025]"));
  EXPECT_EQ(time_text(parse_ctime("Thu Oct 23 17:25:58 2025")->us(2000)), "2025-10-23 17:25:58.000");
}

TEST(LogEvent, LinesOfHcclAndTorch) {
  const auto notify = classify_line(
      "EI0002: [PID: 2969] 2025-10-11-15:09:34.713.335 The wait execution of the Notify register times out. Reason: The Notify "
      "register has not received the Notify record from remote rank: [24]. "
      "task information: [notify id:[0x0213], stage:[0], remote rank:[24]]. group information: [rankSize[32], rankId[25 24]]");
  ASSERT_TRUE(notify);
  EXPECT_EQ(notify->kind, EventKind::kNotifyTimeout);
  EXPECT_EQ(notify->peer, 24);
  EXPECT_EQ(notify->group_size, 32);
  const auto verdict = classify_line(
      "Cluster Exception Location[IP/ID]:[127.10.0.1/1], Arrival Time:[Thu Oct 23 17:25:58 2025], Discoverer:[127.10.0.1/2], "
      "ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. Process has exited");
  ASSERT_TRUE(verdict);
  EXPECT_EQ(verdict->location, "127.10.0.1/1");
  EXPECT_EQ(verdict->exception, "Heartbeat Lost Occurred");
  const auto init = classify_line(
      "Entry-HcclCommInitRootInfoInner:ranks[4], rank[3], rootinfo: host ip[10.0.0.1] port[60000] nicDeploy[1] identifier[g], "
      "deviceLogicId[3]");
  ASSERT_TRUE(init);
  EXPECT_EQ(init->rank, 3);
  EXPECT_EQ(init->group_size, 4);
  // An exception that only passes on a wait is no cause; another is.
  EXPECT_FALSE(classify_line("RuntimeError: [ERROR] HCCL error in: torch_npu/csrc/distributed/ProcessGroupHCCL.cpp:64"));
  const auto bug = classify_line("[rank3]: ValueError: operands could not be broadcast");
  ASSERT_TRUE(bug);
  EXPECT_EQ(bug->role, Role::kCause);
  EXPECT_EQ(bug->code, "ValueError");
  EXPECT_FALSE(classify_line("INFO: Error rate 0.1"));
  EXPECT_FALSE(classify_line("failed (exitcode: -15) local_rank: 2 (pid: 9)"));  // ended by the launcher
}

TEST(LogEvent, WhoWrites) {
  EXPECT_EQ(rank_of_line("[rank11]: Traceback"), 11);
  EXPECT_EQ(rank_of_line("[ERROR] 2025-04-08-18:07:20 (PID:1292363, Device:1, RankID:101) ERR01100"), 101);
  EXPECT_EQ(rank_of_line("(VllmWorker rank=2 pid=234357) ERROR"), 2);
  EXPECT_EQ(rank_of_line("ranks are fine"), -1);
  EXPECT_EQ(pid_of_line("[ERROR] HCCL(80812,):2026-06-17-02:21:43"), 80812);
  EXPECT_EQ(pid_of_line("node1:1201:1301 [1] NCCL INFO comm"), 1201);
}

constexpr const char* kNotify =
    "EI0002: 2026-01-01-10:30:00.000.000 The wait execution of the Notify register times out. remote rank:[2]. rankSize[4]\n";

TEST(Diagnosis, TheRankThatOthersWaitForAndThatIsSilent) {
  const LogCollection logs = read({{"rank_0.log", kNotify},
                                   {"rank_1.log", kNotify},
                                   {"rank_3.log", kNotify},
                                   {"rank_2.log", "2026-01-01-10:29:59.000.000 step 100\n"}});
  const Diagnosis d = diagnose(logs);
  ASSERT_TRUE(d.found_root);
  EXPECT_EQ(d.ranks, std::vector<int64_t>{2});
  EXPECT_EQ(d.phase, Phase::kNotifyWait);
  EXPECT_EQ(d.kind, "waited for");
}

TEST(Diagnosis, TheLogThatEndsFirst) {
  const std::string notify =
      "EI0002: 2026-01-01-10:30:00.000.000 The wait execution of the Notify register times out. remote rank:[unknown].\n";
  const LogCollection logs =
      read({{"rank_0.log", notify}, {"rank_1.log", "2026-01-01-10:00:03.000.000 step 7\n"}, {"rank_2.log", notify}});
  const Diagnosis d = diagnose(logs);
  ASSERT_TRUE(d.found_root);
  EXPECT_EQ(d.ranks, std::vector<int64_t>{1});
  EXPECT_EQ(d.kind, "silent end");
  EXPECT_EQ(d.phase, Phase::kExecution);
}

TEST(Diagnosis, ThePlogOfAProcessGetsTheRankOfItsStderr) {
  const LogCollection logs =
      read({{"stderr/rank_7.txt", "[ERROR] 2026-01-01-10:00:00 (PID:4242, Device:7, RankID:7) ERR00100\n"},
            {"plog/plog-4242_20260101.log",
             "[ERROR] RUNTIME(4242,python):2026-01-01-09:59:59.000.000 [a.cc:1] [4242]fftsplus sdma error, EI0012\n"}});
  const Diagnosis d = diagnose(logs);
  ASSERT_TRUE(d.found_root);
  EXPECT_EQ(d.ranks, std::vector<int64_t>{7});
  EXPECT_EQ(d.kind, "SDMA error");
}

TEST(Diagnosis, CausesWithinTwoSecondsAreNotTakenForCertain) {
  const LogCollection logs = read({{"rank_0.log", "2026-01-01 10:00:01.000 torch.OutOfMemoryError: CUDA out of memory\n"},
                                   {"rank_1.log", "2026-01-01 10:00:00.500 torch.OutOfMemoryError: CUDA out of memory\n"}});
  const Diagnosis d = diagnose(logs);
  EXPECT_EQ(d.ranks, std::vector<int64_t>{1});
  EXPECT_EQ(d.certainty, "likely");
}

TEST(Diagnosis, ANumberInASubgroupBlamesNobody) {
  const std::string init = "Entry-HcclCommInitRootInfoInner:ranks[8], rank[";
  LogCollection logs;
  for (int r = 0; r < 8; ++r) {
    std::string text = "2026-01-01-10:00:00.000.000 " + init + std::to_string(r) + "], x\n";
    text += "EI0002: 2026-01-01-10:30:00.000.000 Notify times out. remote rank:[1]. rankSize[2]\n";
    read_log_text(text, "rank_" + std::to_string(r) + ".log", {}, logs);
  }
  resolve_ranks(logs);
  EXPECT_FALSE(diagnose(logs).found_root);
}

TEST(LogReader, BoundsHold) {
  LogLimits small{.max_files = 3, .max_depth = 1, .max_file_bytes = 64, .max_line_bytes = 40, .max_events_per_file = 2};
  // A line without an end, and one event a thousand times.
  LogCollection logs = read({{"a", std::string(1 << 20, 'x') + "EI0002"},
                             {"b",
                              [] {
                                std::string s;
                                for (int i = 0; i < 1000; ++i) s += "EI0002 x\n";
                                return s;
                              }()}},
                            small);
  EXPECT_LE(logs.events.size(), 4u);
  EXPECT_FALSE(read_logs(FileSystem::real(), "/no/such/folder").ok());
}

TEST(LogReader, LongFilesAreReadAtBothEnds) {
  const std::string path = ::testing::TempDir() + "/doctor_long_log";
  ASSERT_TRUE(FileSystem::real().list(::testing::TempDir()).ok());
  std::filesystem::create_directories(path);
  std::string text =
      "2026-01-01-10:00:00.000.000 start\n" + std::string(5000, '.') + "\n2026-01-01-11:00:00.000.000 EI0012 SDMA\n";
  ASSERT_TRUE(write_text_file(FileSystem::real(), path + "/rank_5.log", text).ok());
  const auto logs = read_logs(FileSystem::real(), path, {.max_file_bytes = 400});
  std::filesystem::remove_all(path);
  ASSERT_TRUE(logs.ok());
  EXPECT_EQ(logs->notes.size(), 1u);
  EXPECT_LE(logs->bytes, 400u);
  ASSERT_EQ(logs->events.size(), 1u);
  EXPECT_EQ(logs->events[0].rank, 5);
}

}  // namespace
}  // namespace pointsman::doctor
