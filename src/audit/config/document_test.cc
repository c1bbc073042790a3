// SPDX-License-Identifier: Apache-2.0
#include "audit/config/document.h"

#include <gtest/gtest.h>

namespace pointsman::audit::config {
namespace {

Unit unit(FileKind kind, std::string text) {
  Unit u;
  u.path = "file";
  u.kind = u.container = kind;
  u.text = std::move(text);
  index_lines(u);
  return u;
}

TEST(Document, KeysThatEndInABracketAreOrdinary) {
  for (const auto& [kind, text] : {std::pair(FileKind::kYaml, "a]:\n  b]:\n    - NAME=1\nimage]: x\n"), std::pair(FileKind::kJson, "{\"a]\": {\"b]\": [1, \"x\"], \"]\": 2}}"),
                                   std::pair(FileKind::kIni, "[s]\nkey] = 1\n]=2\n"), std::pair(FileKind::kToml, "[t]\n\"key]\" = [\"x\"]\n")}) {
    const Unit u = unit(kind, text);
    EXPECT_FALSE(parse(u)->entries.empty()) << text;
  }
}

TEST(Document, ListsOfANamedKeyGiveEnvironment) {
  const Unit u = unit(FileKind::kYaml, "services:\n  train:\n    environment:\n      - NCCL_DEBUG=INFO\n");
  const auto d = parse(u);
  ASSERT_EQ(d->environment.size(), 1u);
  EXPECT_EQ(d->environment[0].name, "NCCL_DEBUG");
  EXPECT_EQ(d->environment[0].value, "INFO");
}

}  // namespace
}  // namespace pointsman::audit::config
