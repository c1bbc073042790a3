// SPDX-License-Identifier: Apache-2.0
//
// Templates against jinja2 in the environment of transformers (tests/golden/MANIFEST.md).
#include <gtest/gtest.h>

#include <cstdio>
#include <set>

#include "base/log.h"
#include "support/golden.h"
#include "support/xz.h"
#include "tokenizer/chat_template.h"

namespace pointsman {
namespace {

// 2026-03-04T15:06:07 -> seconds, as if it were UTC.
int64_t seconds_of(const std::string& iso) {
  int y = 0, m = 0, d = 0, h = 0, min = 0, s = 0;
  EXPECT_EQ(std::sscanf(iso.c_str(), "%d-%d-%dT%d:%d:%d", &y, &m, &d, &h, &min, &s), 6);
  // Days from civil date, years beginning in March.
  const int64_t year = m <= 2 ? y - 1 : y;
  const int64_t day_of_year = (153 * (m + (m > 2 ? -3 : 9)) + 2) / 5 + d - 1;
  const int64_t days = year * 365 + year / 4 - year / 100 + year / 400 + day_of_year - 719468;
  return ((days * 24 + h) * 60 + min) * 60 + s;
}

TEST(ChatTemplateGolden, RendersWhatJinjaRenders) {
  Result<std::string> text =
      read_text_file(FileSystem::real(), testing::source_path("tests/golden/template/cases.json"), 16 << 20);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  Result<Json> cases = parse_json(*text, {.max_depth = 200});
  ASSERT_TRUE(cases.ok()) << cases.status().to_string();
  int rendered = 0;
  std::set<std::string> refused;
  for (const Json& c : cases->as_array()) {
    const std::string& name = c.find("name")->as_string();
    SCOPED_TRACE(name + ": " + c.find("template")->as_string().substr(0, 200));
    TemplateClock clock;
    if (const Json* now = c.find("now"); now != nullptr) clock.unix_seconds = seconds_of(now->as_string());
    Result<ChatTemplate> t = ChatTemplate::parse(c.find("template")->as_string());
    Result<std::string> out = t.ok() ? t->render(*c.find("context"), clock) : Result<std::string>(t.status());
    if (const Json* expected = c.find("expected"); expected != nullptr) {
      if (!out.ok() && out.status().code() == StatusCode::kUnsupported) {
        refused.insert(name);
        continue;
      }
      ASSERT_TRUE(out.ok()) << out.status().to_string();
      EXPECT_EQ(*out, expected->as_string());
    } else {
      EXPECT_FALSE(out.ok()) << "jinja2 fails: " << c.find("error")->as_string() << "; ours gives " << *out;
      if (!out.ok() && c.find("error_type")->as_string() == "TemplateError") {
        EXPECT_NE(out.status().message().find(c.find("error")->as_string()), std::string::npos) << out.status().message();
      }
    }
    ++rendered;
  }
  EXPECT_GT(rendered, 500);
  // What the interpreter refuses by name, and nothing else: exotic filters, call blocks, integers beyond 64 bits.
  const std::set<std::string> expected_refusals = {"snippet/numbers/e21",
                                                   "snippet/macro_varargs",
                                                   "snippet/filter_tojson_keys/e3",
                                                   "snippet/filter_escape/e4",
                                                   "snippet/filter_misc/e6",
                                                   "snippet/filter_misc/e8",
                                                   "snippet/filter_misc/e9",
                                                   "snippet/tests_compare/e14",
                                                   "snippet/tests_compare/e15",
                                                   "snippet/tests_compare/e16",
                                                   "snippet/globals"};
  EXPECT_EQ(refused, expected_refusals);
}

}  // namespace
}  // namespace pointsman
