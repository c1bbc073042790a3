// SPDX-License-Identifier: Apache-2.0
#include "doctor/doctor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "base/hash.h"
#include "checkpoint/lockfile.h"
#include "doctor/disk_probe.h"
#include "doctor/lock_check.h"
#include "support/run_program.h"
#include "support/temp_dir.h"

extern char** environ;

namespace pointsman::doctor {
namespace {

namespace fs = std::filesystem;
using ::pointsman::testing::run_program;
using ::pointsman::testing::TempDir;

const std::string kMachines = std::string(PM_SOURCE_DIR) + "/tests/doctor/machines/";
const std::string kModel = std::string(PM_SOURCE_DIR) + "/models/pointsman-tiny-moe";

// A captured machine made of a few files.
class Made {
 public:
  Made() { file("machine.json", "{\"schema_version\": 1}"); }
  void file(const std::string& name, std::string_view text) {
    fs::create_directories(fs::path(dir_.file(name)).parent_path());
    dir_.write(name, text);
  }
  Result<std::unique_ptr<Machine>> machine() const { return Machine::captured(FileSystem::real(), dir_.path()); }
  // The problems of one check, sorted.
  std::vector<std::string> problems(const std::string& check, const Options& options = {}) const {
    const auto m = machine();
    EXPECT_TRUE(m.ok()) << m.status().to_string();
    const auto report = run_checks(**m, options, builtin_version_facts(), {check});
    EXPECT_TRUE(report.ok());
    std::vector<std::string> codes;
    for (const Problem& p : report->checks[0].problems) codes.push_back(p.code);
    std::sort(codes.begin(), codes.end());
    return codes;
  }
  const std::string& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

using Codes = std::vector<std::string>;

TEST(CapturedMachine, ACaptureIsWhatTheChecksHaveRead) {
  const VersionFacts facts = builtin_version_facts();
  const auto live = Machine::live(environ, /*record=*/true);
  const auto before = run_checks(*live, {}, facts);
  ASSERT_TRUE(before.ok());
  TempDir dir;
  const std::string folder = dir.file("capture");
  Json notes = Json::object();
  notes.set("schema_version", 1);
  ASSERT_TRUE(write_capture(*live, folder, notes, export_topology()).ok());
  // A second one does not overwrite it.
  EXPECT_EQ(write_capture(*live, folder, notes, "").code(), StatusCode::kInvalidArgument);
  const auto captured = Machine::captured(FileSystem::real(), folder);
  ASSERT_TRUE(captured.ok()) << captured.status().to_string();
  const auto after = run_checks(**captured, {}, facts);
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(before->checks.size(), after->checks.size());
  for (size_t i = 0; i < before->checks.size(); ++i) {
    EXPECT_EQ(before->checks[i].name, after->checks[i].name);
    EXPECT_EQ(before->checks[i].state, after->checks[i].state) << before->checks[i].name << ": " << after->checks[i].summary;
  }
}

TEST(CapturedMachine, HostileFolders) {
  Made made;
  made.file("environment", "ASCEND_HOME_PATH=/../../../../etc\nNOEQUALS\n=x\nRANK_TABLE_FILE=/../machine.json\n");
  const auto m = made.machine();
  ASSERT_TRUE(m.ok());
  EXPECT_FALSE((*m)->read("/../machine.json"));
  EXPECT_FALSE((*m)->exists("/.."));
  EXPECT_EQ(made.problems("ranks"), Codes{"ranks.unreadable"});
  made.file("machine.json", "{\"schema_version\": 2}");
  EXPECT_EQ(made.machine().status().code(), StatusCode::kUnsupported);
  made.file("machine.json", "{}");
  EXPECT_EQ(made.machine().status().code(), StatusCode::kCorrupt);
  made.file("machine.json", "{");
  EXPECT_EQ(made.machine().status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(Machine::captured(FileSystem::real(), "/no/such/machine").status().code(), StatusCode::kNotFound);
}

TEST(CapturedMachine, AnEmptyOneHasNothingToSay) {
  Made made;
  const auto m = made.machine();
  ASSERT_TRUE(m.ok());
  const auto report = run_checks(**m, {}, builtin_version_facts());
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->worst(), State::kNotApplicable) << report_text(*report, true, false);
}

TEST(RunTool, TimeLimitAndExitCode) {
  using Clock = std::chrono::steady_clock;
  const std::vector<std::string> folders = {"/usr/bin", "/bin"};
  EXPECT_FALSE(run_tool({"no-such-tool-here"}, folders, 1000).found);
  const ToolOutput echo = run_tool({"sh", "-c", "echo out; echo err >&2; exit 3"}, folders, 5000);
  EXPECT_EQ(echo.exit_code, 3);
  EXPECT_EQ(echo.text, "out\nerr\n");
  const auto start = Clock::now();
  // The child of the child holds the pipe as well.
  const ToolOutput slow = run_tool({"sh", "-c", "sleep 30 & sleep 30"}, folders, 200);
  EXPECT_TRUE(slow.timed_out);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

TEST(HcclTimeouts, Order) {
  const auto problems = [](std::string_view environment, std::optional<int64_t> group = {}) {
    Made made;
    made.file("environment", environment);
    Options o;
    o.group_timeout_s = group;
    return made.problems("hccl_timeouts", o);
  };
  EXPECT_EQ(problems("HCCL_CONNECT_TIMEOUT=600\nHCCL_EXEC_TIMEOUT=1200\nHCCL_EVENT_TIMEOUT=1300\n", 1800), Codes{});
  EXPECT_EQ(problems("HCCL_EXEC_TIMEOUT=1868\n", 3600), Codes{"hccl_timeouts.exec_not_below_event"});
  EXPECT_EQ(problems("HCCL_CONNECT_TIMEOUT=1900\n", 3600), Codes{"hccl_timeouts.connect_not_below_exec"});
  EXPECT_EQ(problems("HCCL_CONNECT_TIMEOUT=60\n", 3600), Codes{"hccl_timeouts.connect_range"});
  EXPECT_EQ(problems("HCCL_EXEC_TIMEOUT=0\n", 3600), Codes{"hccl_timeouts.exec_zero"});
  EXPECT_EQ(problems("HCCL_EXEC_TIMEOUT=0\nHCCL_EVENT_TIMEOUT=0\n", 3600), Codes{});
  EXPECT_EQ(problems("HCCL_EVENT_TIMEOUT=2000\n", 1999), Codes{"hccl_timeouts.group_not_largest"});
  EXPECT_EQ(problems("HCCL_EVENT_TIMEOUT=2000\n"), Codes{"hccl_timeouts.group_unknown"});
  EXPECT_EQ(problems("HCCL_EXEC_TIMEOUT=30min\n", 3600), Codes{"hccl_timeouts.not_a_number"});
  // AIV waits 1091 s at most: a connect timeout above that is not below it.
  EXPECT_EQ(problems("HCCL_OP_EXPANSION_MODE=AIV\nHCCL_CONNECT_TIMEOUT=600\n", 3600), Codes{});
  EXPECT_EQ(problems("HCCL_OP_EXPANSION_MODE=AIV\nHCCL_CONNECT_TIMEOUT=1100\nHCCL_EXEC_TIMEOUT=1500\n", 3600),
            Codes{"hccl_timeouts.connect_not_below_exec"});
}

TEST(Memlock, RdmaNeedsIt) {
  Made made;
  made.file("root/proc/self/limits", "Max locked memory         8388608              8388608              bytes     \n");
  EXPECT_EQ(made.problems("memlock"), Codes{});
  made.file("root/sys/class/infiniband/mlx5_0/x", "");
  EXPECT_EQ(made.problems("memlock"), Codes{"memlock.rdma"});
}

TEST(Environment, InterfacesThatDoNotExist) {
  Made made;
  made.file("root/sys/class/net/eth0/x", "");
  made.file("environment", "HCCL_SOCKET_IFNAME==eth1\nNCCL_SOCKET_IFNAME=eth\nGLOO_SOCKET_IFNAME=^docker\n");
  EXPECT_EQ(made.problems("environment"), Codes{"environment.interface_missing"});
}

TEST(DiskProbe, MountsOfPaths) {
  const std::string mounts =
      "22 1 253:1 / / rw - ext4 /dev/vda1 rw\n"
      "30 22 0:40 / /mnt/models rw shared:1 - nfs4 server:/m rw\n"
      "31 22 0:41 / /mnt/mod rw - tmpfs tmpfs rw\n";
  EXPECT_EQ(mount_of(mounts, "/mnt/models/a/b").type, "nfs4");
  EXPECT_EQ(mount_of(mounts, "/mnt/models2/a").type, "ext4");
  EXPECT_EQ(mount_of(mounts, "/mnt/mod").type, "tmpfs");
  EXPECT_EQ(mount_of("", "/x").type, "");
}

TEST(DiskProbe, MeasuresAFileAndSurvivesJson) {
  const auto report = probe_disk(kModel + "/model.safetensors", /*deep=*/false);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_GT(report->best_gbps(false, false), 0);
  EXPECT_GT(report->best_gbps(true, false), 0);
  const auto again = parse_disk_json(disk_json(*report));
  ASSERT_TRUE(again.ok());
  ASSERT_EQ(again->samples.size(), report->samples.size());
  EXPECT_EQ(again->samples[3].gbps, report->samples[3].gbps);
  EXPECT_EQ(again->has_direct, report->has_direct);
  EXPECT_FALSE(probe_disk("/no/such/file", false).ok());
  EXPECT_FALSE(parse_disk_json(Json()).ok());
}

TEST(LockCheck, WithoutTheEngineDenseTensorsAndFilesAreVerified) {
  TempDir dir;
  for (const auto& entry : fs::directory_iterator(kModel)) fs::copy(entry.path(), dir.file(entry.path().filename().string()));
  auto report = check_lock_without_engine(FileSystem::real(), dir.path());
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_TRUE(report->problems.empty());
  EXPECT_GT(report->checked, 50u);
  EXPECT_FALSE(report->note.empty());
  std::ofstream(dir.file("tokenizer_config.json"), std::ios::app) << " ";
  report = check_lock_without_engine(FileSystem::real(), dir.path());
  ASSERT_TRUE(report.ok());
  ASSERT_EQ(report->problems.size(), 1u);
  EXPECT_EQ(report->problems[0].name, "tokenizer_config.json");
}

TEST(DoctorProgram, ThisMachineInUnderTwentySeconds) {
  const auto start = std::chrono::steady_clock::now();
  const auto result = run_program({"doctor", kModel, "--json"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_TRUE(result.exit_code == 0 || result.exit_code == 1) << result.err;
  const auto json = parse_json(result.out);
  ASSERT_TRUE(json.ok()) << result.out;
  EXPECT_EQ(json->find("schema_version")->as_int(), 1);
  EXPECT_EQ(json->find("checks")->as_array().size(), all_checks().size());
}

TEST(DoctorProgram, ExitCodes) {
  EXPECT_EQ(run_program({"doctor", "--machine", kMachines + "cpu_good"}).exit_code, 0);
  EXPECT_EQ(run_program({"doctor", "--machine", kMachines + "no_avx2"}).exit_code, 0);  // a warning
  EXPECT_EQ(run_program({"doctor", "--machine", kMachines + "torch_mismatch"}).exit_code, 1);
  EXPECT_EQ(run_program({"doctor", "--check", "nonsense"}).exit_code, 2);
  EXPECT_EQ(run_program({"doctor", "--experts", "8"}).exit_code, 2);
  EXPECT_EQ(run_program({"doctor", "--machine", "/no/such/folder"}).exit_code, 3);
  EXPECT_EQ(run_program({"doctor", "--logs", "/no/such/folder"}).exit_code, 3);
  EXPECT_EQ(run_program({"doctor", "--data", "/no/such/folder"}).exit_code, 3);
  const auto buffer = run_program({"doctor", "--check", "hccl_buffer", "--experts", "256", "--ep", "16", "--batch", "512",
                                   "--hidden", "7168", "--topk", "8", "--soc", "a3"});
  EXPECT_EQ(buffer.exit_code, 1);
  EXPECT_NE(buffer.out.find("HCCL_BUFFSIZE=3824"), std::string::npos) << buffer.out;
  // Experts, hidden size and top-k from a model.
  const auto model = run_program({"doctor", kModel, "--check", "hccl_buffer", "--ep", "4", "--batch", "32", "--soc", "a2"});
  EXPECT_EQ(model.exit_code, 0) << model.out << model.err;
  EXPECT_NE(model.out.find("(A2 fullmesh)"), std::string::npos) << model.out;
  EXPECT_EQ(
      run_program({"doctor", kModel, "--check", "hccl_buffer", "--ep", "4", "--batch", "32", "--soc", "a2", "--topk", "999"})
          .exit_code,
      1);
  EXPECT_EQ(run_program({"doctor", kModel, "--check", "hccl_buffer", "--ep", "4"}).exit_code, 2);
}

TEST(DoctorProgram, DeepFindsAFlippedByteOfAnExpert) {
  TempDir dir;
  for (const auto& entry : fs::directory_iterator(kModel)) fs::copy(entry.path(), dir.file(entry.path().filename().string()));
  const auto good = run_program({"doctor", dir.path(), "--deep", "--check", "model"});
  EXPECT_EQ(good.exit_code, 0) << good.out << good.err;
  std::fstream file(dir.file("model.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(0, std::ios::end);
  const auto middle = file.tellg() / 2;
  file.seekg(middle);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(middle);
  file.put(byte);
  file.close();
  const auto bad = run_program({"doctor", dir.path(), "--deep", "--check", "model"});
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_NE(bad.out.find("model.lock_mismatch"), std::string::npos) << bad.out;
}

}  // namespace
}  // namespace pointsman::doctor
