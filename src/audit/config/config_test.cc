// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>

#include "audit/config/document.h"

namespace pointsman::audit::config {
namespace {

struct Parsed {
  Unit unit;
  std::unique_ptr<Document> document;
  Parsed(FileKind kind, std::string text) {
    unit.kind = kind;
    unit.text = std::move(text);
    index_lines(unit);
    document = parse(unit);
  }
  std::string value(std::string_view path) const {
    const Entry* e = document->find(path);
    return e ? e->value : "(none)";
  }
  std::string variable(std::string_view name) const {
    for (const Environment& e : document->environment) {
      if (e.name == name) return e.is_unset ? "(unset)" : e.value;
    }
    return "(none)";
  }
  std::string pin(std::string_view package) const {
    for (const Pin& p : document->pins) {
      if (p.package == package) return p.spec;
    }
    return "(none)";
  }
};

TEST(ConfigYaml, PathsOfMappingsSequencesAndFlow) {
  const Parsed p(FileKind::kYaml,
                 "train:\n  backend: nccl  # why\n  list:\n  - a: 1\n    b: \"x # y\"\n  - c: 3\n  flow: {k: v, l: [1, 'two']}\nother: >-\n  one\n  two\nsteps:\n  - run: |\n      export A_B_C=1\n      pip install torch==2.1.0\n"
                 "env:\n  NCCL_DEBUG: INFO\npods:\n- name: HCCL_BUFFSIZE\n  value: '400'\nimage: quay.io/ascend/cann:8.0.rc1-910b\n");
  EXPECT_EQ(p.value("train.backend"), "nccl");
  EXPECT_EQ(p.value("train.list[0].b"), "x # y");
  EXPECT_EQ(p.value("train.list[1].c"), "3");
  EXPECT_EQ(p.value("train.flow.k"), "v");
  EXPECT_EQ(p.value("train.flow.l[1]"), "two");
  EXPECT_EQ(p.value("other"), "one\ntwo\n");
  EXPECT_EQ(p.variable("NCCL_DEBUG"), "INFO");
  EXPECT_EQ(p.variable("HCCL_BUFFSIZE"), "400");
  EXPECT_EQ(p.variable("A_B_C"), "1");
  EXPECT_EQ(p.pin("torch"), "==2.1.0");
  ASSERT_EQ(p.document->images.size(), 1u);
  EXPECT_EQ(p.document->images[0].name, "quay.io/ascend/cann");
  EXPECT_EQ(p.document->images[0].tag, "8.0.rc1-910b");
  EXPECT_EQ(p.unit.slice(p.document->find("train.backend")->value_span), "nccl");
}

TEST(ConfigJson, PositionsCommentsAndTrailingCommas) {
  const Parsed p(FileKind::kJson, "{// c\n \"a\": {\"b\": [1, \"x\\ny\",]},\n \"env\": {\"NCCL_IB_HCA\": \"mlx5\"}, \"t\": true}");
  EXPECT_EQ(p.value("a.b[1]"), "x\ny");
  EXPECT_EQ(p.value("t"), "true");
  EXPECT_EQ(p.variable("NCCL_IB_HCA"), "mlx5");
  EXPECT_EQ(p.unit.slice(p.document->find("a.b[0]")->value_span), "1");
}

TEST(ConfigToml, TablesArraysAndDependencies) {
  const Parsed p(FileKind::kToml,
                 "[project]\ndependencies = [\n  \"torch>=2.1,<3\",  # x\n  'torch_npu==2.1.0.post3',\n]\n[project.optional-dependencies]\ncuda = [\"flash-attn\"]\n[[tool.x]]\na.b = 1\n[[tool.x]]\nc = \"\"\"m\nn\"\"\"\n"
                 "[tool.poetry.dependencies]\nnumpy = \"^1.26\"\nscipy = {version = \"1.11\", optional = true}\n");
  EXPECT_EQ(p.pin("torch"), ">=2.1,<3");
  EXPECT_EQ(p.pin("torch-npu"), "==2.1.0.post3");
  EXPECT_EQ(p.pin("flash-attn"), "");
  EXPECT_EQ(p.value("tool.x[0].a.b"), "1");
  EXPECT_EQ(p.value("tool.x[1].c"), "m\nn");
  EXPECT_EQ(p.pin("numpy"), "^1.26");
  EXPECT_EQ(p.pin("scipy"), "==1.11");
}

TEST(ConfigIni, SectionsAndContinuationLines) {
  const Parsed p(FileKind::kIni, "[options]\ninstall_requires =\n  torch==2.3.1\n  apex\n; c\n[env]\nHCCL_EXEC_TIMEOUT = 0\nexport CUDA_VISIBLE_DEVICES=\"0,1\"\n");
  EXPECT_EQ(p.pin("torch"), "==2.3.1");
  EXPECT_EQ(p.variable("HCCL_EXEC_TIMEOUT"), "0");
  EXPECT_EQ(p.variable("CUDA_VISIBLE_DEVICES"), "0,1");
}

TEST(ConfigRequirements, PinsHashesAndOptions) {
  const Parsed p(FileKind::kRequirements,
                 "# c\ntorch==2.3.1+cpu ; python_version < '3.12'\nTorch_NPU == 2.3.1.post2 \\\n  --hash=sha256:aa\n-f https://example.org/whl\npkg @ git+https://example.org/p.git\nflash_attn[x]>=2\n");
  EXPECT_EQ(p.pin("torch"), "==2.3.1+cpu");
  EXPECT_EQ(p.pin("torch-npu"), "==2.3.1.post2");
  EXPECT_TRUE(p.document->pins[1].has_hash);
  EXPECT_EQ(p.document->pins[0].version, "2.3.1+cpu");
  EXPECT_EQ(p.value("-f"), "https://example.org/whl");
  EXPECT_EQ(p.pin("flash-attn"), ">=2");
}

TEST(ConfigDockerfile, InstructionsOverLines) {
  const Parsed p(FileKind::kDockerfile,
                 "FROM --platform=linux/arm64 ascendai/cann:8.1.rc1-910b-ubuntu22.04 AS base\nENV NCCL_DEBUG=INFO HCCL_BUFFSIZE=\"400\"\nENV OLD_STYLE value here\nRUN apt-get update && \\\n    # note\n    pip install torch==2.1.0 \\\n      torch-npu\nCMD [\"python\", \"train.py\"]\n");
  ASSERT_EQ(p.document->images.size(), 1u);
  EXPECT_EQ(p.document->images[0].tag, "8.1.rc1-910b-ubuntu22.04");
  EXPECT_EQ(p.variable("HCCL_BUFFSIZE"), "400");
  EXPECT_EQ(p.variable("OLD_STYLE"), "value here");
  EXPECT_EQ(p.pin("torch"), "==2.1.0");
  EXPECT_EQ(p.pin("torch-npu"), "");
  EXPECT_EQ(p.document->commands.back().program(), "python");
}

TEST(ConfigShell, CommandsAssignmentsAndSubstitutions) {
  const Parsed p(FileKind::kShell,
                 "#!/bin/bash\nexport A_B=1 C_D='x y'\nCUDA_VISIBLE_DEVICES=0,1 python -m torch.distributed.launch \\\n  --nproc_per_node=2 train.py > log 2>&1 &\nif [ -n \"$X\" ]; then sudo pkill -f npu; fi\nn=$(nvidia-smi -L | wc -l)\n"
                 "cat <<EOF\nrm -rf nothing\nEOF\nunset NCCL_DEBUG\nuv pip install 'torch==2.4.0' -r r.txt\n");
  EXPECT_EQ(p.variable("A_B"), "1");
  EXPECT_EQ(p.variable("C_D"), "x y");
  EXPECT_EQ(p.variable("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(p.variable("NCCL_DEBUG"), "(unset)");
  EXPECT_EQ(p.pin("torch"), "==2.4.0");
  std::vector<std::string> programs;
  for (const Command& c : p.document->commands) programs.push_back(c.program());
  EXPECT_EQ(programs, (std::vector<std::string>{"export", "python", "[", "pkill", "nvidia-smi", "wc", "cat", "unset", "uv"}));
  const Command& python = p.document->commands[1];
  EXPECT_EQ(python.option("--nproc_per_node"), "2");
  EXPECT_EQ(python.option("-m"), "torch.distributed.launch");
  EXPECT_TRUE(python.has_argument("train.py"));
  EXPECT_FALSE(python.has_argument("log"));
}

TEST(ConfigBroken, AnyBytesAreRead) {
  const std::string noise = "[[[{{{'\"\\\n- - - :\n\t=|>&$(`#<<\n" + std::string(100, '(') + "\n" + std::string(5'000, '[') + "\n" + std::string(5'000, '{');
  std::string flow = "a: ", dashes;
  for (int i = 0; i < 20'000; ++i) flow += "[";
  for (int i = 0; i < 2'000; ++i) dashes += "- ";
  for (const FileKind kind : {FileKind::kYaml, FileKind::kJson, FileKind::kToml, FileKind::kIni, FileKind::kRequirements, FileKind::kDockerfile, FileKind::kShell}) {
    for (const std::string& text : {noise, flow, dashes + "x", std::string("\"a"), std::string("a: |"), std::string("RUN <<E"), std::string("RUN"), std::string("\\"), std::string()}) Parsed(kind, text);
  }
}

}  // namespace
}  // namespace pointsman::audit::config
