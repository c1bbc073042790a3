// SPDX-License-Identifier: Apache-2.0
//
// Captured machines, good and bad: tests/doctor/machines/NAME with an expected.json that names every fault by its code.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "doctor/doctor.h"
#include "doctor/topology.h"

namespace pointsman::doctor {
namespace {

namespace fs = std::filesystem;

const std::string kMachines = std::string(PM_SOURCE_DIR) + "/tests/doctor/machines";

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kMachines)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Json load(const std::string& path) {
  const Result<std::string> text = read_text_file(FileSystem::real(), path, 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status().to_string();
  const Result<Json> json = parse_json(text.ok() ? *text : "null");
  EXPECT_TRUE(json.ok()) << path << ": " << json.status().to_string();
  return json.ok() ? *json : Json();
}

Options options_of(const Json& expected, const std::string& directory) {
  Options o;
  const Json* given = expected.find("options");
  if (given == nullptr) return o;
  for (const auto& [key, value] : given->as_object()) {
    if (key == "logs") {
      o.logs = directory + "/" + value.as_string();
    } else if (key == "group_timeout_s") {
      o.group_timeout_s = value.as_int();
    } else if (key == "soc") {
      o.soc = value.as_string();
    } else {
      int64_t* number = key == "experts"  ? &o.experts
                        : key == "ep"     ? &o.ep
                        : key == "batch"  ? &o.batch
                        : key == "hidden" ? &o.hidden
                        : key == "topk"   ? &o.top_k
                                          : nullptr;
      EXPECT_NE(number, nullptr) << key;
      if (number != nullptr) *number = value.as_int();
    }
  }
  return o;
}

class CapturedMachines : public ::testing::TestWithParam<std::string> {};

TEST_P(CapturedMachines, EveryFaultIsNamedAndNothingElse) {
  const std::string directory = kMachines + "/" + GetParam();
  const Json expected = load(directory + "/expected.json");
  if (fs::exists(directory + "/topology.synthetic") && !topology_uses_hwloc()) GTEST_SKIP() << "described for hwloc";
  const auto machine = Machine::captured(FileSystem::real(), directory);
  ASSERT_TRUE(machine.ok()) << machine.status().to_string();
  const VersionFacts facts = builtin_version_facts();
  const Result<Report> report = run_checks(**machine, options_of(expected, directory), facts);
  ASSERT_TRUE(report.ok());
  std::set<std::string> found, wanted;
  std::map<std::string, const CheckResult*> checks;
  for (const CheckResult& c : report->checks) {
    checks[c.name] = &c;
    for (const Problem& p : c.problems) {
      found.insert(p.code);
      EXPECT_FALSE(p.what.empty() || p.fix.empty()) << p.code << ": without a reason or a fix";
      EXPECT_TRUE(p.code.starts_with(c.name + ".")) << p.code;
    }
  }
  for (const Json& code : expected.find("problems")->as_array()) wanted.insert(code.as_string());
  EXPECT_EQ(found, wanted) << report_text(*report, true, false);
  for (const Json& name : expected.find("ok")->as_array()) {
    ASSERT_EQ(checks.count(name.as_string()), 1u) << name.as_string();
    EXPECT_EQ(checks[name.as_string()]->state, State::kOk) << name.as_string();
  }
  for (const Json& name : expected.find("not_applicable")->as_array()) {
    ASSERT_EQ(checks.count(name.as_string()), 1u) << name.as_string();
    EXPECT_EQ(checks[name.as_string()]->state, State::kNotApplicable) << name.as_string();
  }
  if (const Json* data = expected.find("data")) {
    for (const auto& [check, values] : data->as_object()) {
      for (const auto& [key, value] : values.as_object()) {
        const Json* actual = checks.at(check)->data.find(key);
        ASSERT_NE(actual, nullptr) << check << "." << key;
        EXPECT_EQ(*actual, value) << check << "." << key << ": " << actual->dump();
      }
    }
  }
  // The report survives being written and read.
  EXPECT_TRUE(parse_json(report_json(*report).dump(2)).ok());
}

INSTANTIATE_TEST_SUITE_P(All, CapturedMachines, ::testing::ValuesIn(machine_names()),
                         [](const auto& test) { return test.param; });

TEST(CapturedMachines, ThereAreGoodAndBadOnes) {
  int good = 0, bad = 0;
  for (const std::string& name : machine_names()) {
    (load(kMachines + "/" + name + "/expected.json").find("problems")->as_array().empty() ? good : bad)++;
  }
  EXPECT_GE(good, 6);
  EXPECT_GE(bad, 12);
}

}  // namespace
}  // namespace pointsman::doctor
