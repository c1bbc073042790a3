// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>

#include "base/log.h"
#include "support/golden.h"
#include "support/memory_fs.h"

namespace pointsman {
namespace {

Result<std::string> render(const std::string& source, const std::string& context = "{}", TemplateClock clock = {}) {
  PM_ASSIGN_OR_RETURN(const ChatTemplate t, ChatTemplate::parse(source));
  PM_ASSIGN_OR_RETURN(const Json json, parse_json(context));
  return t.render(json, clock);
}

void expect(const std::string& source, const std::string& expected, const std::string& context = "{}") {
  const Result<std::string> out = render(source, context);
  ASSERT_TRUE(out.ok()) << source << ": " << out.status().to_string();
  EXPECT_EQ(*out, expected) << source;
}

void expect_failure(const std::string& source, StatusCode code, std::string_view text, const std::string& context = "{}") {
  const Result<std::string> out = render(source, context);
  ASSERT_FALSE(out.ok()) << source << " gives " << *out;
  EXPECT_EQ(out.status().code(), code) << out.status().to_string();
  EXPECT_NE(out.status().message().find(text), std::string::npos) << out.status().to_string();
}

TEST(ChatTemplate, WhiteSpaceControl) {
  expect("a\n  {% if true %}\n  b\n  {% endif %}\nc\n", "a\n  b\nc");
  expect("a {{- 'x' -}} \n b", "axb");
  expect("  {%+ if true %}x{% endif %}\n\n\n", "  x\n");
  expect("{# c #}\nx{#- y -#}  z", "xz");
  expect("{% raw %}{{ x }}{% endraw %}\n.", "{{ x }}.");
  expect("a\r\nb\rc", "a\nb\nc");
}

TEST(ChatTemplate, PrintsAsPythonDoes) {
  expect("{{ [1, 1.0, 1e16, 1e-5, true, none, 'it\\'s', {'a': (1,)}] }}",
         R"([1, 1.0, 1e+16, 1e-05, True, None, "it's", {'a': (1,)}])");
  expect("{{ 7 // -2 }} {{ 7 % -2 }} {{ -7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}", "-4 -1 -3.5 1024 0.5");
  expect("{{ missing }}|{{ missing is defined }}|{{ missing|default('d') }}|{% for x in missing %}{% endfor %}", "|False|d|");
  expect("{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ '1' == 1 }} {{ 'b' in 'abc' }} {{ 'k' not in {'k': 1} }}",
         "True True False True False");
}

TEST(ChatTemplate, ScopesAreJinjas) {
  expect("{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1");
  expect("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", "4");
  expect("{% if true %}{% set x = 2 %}{% endif %}{{ x }}", "2");
  expect("{% macro m(a, b=a ~ '!') %}{{ a }}{{ b }}{% endmacro %}{{ m('x') }}{{ m('y', b='z') }}", "xx!yz");
  expect("{% for a, b in {'k': 1}.items() if b %}{{ loop.index }}{{ a }}{{ b }}{% else %}none{% endfor %}", "1k1");
}

TEST(ChatTemplate, GeneratorsAreNoLists) {
  expect("{% set g = [1, 2]|map('string') %}{{ g|join('') }}{{ g|list }}{{ 'yes' if g else 'no' }}", "12[]yes");
  expect_failure("{{ ([1]|select)|length }}", StatusCode::kInvalidArgument, "generator");
}

TEST(ChatTemplate, TheTimeIsAnInput) {
  const std::string source = "{{ strftime_now('%d %b %Y %H:%M:%S %A %j %-d') }}";
  EXPECT_EQ(*render(source, "{}", {.unix_seconds = 1772636767, .utc_offset_seconds = 3600}),
            "04 Mar 2026 16:06:07 Wednesday 063 4");
  expect_failure(source, StatusCode::kInvalidArgument, "time");
}

TEST(ChatTemplate, FailuresNameTheirLine) {
  expect_failure("a\n{{ raise_exception('no system role') }}", StatusCode::kInvalidArgument, "line 2: no system role");
  expect_failure("\n\n{{ missing.x }}", StatusCode::kInvalidArgument, "line 3: 'missing' is undefined");
  expect_failure("{{ 'a' + 1 }}", StatusCode::kInvalidArgument, "str");
  expect_failure("{{ 1 / 0 }}", StatusCode::kInvalidArgument, "division by zero");
  expect_failure("\n{% if x %}", StatusCode::kCorrupt, "line 2");
  expect_failure("{{ 1 + }}", StatusCode::kCorrupt, "expression");
  expect_failure("{% nonsense %}", StatusCode::kCorrupt, "nonsense");
  expect_failure("{{ 'a'|nonsense }}", StatusCode::kUnsupported, "nonsense");
  expect_failure("{% include 'x' %}", StatusCode::kUnsupported, "include");
  expect_failure("{{ 'a' is nonsense }}", StatusCode::kUnsupported, "nonsense");
  expect("{% if false %}{{ 'a'|nonsense }}{% endif %}ok", "ok");
}

TEST(ChatTemplate, TheSandboxHolds) {
  expect_failure("{% set l = [] %}{{ l.append(1) }}", StatusCode::kInvalidArgument, "unsafe");
  expect_failure("{% set d = {} %}{{ d.update({'a': 1}) }}", StatusCode::kInvalidArgument, "unsafe");
  expect_failure("{{ ''.__class__.__mro__ }}", StatusCode::kInvalidArgument, "__class__");
  expect_failure("{% set n = namespace() %}{% set n._x = 1 %}", StatusCode::kInvalidArgument, "_");
  expect_failure("{% for i in range(1000000) %}{% endfor %}", StatusCode::kInvalidArgument, "Range too big");
}

TEST(ChatTemplate, EverythingIsBounded) {
  const std::clock_t start = std::clock();
  expect_failure("{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
                 StatusCode::kInvalidArgument, "steps");
  expect_failure("{% for a in range(9999) %}{% set r = range(99999) %}{% endfor %}", StatusCode::kInvalidArgument,
                 "bytes of values");
  expect_failure("{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
                 StatusCode::kInvalidArgument, "bytes");
  expect_failure("{{ 'x' * 99999999999 }}", StatusCode::kInvalidArgument, "bytes");
  expect_failure("{{ [0] * 99999999999 }}", StatusCode::kInvalidArgument, "steps");
  expect_failure("{{ 'x'.ljust(99999999999) }}", StatusCode::kInvalidArgument, "bytes");
  expect_failure("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}", StatusCode::kInvalidArgument, "bytes");
  expect_failure("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", StatusCode::kInvalidArgument, "nested deeper");
  // Lists that hold themselves many times over.
  const std::string fold =
      "{% set n = namespace(a=[], b=[]) %}{% for i in range(150) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% "
      "endfor %}";
  expect_failure(fold + "{{ n.a == n.b }}", StatusCode::kInvalidArgument, "steps");
  expect_failure(fold + "{{ n.a }}", StatusCode::kInvalidArgument, "bytes");
  expect_failure(fold + "{{ n.a|tojson }}", StatusCode::kInvalidArgument, "bytes");
  // A cycle: printable, and gone with the rendering.
  EXPECT_TRUE(render("{% set n = namespace() %}{% set n.n = n %}{{ n }}").ok());
  EXPECT_LT(std::clock() - start, 60 * CLOCKS_PER_SEC);
}

TEST(ChatTemplate, DeepNestingIsRefusedWhenParsing) {
  for (const auto& [open, close] :
       {std::pair("(", ")"), std::pair("[", "]"), std::pair("-", ""), std::pair("not ", ""), std::pair("{'a':", "}")}) {
    std::string source = "{{ ";
    for (int i = 0; i < 5000; ++i) source += open;
    source += "1";
    for (int i = 0; i < 5000; ++i) source += close;
    expect_failure(source + " }}", StatusCode::kUnsupported, "nested deeper");
  }
  std::string source;
  for (int i = 0; i < 5000; ++i) source += "{% if 1 %}";
  expect_failure(source, StatusCode::kUnsupported, "nested deeper");
  // Length is no depth.
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += " + 1";
  expect(sum + " }}", "5001");
  std::string chain = "{{ 'a'";
  for (int i = 0; i < 2000; ++i) chain += "|upper|lower";
  expect(chain + " }}", "a");
  EXPECT_FALSE(ChatTemplate::parse(std::string(ChatTemplate::kMaxSourceBytes + 1, 'x')).ok());
}

TEST(ChatTemplate, BadContextsAreErrors) {
  const Result<ChatTemplate> t = ChatTemplate::parse("{{ x }}");
  EXPECT_EQ(t->render(Json(1)).status().code(), StatusCode::kInvalidArgument);
  Json bad = Json::object();
  bad.set("x", std::string("\xFF"));
  EXPECT_EQ(t->render(bad).status().code(), StatusCode::kInvalidArgument);
  Json deep;
  for (int i = 0; i < 1000; ++i) {
    Json outer = Json::array();
    outer.push_back(std::move(deep));
    deep = std::move(outer);
  }
  Json context = Json::object();
  context.set("x", std::move(deep));
  EXPECT_EQ(t->render(context).status().code(), StatusCode::kInvalidArgument);
}

class ModelFolder : public ::testing::Test {
 protected:
  void put(const std::string& path, const std::string& text) {
    const auto* p = reinterpret_cast<const std::byte*>(text.data());
    fs_.put(path, {p, p + text.size()});
  }
  std::string rendered(std::string_view name = {}, bool for_tools = false) {
    const Result<ChatTemplate> t = ChatTemplate::load(fs_, "m", name, for_tools);
    if (!t.ok()) return t.status().to_string();
    ChatRequest request;
    request.messages.push_back(Json(Json::Object{{"role", "user"}, {"content", "hi"}}));
    request.extra.set("more", "!");
    const Result<std::string> out = t->render_chat(request);
    return out.ok() ? *out : out.status().to_string();
  }
  testing::MemoryFs fs_;
};

TEST_F(ModelFolder, TemplateAndSpecialTokensComeFromTheConfiguration) {
  EXPECT_EQ(ChatTemplate::load(fs_, "m").status().code(), StatusCode::kNotFound);
  put("m/tokenizer_config.json", R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": null,
      "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ more }}{{ eos_token }}{{ add_generation_prompt }}{{ tools is none }}"})");
  EXPECT_EQ(rendered(), "<s>hi!</s>TrueTrue");
  put("m/chat_template.jinja", "file {{ messages[0]['role'] }}\n");
  EXPECT_EQ(rendered(), "file user");
}

TEST_F(ModelFolder, NamedTemplates) {
  put("m/tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})");
  EXPECT_EQ(rendered(), "d");
  EXPECT_EQ(rendered({}, true), "t");
  EXPECT_EQ(rendered("tool_use"), "t");
  EXPECT_NE(rendered("rag").find("no chat template named \"rag\""), std::string::npos);
}

}  // namespace
}  // namespace pointsman
