// SPDX-License-Identifier: Apache-2.0
#include "audit/audit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "audit/baseline.h"
#include "audit/blocks.h"
#include "audit/fix_preview.h"
#include "audit/report/report.h"
#include "audit/verdict.h"
#include "support/temp_dir.h"

namespace pointsman::audit {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

class AuditTest : public ::testing::Test {
 protected:
  void put(const std::string& path, std::string_view text) {
    const std::filesystem::path full = std::filesystem::path(dir_.path()) / path;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full, std::ios::binary) << text;
  }
  AuditResult run(AuditOptions options = {}) {
    Result<AuditResult> r = audit(FileSystem::real(), dir_.path(), options);
    EXPECT_TRUE(r.ok()) << r.status().to_string();
    return r.ok() ? std::move(*r) : AuditResult{};
  }
  // "path:line:RULE" of what is not suppressed, without the summary rules.
  static std::vector<std::string> places(const AuditResult& r) {
    std::vector<std::string> out;
    for (const Finding& f : r.findings) {
      if (!f.suppressed && !f.rule.starts_with("T")) out.push_back(f.location.path + ":" + std::to_string(f.location.line) + ":" + f.rule);
    }
    return out;
  }
  testing::TempDir dir_;
};

constexpr const char* kTwo = "import torch\nx = torch.zeros(3, device=\"cuda\")\nx.cuda()\n";

TEST_F(AuditTest, OrderAndResultDoNotDependOnThreads) {
  for (int i = 0; i < 40; ++i) put("p" + std::to_string(i) + "/a.py", kTwo);
  AuditOptions one, four;
  one.num_threads = 1;
  four.num_threads = 4;
  AuditResult a = run(one), b = run(four);
  EXPECT_EQ(a.findings.size(), 80u);
  b.options = a.options;
  EXPECT_EQ(json_report(a).dump(), json_report(b).dump());
}

TEST_F(AuditTest, AnyEncodingIsRead) {
  put("bom.py", std::string("\xEF\xBB\xBF") + kTwo);
  put("latin.py", std::string("# caf\xE9\n") + kTwo);
  std::string le = "\xFF\xFE", be = "\xFE\xFF";
  for (const char* c = kTwo; *c; ++c) {
    le += *c;
    le += '\0';
    be += '\0';
    be += *c;
  }
  put("le.py", le);
  put("be.py", be);
  put("crlf.py", "import torch\r\nx = torch.zeros(3, device=\"cuda\")\r\n");
  using namespace std::string_literals;
  put("zero.py", "import torch\nx = '\0'\ny = torch.zeros(1, device='cuda')\n"s);
  EXPECT_THAT(places(run()), UnorderedElementsAre("bom.py:2:X4", "bom.py:3:X4", "latin.py:3:X4", "latin.py:4:X4", "le.py:2:X4", "le.py:3:X4", "be.py:2:X4", "be.py:3:X4", "crlf.py:2:X4", "zero.py:3:X4"));
}

TEST_F(AuditTest, LinksVendoredFoldersAndLargeFilesAreSkippedAndSaid) {
  put("a.py", kTwo);
  put("third_party/b.py", kTwo);
  put("big.py", std::string(100, '#'));
  std::filesystem::create_directory_symlink("..", std::filesystem::path(dir_.path()) / "loop");
  AuditOptions o;
  o.walk.max_file_bytes = 90;
  const AuditResult r = run(o);
  EXPECT_EQ(r.summary.files, 1u);
  std::vector<std::string> skipped;
  for (const SkippedPath& p : r.skipped) skipped.push_back(p.path);
  EXPECT_THAT(skipped, ElementsAre("big.py", "loop", "third_party/"));
  o.walk.include_vendored = true;
  EXPECT_EQ(run(o).summary.files, 2u);
  o.walk.excludes = {"third_party"};
  EXPECT_EQ(run(o).summary.files, 1u);
}

TEST_F(AuditTest, CommentsSilenceAndSilentOnesAreNamed) {
  put("a.py",
      "x.cuda()  # pointsman: ignore[X4] only on the old machine\n# pointsman: ignore\nx.cuda()\nx.cuda()\n# pointsman: ignore[R16]\nx.cuda()\ns = 'pointsman: ignore'\n");
  put("b.py", "# pointsman: ignore-file[x04]\nx.cuda()\nx.cuda()\n");
  const AuditResult r = run();
  EXPECT_THAT(places(r), ElementsAre("a.py:4:X4", "a.py:6:X4"));
  EXPECT_EQ(r.summary.suppressed, 4u);
  EXPECT_EQ(r.findings[0].justification, "only on the old machine");
  ASSERT_EQ(r.unused_suppressions.size(), 1u);
  EXPECT_EQ(r.unused_suppressions[0].location.line, 5);
}

TEST_F(AuditTest, CellsOfNotebooksKnowOneAnother) {
  put("n.ipynb",
      "{\n \"cells\": [\n  {\"cell_type\": \"markdown\", \"source\": \"x.cuda()\"},\n  {\"cell_type\": \"code\", \"source\": [\"import torch.distributed as d\\n\",\n   \"%time 1\\n\",\n   \"!pip list && nvidia-smi\"]},\n"
      "  {\"cell_type\": \"code\", \"source\": \"d.init_process_group('nccl')\\ny = 1\"}\n ]\n}\n");
  const AuditResult r = run();
  EXPECT_THAT(places(r), ElementsAre("n.ipynb:6:X4", "n.ipynb:7:R16"));
  EXPECT_EQ(r.findings[1].label, "cell 3");
  EXPECT_EQ(r.findings[1].confidence, Confidence::kCertain);
}

TEST(Blocks, FencedIndentedAndUnmarkedCodeOfDocuments) {
  const auto units = document_units(
      "Text with import duties: pay.\n\n```py\nimport a\n```\n\n1. list\n   ```bash\n   $ pip install torch\n   ```\n```mermaid\ngraph\n```\n"
      "\xE4\xB8\xAD\xE6\x96\x87\xEF\xBC\x9A\n\ndef f(x):\n    return x\n\n    # inside\n    y = 1\n\nProse again, with (brackets) and = signs.\nexport A_B=1\n# more\nx = torch.zeros(3)\n.. code-block:: c++\n\n   int x;\n\nend\n");
  std::vector<std::string> seen;
  for (const Unit& u : units) seen.push_back(std::string(file_kind_name(u.kind)) + ":" + std::to_string(u.first_line) + ":" + u.text.substr(0, u.text.find('\n')));
  EXPECT_THAT(seen, ElementsAre("python:4:import a", "shell:9:pip install torch", "python:16:def f(x):", "shell:23:export A_B=1", "python:24:# more", "c++:28:int x;"));
}

TEST_F(AuditTest, BaselineHidesWhatIsKnownAndSurvivesMoves) {
  put("a.py", kTwo);
  const std::string known = baseline_text(run());
  put("a.py", std::string("# a new first line\n") + kTwo + "x.cuda()\n");
  AuditResult r = run();
  const Result<size_t> gone = apply_baseline(known, r);
  ASSERT_TRUE(gone.ok());
  EXPECT_EQ(*gone, 0u);
  EXPECT_EQ(r.summary.baselined, 2u);
  EXPECT_EQ(r.summary.by_severity[static_cast<size_t>(Severity::kBlocks)], 1u);
  EXPECT_TRUE(reaches(r, Severity::kBlocks));
  put("a.py", "");
  AuditResult empty = run();
  EXPECT_EQ(*apply_baseline(known, empty), 2u);
  EXPECT_FALSE(apply_baseline("[]", empty).ok());
  EXPECT_EQ(apply_baseline(R"({"schema_version": 9, "findings": []})", empty).status().code(), StatusCode::kUnsupported);
}

TEST_F(AuditTest, PatchOfMechanicalCorrections) {
  put("a.py", "import torch\n\nd = 'cuda' if torch.cuda.is_available() else 'cpu'\n# \xE4\xB8\xAD\ny, z = x.cuda(), x.to(\"cuda:1\")\n");
  put("b.yaml", "dist:\r\n  backend: nccl\r\n");
  put("c.py", "import torch\nx.cuda()  # no newline");
  const AuditResult r = run();
  const Result<FixPreview> p = fix_preview(FileSystem::real(), r);
  ASSERT_TRUE(p.ok());
  EXPECT_EQ(p->left_out, 1u);
  EXPECT_EQ(p->patch,
            "--- a/a.py\n+++ b/a.py\n@@ -1,5 +1,6 @@\n import torch\n+import torch_npu  # registers device 'npu' and backend 'hccl'\n \n"
            "-d = 'cuda' if torch.cuda.is_available() else 'cpu'\n+d = 'npu' if torch.npu.is_available() else 'cpu'\n # \xE4\xB8\xAD\n"
            "-y, z = x.cuda(), x.to(\"cuda:1\")\n+y, z = x.npu(), x.to(\"npu:1\")\n"
            "--- a/b.yaml\n+++ b/b.yaml\n@@ -1,2 +1,2 @@\n dist:\r\n-  backend: nccl\r\n+  backend: hccl\r\n");
}

TEST_F(AuditTest, SarifHasWhatViewersNeed) {
  put("a b.py", "# \xE4\xB8\xAD\xE6\x96\x87\nn = '\xE4\xB8\xAD'; m.cuda()  # pointsman: ignore[X4] why\nm.cuda()\n");
  const Json log = sarif_report(run(), "1.2.3");
  EXPECT_EQ(log.find("version")->as_string(), "2.1.0");
  const Json& sarif = log.find("runs")->as_array()[0];
  EXPECT_EQ(sarif.find("columnKind")->as_string(), "utf16CodeUnits");
  const auto& rules = sarif.find("tool")->find("driver")->find("rules")->as_array();
  EXPECT_EQ(rules.size(), all_rules().size());
  const auto& results = sarif.find("results")->as_array();
  ASSERT_EQ(results.size(), 2u);
  for (const Json& x : results) {
    const auto index = static_cast<size_t>(x.find("ruleIndex")->as_int());
    EXPECT_EQ(rules.at(index).find("id")->as_string(), x.find("ruleId")->as_string());
    EXPECT_FALSE(x.find("partialFingerprints")->find("primaryLocationLineHash")->as_string().empty());
    const Json& place = *x.find("locations")->as_array()[0].find("physicalLocation");
    EXPECT_EQ(place.find("artifactLocation")->find("uri")->as_string(), "a%20b.py");
  }
  const Json& region = *results[0].find("locations")->as_array()[0].find("physicalLocation")->find("region");
  EXPECT_EQ(region.find("startColumn")->as_int(), 12) << "the Chinese letter is one UTF-16 unit";
  EXPECT_EQ(results[0].find("suppressions")->as_array()[0].find("kind")->as_string(), "inSource");
  EXPECT_EQ(results[1].find("suppressions"), nullptr);
}

TEST_F(AuditTest, ReportsEscapeWhatTheyQuote) {
  put("<b>&.py", "m.cuda('</script>\"\x1b[31m')\n");
  const AuditResult r = run();
  EXPECT_THAT(html_report(r, "1"), Not(HasSubstr("</script>")));
  EXPECT_THAT(html_report(r, "1"), HasSubstr("&lt;b&gt;&amp;.py"));
  EXPECT_THAT(junit_report(r, Severity::kInfo), HasSubstr("failures=\"1\""));
  EXPECT_THAT(junit_report(r, Severity::kInfo), Not(HasSubstr("\x1b")));
  EXPECT_THAT(text_report(r), Not(HasSubstr("\x1b")));
}

TEST_F(AuditTest, VerdictCountsAndOrdersWork) {
  put("a.py",
      "import torch\nimport torch.nn.functional as F\nclass MoEGate:\n  def forward(self, x):\n    s = F.softmax(self.router(x), -1)\n    w, i = torch.topk(s, self.top_k)\n    torch.npu.no_such_thing()\n    torch.relu(x)\n    return x.cuda()\n");
  const AuditResult r = run();
  const Verdict v = make_verdict(r.findings, r.api, r.signs);
  EXPECT_EQ(v.uses, 5u) << "softmax, topk, no_such_thing, relu, cuda";
  ASSERT_EQ(v.classes.size(), 1u);
  EXPECT_EQ(v.classes[0].model_class, ModelClass::kMoe);
  std::vector<std::string> order;
  for (const WorkItem& w : v.work) order.push_back(w.rule);
  ASSERT_GE(order.size(), 3u);
  EXPECT_EQ(order[0], "X4");
  EXPECT_EQ(order[1], "X1");
  EXPECT_EQ(v.direct + v.places[0] + v.places[1] + v.places[2] + v.places[3] + v.places[4], v.uses);
}

TEST_F(AuditTest, DataFolderReplacesAndIsChecked) {
  put("a.py", "import torch\ntorch.npu.brand_new()\n");
  AuditOptions o;
  EXPECT_THAT(places(run(o)), ElementsAre("a.py:2:X1"));
  put("data/torch_npu_names.json", R"({"schema": 1, "generated": "2027-01-01", "torch_npu_ops": [], "torch_npu_npu": ["brand_new"]})");
  o.data_directory = std::string(dir_.path()) + "/data";
  EXPECT_THAT(places(run(o)), ElementsAre());
  put("data/torch_npu_names.json", R"({"schema": 2})");
  EXPECT_EQ(audit(FileSystem::real(), dir_.path(), o).status().code(), StatusCode::kUnsupported);
  o.data_directory = std::string(dir_.path()) + "/none";
  EXPECT_EQ(audit(FileSystem::real(), dir_.path(), o).status().code(), StatusCode::kNotFound);
}

TEST(Versions, Order) {
  const char* kAscending[] = {"7.0.0", "8.0.RC1.alpha001", "8.0.RC1", "8.0.RC3", "8.0.0", "8.1.RC1", "8.5", "9.1.0-beta.2", "9.1.0", "9.1.0.post1", "10"};
  for (size_t i = 0; i + 1 < std::size(kAscending); ++i) EXPECT_LT(compare_versions(kAscending[i], kAscending[i + 1]), 0) << kAscending[i];
  EXPECT_EQ(compare_versions("2.3.1+cpu", "v2.3.1"), 0);
  EXPECT_EQ(compare_versions("8.5", "8.5.0"), 0);
}

TEST(Rules, AreCompleteAndSorted) {
  std::string last;
  for (const Rule* r : all_rules()) {
    for (const std::string_view text : {r->id, r->name, r->title, r->why, r->fix, r->versions, r->source}) EXPECT_FALSE(text.empty()) << r->id;
    EXPECT_TRUE(r->python || r->cpp || r->config || r->prose || r->tree) << r->id;
    EXPECT_EQ(find_rule(r->id), r);
    const std::string key = std::string(1, r->id[0]) + (r->id.size() == 2 ? "0" : "") + std::string(r->id.substr(1));
    EXPECT_LT(last, key);
    last = key;
  }
  EXPECT_EQ(find_rule("r1"), find_rule("R01"));
  EXPECT_EQ(find_rule("Z9"), nullptr);
}

}  // namespace
}  // namespace pointsman::audit
