#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chat templates rendered by jinja2, set up as transformers sets it up: tests/golden/template/cases.json.

[{"name", "template", "context", "expected"}] or "error" (the message) with "error_type" instead of "expected".
A case with "now" was rendered with strftime_now fixed to that moment.
"""

import datetime
import json
import warnings

import common

common.quiet()

import jinja2  # noqa: E402
import jinja2.ext  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402
from transformers.utils import chat_template_utils  # noqa: E402

PACKAGES = ("jinja2", "transformers")
DATA = common.REPO / "tests" / "data" / "tokenizers"
NOW = datetime.datetime(2026, 3, 4, 15, 6, 7)
warnings.simplefilter("ignore", SyntaxWarning)


class Generation(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} prints its body."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def environment():
    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: NOW.strftime(form)
    return env


def render(name, template, context):
    case = {"name": name, "template": template, "context": context}
    uses_clock = "strftime_now" in template
    if uses_clock:
        case["now"] = NOW.isoformat()
    results = []
    for compiler in (lambda: environment().from_string(template), lambda: chat_template_utils._compile_jinja_template(template)):
        try:
            results.append(("expected", compiler().render(**context)))
        except Exception as error:  # every failure is an answer
            results.append(("error", str(error), type(error).__name__))
    if not uses_clock and results[0] != results[1]:
        raise RuntimeError(f"{name}: our environment {results[0]} against transformers {results[1]}")
    if results[0][0] == "expected":
        case["expected"] = results[0][1]
    else:
        case["error"], case["error_type"] = results[0][1:]
    return case


# ----------------------------------------------------------------------------------------------------------------------
# conversations

def m(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, call_id=None):
    out = {"type": "function", "function": {"name": name, "arguments": arguments}}
    if call_id:
        out["id"] = call_id
    return out


TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city <now> & 'later'",
                                      "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "Name, e.g. \"Zürich\""},
                                                                                      "days": {"type": "integer", "minimum": 1}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "noop", "description": "", "parameters": {"type": "object", "properties": {}}}},
]

CONVERSATIONS = {
    "user": [m("user", "Hello")],
    "system_user": [m("system", "You are brief."), m("user", "Hello")],
    "two_systems": [m("system", "One."), m("system", "Two."), m("user", "Hi")],
    "system_later": [m("user", "Hi"), m("system", "Be kind."), m("user", "Again")],
    "turns": [m("system", "S"), m("user", "1+1?"), m("assistant", "2"), m("user", "2+2?"), m("assistant", "4"), m("user", "thanks")],
    "ends_with_assistant": [m("user", "Say hi"), m("assistant", "hi")],
    "thinking_in_content": [m("user", "Q1"), m("assistant", "<think>\nfirst thoughts\n</think>\n\nA1"), m("user", "Q2"), m("assistant", "<think>\n\n</think>\n\nA2")],
    "reasoning_content": [m("user", "Q1"), m("assistant", "A1", reasoning_content="old thoughts"), m("user", "Q2"), m("assistant", "A2", reasoning_content="\nnew thoughts\n")],
    "tool_call": [m("user", "Weather?"), m("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2})]), m("tool", "{\"t\": 21}"), m("assistant", "21 degrees.")],
    "tool_calls_parallel": [m("system", "S"), m("user", "Both"), m("assistant", "Let me look.", tool_calls=[call("get_weather", {"city": "A"}, "c1"), call("get_weather", {"city": "B"}, "c2")]),
                            m("tool", "1", tool_call_id="c1"), m("tool", "2", tool_call_id="c2"), m("user", "and?")],
    "tool_call_string_arguments": [m("user", "Q"), m("assistant", None, tool_calls=[call("noop", "{}"), call("get_weather", "{\"city\": \"X\"}")]), m("tool", "ok"), m("tool", "ok2")],
    "tool_call_no_content": [m("user", "Q"), {"role": "assistant", "tool_calls": [call("noop", {})]}, m("tool", "r")],
    "tool_call_flat": [m("user", "Q"), m("assistant", "", tool_calls=[{"name": "noop", "arguments": {}}]), m("tool", "r")],
    "tool_response_text": [m("user", "<tool_response>\nx\n</tool_response>"), m("assistant", "A"), m("user", "U")],
    "unicode": [m("system", "Ünïcödé 系统 🌍"), m("user", "你好\u00a0—\u2003«é»\n\n  indented  \n"), m("assistant", "👩‍👩‍👧‍👦\tend\r\n")],
    "markup": [m("user", "<b>&amp;\"'</b> {{ not }} {% a %} {# tag #}<|im_end|>")],
    "empty_strings": [m("system", ""), m("user", ""), m("assistant", "")],
    "no_messages": [],
    "missing_content": [{"role": "user"}],
    "unknown_role": [m("narrator", "Once"), m("user", "Hi")],
}


def contexts_for(template):
    base = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"} if template == "deepseek_v3" else {"eos_token": "<|im_end|>"}
    out = []
    for name, messages in CONVERSATIONS.items():
        out.append((name, {"messages": messages, "tools": None, "add_generation_prompt": True, **base}))
    for name in ("user", "turns", "tool_call", "reasoning_content", "ends_with_assistant"):
        out.append((f"{name}_no_prompt", {"messages": CONVERSATIONS[name], "tools": None, "add_generation_prompt": False, **base}))
    out.append(("prompt_undefined", {"messages": CONVERSATIONS["user"], **base}))
    if template == "qwen3":
        for flag in (True, False):
            out.append((f"enable_thinking_{str(flag).lower()}", {"messages": CONVERSATIONS["turns"], "add_generation_prompt": True, "enable_thinking": flag, **base}))
        for name in ("user", "system_user", "tool_call", "tool_calls_parallel"):
            out.append((f"{name}_with_tools", {"messages": CONVERSATIONS[name], "tools": TOOLS, "add_generation_prompt": True, **base}))
        out.append(("empty_tools", {"messages": CONVERSATIONS["user"], "tools": [], "add_generation_prompt": True, **base}))
    return out


# ----------------------------------------------------------------------------------------------------------------------
# snippets: (name, template, contexts). A context {} is used where none are given.

PEOPLE = {"people": [{"name": "Ann", "age": 31, "city": "Bern", "vip": True}, {"name": "bob", "age": 25, "city": "Ulm", "vip": False},
                     {"name": "Cid", "age": 31, "city": "Aix"}, {"name": "dee", "age": 25, "city": "Ulm", "vip": True}]}
LISTS = {"n": [3, 1, 2, 3, 1], "w": ["b", "A", "c", "a", "B"], "e": [], "s": "hello", "d": {"z": 1, "a": [1, 2], "M": None}}
SNIPPETS = [
    # output
    ("print_values", "{{ 1 }}|{{ 1.0 }}|{{ 1.5e3 }}|{{ 1e20 }}|{{ 1e-7 }}|{{ 0.1 + 0.2 }}|{{ true }}|{{ none }}|{{ 'x' }}|{{ undefined_name }}|{{ [1, 'a', 2.0, none, true] }}|{{ {'k': 'v', 2: [3]} }}|{{ (1, 'b') }}|{{ (1,) }}|{{ () }}"),
    ("print_quotes", "{{ [\"it's\", 'say \"hi\"', 'both \\' and \"', 'a\\nb\\t\\\\', 'é中'] }}|{{ {'é': \"'\"} }}"),
    ("string_escapes", "{{ 'a\\nb' }}|{{ \"tab\\there\" }}|{{ 'q\\'q' }}|{{ \"\\u00e9\" }}|{{ '\\\\' }}|{{ 'x' 'y' }}"),
    ("numbers", "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1_000 }} {{ 0x1f }} {{ 0b101 }} {{ 0o17 }} {{ - 3 }} {{ +4 }} {{ 3 - -2 }} {{ 2 + 3 * 4 ** 2 }} {{ (2 + 3) * 4 }} {{ 10 - 3 - 2 }} {{ 1.5 + 1 }} {{ 7.5 // 2 }} {{ 7.5 % 2 }} {{ 12345678901234567890 + 1 }}"),
    ("float_format", "{{ 100000.0 }} {{ 1e15 }} {{ 1e16 }} {{ 123456789.125 }} {{ 1/3 }} {{ 0.00001 }} {{ 0.0001 }} {{ 5e-324 }} {{ -0.0 }} {{ 2.50 }}"),
    ("concat", "{{ 'a' ~ 1 ~ none ~ true ~ [1] ~ 2.0 ~ missing }}|{{ 'a' + 'b' }}|{{ [1] + [2] }}|{{ 'ab' * 3 }}|{{ [0] * 2 }}|{{ 1 ~ 2 + 3 }}|{{ 1 ~ (2 + 3) }}|{{ '1' + 2 ~ 3 }}|{{ 1 ~ 2 * 3 }}"),
    ("comparisons", "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ 'a' == 'A' }} {{ 1 != 2 }} {{ [1, 2] == [1, 2] }} {{ [1] < [1, 0] }} {{ {'a': 1} == {'a': 1.0} }} {{ true == 1 }} {{ none == none }} {{ '1' == 1 }} {{ 1 <= 1 >= 1 }}"),
    ("logic", "{{ 1 and 2 }}|{{ 0 and 2 }}|{{ 0 or 'x' }}|{{ '' or [] }}|{{ not 1 }}|{{ not '' }}|{{ not not 2 }}|{{ true and not false or false }}|{{ missing or 'd' }}|{{ not missing }}|{{ (1 or 0) and 3 }}"),
    ("in_operator", "{{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 2 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 1 in {'k': 1} }} {{ '' in 'a' }} {{ 2 in (1, 3) }} {{ not 'a' in 'b' }} {{ none in [none] }} {{ 'a' in missing_list }}", [{"missing_list": []}]),
    ("inline_if", "{{ 'y' if a else 'n' }}|{{ 'y' if a }}|{{ 'p' if a > 1 else 'q' if a == 1 else 'r' }}|{{ ('y' if a else 'n') ~ '!' }}", [{"a": 0}, {"a": 1}, {"a": 2}]),
    ("precedence", "{{ 1 + 2 ~ 3 * 2 }}|{{ not 1 == 2 }}|{{ -2 ** 2 }}|{{ 'a' ~ 'b' == 'ab' }}|{{ 1 + 1 in [2] }}|{{ -n|abs }}|{{ (-n)|abs }}|{{ 'x' if not a and b else 'y' }}|{{ 2 * 3 % 4 }}", [{"n": 3, "a": False, "b": True}]),
    # subscripts and slices
    ("subscripts", "{{ n[0] }}{{ n[-1] }}{{ d.z }}{{ d['a'][1] }}{{ d.a.0 }}{{ d.missing }}|{{ d['M'] }}|{{ s[1] }}{{ s[-2] }}|{{ n[99] }}|{{ d.missing is defined }}|{{ d.items is defined }}|{{ d['items'] is defined }}", [LISTS]),
    ("slices", "{{ n[1:] }} {{ n[:-1] }} {{ n[::-1] }} {{ n[::2] }} {{ n[1:4:2] }} {{ n[-2:] }} {{ n[10:] }} {{ n[:] }} {{ s[::-1] }} {{ s[1:3] }} {{ s[:-2] }} {{ n[3:1] }} {{ n[4:0:-2] }} {{ s[-3:-1] }} {{ (1, 2, 3)[1:] }} {{ s[99:] }}", [LISTS]),
    # statements
    ("if_chain", "{% if a > 10 %}big{% elif a > 5 %}mid{% elif a %}small{% else %}zero{% endif %}", [{"a": 11}, {"a": 6}, {"a": 1}, {"a": 0}]),
    ("truth", "{% for x in v %}{{ 'T' if x else 'F' }}{% endfor %}", [{"v": [0, 1, 0.0, "", "0", [], [0], {}, {"a": 0}, None, True, False]}]),
    ("loop_variables", "{% for x in w %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/{{ loop.length }} {{ loop.first }} {{ loop.last }} {{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('odd', 'even') }} {{ loop.changed(x|lower) }}\n{% endfor %}", [LISTS]),
    ("loop_nested", "{% for a in [1, 2] %}{% set outer = loop %}{% for b in 'xy' %}{{ outer.index }}{{ loop.index }}{{ a }}{{ b }}{{ loop.depth }} {% endfor %}{% endfor %}"),
    ("loop_else", "{% for x in e %}{{ x }}{% else %}none{% endfor %}|{% for x in n if x > 5 %}{{ x }}{% else %}nothing{% endfor %}|{% for x in n if x > 1 %}{{ x }}:{{ loop.index }}/{{ loop.length }} {% endfor %}", [LISTS]),
    ("loop_unpack", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }},{% endfor %}{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for i in d %}{{ i }}{% endfor %}{% for k in d.keys() %}{{ k }}{% endfor %}{% for v in d.values() %}{{ v }}{% endfor %}", [LISTS]),
    ("loop_controls", "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x > 5 %}{% break %}{% endif %}{{ x }}{% else %}E{% endfor %}|{% for x in range(3) %}{% for y in range(3) %}{% if y == x %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}{% endfor %}"),
    ("loop_scope", "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}|{% if true %}{% set y = 5 %}{% endif %}{{ y }}|{% for i in [7] %}{% endfor %}{{ i }}"),
    ("loop_reversed", "{% for x in n|reverse %}{{ x }}{% endfor %} {% for c in s|reverse %}{{ c }}.{% endfor %} {% for x in n[::-1] %}{{ loop.index0 }}{{ x }}{% endfor %} {{ s|reverse }} {{ n|reverse|list }}", [LISTS]),
    ("range", "{{ range(3)|list }} {{ range(2, 5)|list }} {{ range(10, 0, -3)|list }} {% for i in range(0) %}x{% endfor %} {{ range(4)[1:]|list }} {{ 3 in range(4) }} {{ range(5)|length }} {{ range(3) }}"),
    ("namespace", "{% set ns = namespace(found=false, n=0, s='') %}{% for x in n %}{% if x == 2 %}{% set ns.found = true %}{% endif %}{% set ns.n = ns.n + x %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.found }} {{ ns.n }} {{ ns.s }} {{ ns.missing }} {{ ns['n'] }}{% set ns.new = [1] %}{{ ns.new }}", [LISTS]),
    ("set_forms", "{% set a = 1 %}{% set b, c = 2, 3 %}{% set (d, e) = (4, 5) %}{{ a }}{{ b }}{{ c }}{{ d }}{{ e }}{% set t = 1, 2 %}{{ t }}"),
    ("set_block", "{% set text %}Hello {{ name }}!\n  two{% endset %}[{{ text }}]{{ text|length }}{% set up | upper %}abc {{ name }}{% endset %}[{{ up }}]{% set f | trim | replace('a', 'b') %}  aaa  {% endset %}[{{ f }}]", [{"name": "Bö"}]),
    ("filter_block", "{% filter upper %}abc {{ 'x' }}{% endfilter %}|{% filter indent(2) %}a\nb{% endfilter %}"),
    ("with_block", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}|{% set x = 1 %}{% with %}{% set x = 2 %}{{ x }}{% endwith %}{{ x }}"),
    ("macros", "{% macro greet(name, greeting='Hi', n=1) %}{{ greeting }} {{ name }}{{ '!' * n }}{% endmacro %}{{ greet('Ann') }}|{{ greet('Bob', 'Yo') }}|{{ greet(n=3, name='Cy') }}|{{ greet() }}|{{ greet('D', greeting=none) }}|{{ greet('x')|length }}"),
    ("macro_recursion", "{% macro show(v, depth=0) %}{% if v is mapping %}{{ '{' }}{% for k, x in v.items() %}{{ k }}:{{ show(x, depth + 1) }}{% if not loop.last %},{% endif %}{% endfor %}{{ '}' }}{% elif v is sequence and v is not string %}[{% for x in v %}{{ show(x, depth + 1) }}{% if not loop.last %};{% endif %}{% endfor %}]{% else %}{{ depth }}={{ v }}{% endif %}{% endmacro %}{{ show({'a': [1, {'b': 'x'}], 'c': []}) }}"),
    ("macro_varargs", "{% macro f(a) %}{{ a }}{{ varargs }}{{ kwargs }}{{ name }}{% endmacro %}{{ f(1, 2, 3, k=4) }}{% macro g() %}{{ caller('in') }}{% endmacro %}{% call(x) g() %}<{{ x }}>{% endcall %}"),
    ("macro_scope", "{% set a = 1 %}{% macro f() %}{{ a }}{% set a = 2 %}{{ a }}{% endmacro %}{{ f() }}{{ a }}{% macro h(x) %}{% set ns = namespace(v=x) %}{% for i in range(2) %}{% set ns.v = ns.v + i %}{% endfor %}{{ ns.v }}{% endmacro %}{{ h(5) }}{{ h(6) }}"),
    ("generation", "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}", [{"messages": CONVERSATIONS["turns"]}]),
    ("comments", "a{# one #}b{#- two -#} c {#\n multi\n line #}\nd\n  {# own line #}\ne"),
    ("raw", "{% raw %}{{ x }} {% if %} {# #}{% endraw %}|{{ '{{' }}|{{ '{%' }}"),
    ("do_line", "{% set l = [1] %}{{ l }}{{ l|length }}"),
    # white space
    ("trim_blocks", "a\n{% if true %}\n  b\n{% endif %}\nc\n"),
    ("lstrip_blocks", "a\n    {% if true %}\n    b {% if true %} c {% endif %}\n    {% endif %}\n\t{# c #}\n  {{ 'd' }}\nend  {% if true %}x{% endif %}  \n"),
    ("control_minus", "a  \n {%- if true -%}  \n b \n {%- endif -%} \n c {{- ' d ' -}} e\n\n{{- 'f' }}\n\n{{ 'g' -}}\n\n h"),
    ("control_plus", "x\n   {%+ if true %}y{% endif +%}\nz\n  {%+ set a = 1 +%}\n{{ a }}\n"),
    ("trailing_newlines", "{{ 'a' }}\n"),
    ("trailing_newlines_two", "{{ 'a' }}\n\n"),
    ("crlf", "a\r\n{% if true %}\r\nb\r\n{% endif %}\r\nc{{ 'x\r\ny' }}"),
    ("only_text", "just text { } {x} %} }} #}"),
    ("empty", ""),
    ("newline_after_variable", "{{ 'a' }}\n{{ 'b' }}\n\n{% set x = 1 %}\n\n{{ x }}"),
    # filters
    ("filter_strings", "{{ '  Hi There '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 'aBc dEf'|upper }}|{{ 'ABC'|lower }}|{{ 'hello world-foo bAR'|title }}|{{ 'hELLO World'|capitalize }}|{{ 'a-b-c'|replace('-', '+') }}|{{ 'aaa'|replace('a', 'b', 2) }}|{{ 'x'|center(5) }}|{{ 'a b  c'|wordcount }}|{{ 'ß'|upper }}|{{ 'İ'|lower|length }}"),
    ("filter_length", "{{ 'é中😀'|length }} {{ n|length }} {{ d|length }} {{ e|count }} {{ missing|length }}", [LISTS]),
    ("filter_join", "{{ w|join }} {{ w|join(', ') }} {{ n|join('-') }} {{ [1, none, true]|join('|') }} {{ 'abc'|join('.') }} {{ people|map(attribute='name')|join('+') }} {{ people|join(',', attribute='age') }} {{ e|join(',') }}", [{**LISTS, **PEOPLE}]),
    ("filter_default", "{{ missing|default('d') }}|{{ none|default('d') }}|{{ none|default('d', true) }}|{{ ''|default('d', true) }}|{{ 0|d(5) }}|{{ missing|d }}|{{ m.x.y is defined }}|{{ m.x|default('dx') }}|{{ false|default('d', boolean=true) }}", [{"m": {}}]),
    ("filter_first_last", "{{ n|first }} {{ n|last }} {{ s|first }} {{ s|last }} {{ e|first }}|{{ e|last }}|{{ d|first }} {{ d|last }}", [LISTS]),
    ("filter_items", "{% for k, v in d|items %}{{ k }}:{{ v }},{% endfor %}|{{ d|items|list }}|{{ missing|items|list }}", [LISTS]),
    ("filter_dictsort", "{{ d|dictsort }}|{{ {'b': 1, 'A': 3, 'a': 2}|dictsort }}|{{ {'b': 1, 'A': 3, 'a': 2}|dictsort(true) }}|{{ {'b': 1, 'A': 3, 'c': 2}|dictsort(false, 'value') }}|{{ {'b': 1, 'A': 3}|dictsort(reverse=true) }}|{% for k, v in {'y': 1, 'x': 2}|dictsort %}{{ k }}{{ v }}{% endfor %}", [{"d": {"z": 1, "k": 2}}]),
    ("filter_sort", "{{ n|sort }} {{ n|sort(reverse=true) }} {{ w|sort }} {{ w|sort(case_sensitive=true) }} {{ people|sort(attribute='age')|map(attribute='name')|list }} {{ people|sort(attribute='age,name')|map(attribute='name')|list }} {{ people|sort(true, attribute='name')|map(attribute='name')|list }} {{ 'cab'|sort }}", [{**LISTS, **PEOPLE}]),
    ("filter_unique", "{{ n|unique|list }} {{ w|unique|list }} {{ w|unique(true)|list }} {{ people|unique(attribute='city')|map(attribute='name')|list }}", [{**LISTS, **PEOPLE}]),
    ("filter_numbers", "{{ -3|abs }} {{ (-3)|abs }} {{ -2.5|abs }} {{ 2.567|round }} {{ 2.567|round(2) }} {{ 2.5|round }} {{ 3.5|round }} {{ 2.1|round(0, 'ceil') }} {{ 2.9|round(method='floor') }} {{ 7|round }} {{ '42'|int }} {{ 'x'|int }} {{ 'x'|int(-1) }} {{ '3.9'|int }} {{ 3.9|int }} {{ '0x1f'|int(0, 16) }} {{ '2.5'|float }} {{ 'x'|float(1.5) }} {{ 3|float }} {{ none|int }} {{ true|int }} {{ '1e3'|int }} {{ 1234.5|int }} {{ n|sum }} {{ n|min }} {{ n|max }} {{ people|sum(attribute='age') }} {{ n|sum(start=10) }}", [{**LISTS, **PEOPLE}]),
    ("filter_string_list", "{{ 1|string ~ 2.0|string ~ none|string ~ true|string }}|{{ 'abc'|list }}|{{ d|list }}|{{ (1, 2)|list }}|{{ range(2)|list }}|{{ [1, 2]|string }}|{{ {'a': 1}|string|length }}", [LISTS]),
    ("filter_indent", "{{ t|indent }}|{{ t|indent(2) }}|{{ t|indent(2, true) }}|{{ t|indent(width=3, first=true, blank=true) }}|{{ t|indent('> ') }}|{{ ''|indent(2, true) }}", [{"t": "one\n\n two\nthree\n"}]),
    ("filter_map", "{{ people|map(attribute='name')|list }} {{ people|map(attribute='vip')|list }} {{ people|map(attribute='vip', default='?')|list }} {{ w|map('upper')|list }} {{ w|map('replace', 'a', 'x')|join }} {{ n|map('string')|join('') }} {{ [[1, 2], [3]]|map('first')|list }} {{ [[1, 2], [3, 4]]|map(attribute=1)|list }} {{ [{'a': {'b': 5}}]|map(attribute='a.b')|list }}", [{**LISTS, **PEOPLE}]),
    ("filter_select", "{{ n|select('odd')|list }} {{ n|reject('odd')|list }} {{ n|select('gt', 1)|list }} {{ [0, 1, '', 'a', none]|select|list }} {{ [0, 1, '']|reject|list }} {{ n|select('equalto', 3)|list }} {{ n|select('==', 3)|list }} {{ n|select('in', [1, 2])|list }} {{ n|select('divisibleby', 3)|list }}", [LISTS]),
    ("filter_selectattr", "{{ people|selectattr('vip')|map(attribute='name')|list }} {{ people|selectattr('age', 'equalto', 31)|map(attribute='name')|join }} {{ people|selectattr('age', '>', 30)|list|length }} {{ people|rejectattr('vip')|map(attribute='name')|list }} {{ people|rejectattr('city', 'equalto', 'Ulm')|map(attribute='name')|list }} {{ people|selectattr('vip', 'defined')|list|length }} {{ people|selectattr('vip', 'undefined')|map(attribute='name')|first }} {{ people|selectattr('name', 'in', ['Ann', 'dee'])|list|length }} {{ people|selectattr('city', 'ne', 'Ulm')|list|length }}", [PEOPLE]),
    ("filter_groupby", "{% for g in people|groupby('city') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}{% for k, l in people|groupby('age') %}{{ k }}={{ l|length }} {% endfor %}", [PEOPLE]),
    ("filter_batch_slice", "{{ range(5)|batch(2)|list }} {{ range(5)|batch(2, 0)|list }} {{ range(5)|slice(2)|list }}"),
    ("filter_tojson", "{{ v|tojson }}", [{"v": {"b": [1, 2.0, 1e20, 1e-7, True, None], "a": "é\"\\/\n\t\u0001\u007f\u2028😀<>&'", "é": {}, "l": []}}, {"v": "x"}, {"v": None}, {"v": 3.0}, {"v": []}, {"v": [[], {}]}]),
    ("filter_tojson_options", "{{ v|tojson(indent=2) }}|{{ v|tojson(ensure_ascii=true) }}|{{ v|tojson(separators=(',', ':')) }}|{{ v|tojson(sort_keys=true) }}|{{ v|tojson(indent=4, sort_keys=true) }}", [{"v": {"b": [1, {"x": "é😀"}], "a": {}, "c": []}}]),
    ("filter_tojson_keys", "{{ {1: 'a', true: 'b', none: 'c', 2.5: 'd'}|tojson }}|{{ (1, 2)|tojson }}|{{ 'a'|tojson|length }}|{{ 10000000000000000000000|tojson }}"),
    ("filter_escape", "{{ '<a href=\"x\">&\\'</a>'|escape }}|{{ '<b>'|e }}|{{ '<b>'|safe }}|{{ '<b>' }}|{{ '<b>x</b> <i>y</i>'|striptags }}"),
    ("filter_misc", "{{ 'abcdefghij klmnop'|truncate(9) }}|{{ 'abc'|truncate(9) }}|{{ 'abcdefghijkl'|truncate(5, true, '') }}|{{ '%s-%d'|format('a', 3) }}|{{ 'a b'|urlencode }}|{{ [[1, 2], [3]]|sum(start=[]) }}|{{ 'one two three four'|wordwrap(9) }}|{{ {'a': 1}|attr('a') }}|{{ 1000|filesizeformat }}|{{ {'id': 'x', 'n': none}|xmlattr }}"),
    ("filter_chain", "{{ people|selectattr('vip', 'defined')|rejectattr('age', 'lt', 30)|map(attribute='name')|map('upper')|sort|join(', ')|replace(',', ';')|trim }}|{{ 'a,b'.split(',')|map('trim')|list|length }}|{{ (1 + 2)|string + '!' }}|{{ 'a' + 1|string }}", [PEOPLE]),
    # tests
    ("tests_type", "{% for x in v %}{{ x is string }},{{ x is number }},{{ x is integer }},{{ x is float }},{{ x is boolean }},{{ x is mapping }},{{ x is sequence }},{{ x is iterable }},{{ x is none }},{{ x is true }},{{ x is false }},{{ x is callable }}\n{% endfor %}", [{"v": ["s", 1, 1.5, True, False, None, [1], {"a": 1}]}]),
    ("tests_defined", "{{ a is defined }} {{ b is defined }} {{ b is undefined }} {{ b is not defined }} {{ a.x is defined }} {{ n is defined }} {{ n is none }} {{ n is not none }} {{ b is none }} {{ not b is defined }} {{ a['x'] is defined }} {{ l[5] is defined }} {{ b is string }}", [{"a": {}, "n": None, "l": []}]),
    ("tests_compare", "{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(4) }} {{ 1 is eq 1 }} {{ 1 is equalto(2) }} {{ 1 is ne 2 }} {{ 1 is lt 2 }} {{ 2 is ge 2 }} {{ 'a' is in 'abc' }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is sameas 1 }} {{ none is sameas none }} {{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 3 is not odd }} {{ 2 is greaterthan 1 }}"),
    ("tests_precedence", "{{ 1 is defined and 2 is even }} {{ not 3 is even }} {{ 'a' ~ 'b' is string }} {{ 4 is even == true }} {{ 1 + 1 is even }} {{ x is defined and x.y }}"),
    # methods
    ("string_methods", "{{ ' a '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxa'.lstrip('x') }}|{{ 'axx'.rstrip('x') }}|{{ '\\n\\na\\n'.lstrip('\\n') }}|{{ 'abc'.startswith('ab') }}|{{ 'abc'.endswith(('x', 'c')) }}|{{ 'a,b,,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ 'x'.join(['a', 'b']) }}|{{ 'aXbX'.replace('X', '-') }}|{{ 'aXbX'.replace('X', '-', 1) }}|{{ 'abcabc'.find('c') }}|{{ 'abc'.find('z') }}|{{ 'abcabc'.rfind('c') }}|{{ 'banana'.count('an') }}|{{ 'Abc'.upper() }}|{{ 'Abc'.lower() }}|{{ 'abc def'.title() }}|{{ 'abc DEF'.capitalize() }}|{{ 'Abc'.swapcase() }}"),
    ("string_methods_more", "{{ 'abc'.isalpha() }} {{ '12'.isdigit() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'ab'.isupper() }} {{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ '7'.zfill(3) }} {{ 'x'.ljust(3) }}| {{ 'x'.rjust(3, '.') }} {{ 'x'.center(5, '*') }} {{ 'abc'.index('b') }} {{ 'é'.encode is defined }} {{ 'a{}b{}'.format(1, 'z') }} {{ '{x}'.format(x=3) }} {{ 'Straße'.casefold() }}"),
    ("split_negative", "{{ 'a</think>b</think>c'.split('</think>')[-1] }}|{{ 'a</think>b'.split('</think>')[0].split('<think>')[-1] }}|{{ 'none'.split('|')[-1] }}|{{ ''.split('x') }}|{{ ''.split() }}|{{ 'x'.split('x') }}"),
    ("dict_methods", "{{ d.get('z') }} {{ d.get('q') }} {{ d.get('q', 'def') }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ dict(a=1, b=2) }} {{ dict(d, z=5) }} {{ d.copy() == d }} {{ {'a': 1}.items()|list|length }}", [LISTS]),
    ("list_methods", "{{ n.index(2) }} {{ n.count(3) }} {{ n + [9] }} {{ n|length }} {{ (n + [5])[-1] }} {{ w.copy() }}", [LISTS]),
    ("globals", "{{ range(2)|list }} {{ dict(x=1).x }} {{ lipsum is defined }} {% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }} {% set j = joiner(', ') %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}"),
    ("clock", "{{ strftime_now('%d %b %Y') }}|{{ strftime_now('%Y-%m-%d') }}|{{ strftime_now('%H:%M:%S %A %B %j %y %%') }}|{% if strftime_now is defined %}yes{% endif %}"),
    # whole templates in the style of published ones
    ("style_chatml", "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
     [{"messages": CONVERSATIONS[k], "add_generation_prompt": True} for k in ("turns", "unicode", "markup", "missing_content")]),
    ("style_alternate", "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] | trim + '\n\n' %}{% else %}{% set loop_messages = messages %}{% set system_message = '' %}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if loop.index0 == 0 %}{% set content = system_message + message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + content | trim + ' [/INST]' }}{% elif message['role'] == 'assistant' %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}{% endfor %}",
     [{"messages": CONVERSATIONS[k], "bos_token": "<s>", "eos_token": "</s>"} for k in ("turns", "two_systems", "user", "ends_with_assistant")]),
    ("style_parts", "{%- macro render(content) -%}\n    {%- if content is string -%}\n        {{- content -}}\n    {%- elif content is iterable and content is not mapping -%}\n        {%- for part in content -%}\n            {%- if part.type == 'text' or 'text' in part -%}\n                {{- part.text -}}\n            {%- elif part['type'] == 'image' -%}\n                {{- '<image>' -}}\n            {%- else -%}\n                {{- raise_exception('Unexpected part: ' ~ part.type) -}}\n            {%- endif -%}\n        {%- endfor -%}\n    {%- elif content is none or content is undefined -%}\n        {{- '' -}}\n    {%- endif -%}\n{%- endmacro -%}\n{%- for m in messages %}\n{{ m.role }}: {{ render(m.content) }}\n{%- endfor %}\n",
     [{"messages": [m("user", [{"type": "text", "text": "Look:"}, {"type": "image"}, {"text": " nice?"}]), m("assistant", "yes"), m("tool", None), {"role": "x"}]}, {"messages": [m("user", [{"type": "video"}])]}]),
    ("style_typescript", "{%- macro type_of(p) -%}\n{%- if p.type == 'array' -%}\n{{ type_of(p['items']) if p['items'] is defined and p['items'] else 'any' }}[]\n{%- elif p.type is defined and p.type is iterable and p.type is not string -%}\n{{ p.type | join(' | ') }}\n{%- elif p.enum -%}\n{{ '\"' + p.enum | join('\" | \"') + '\"' }}\n{%- elif p.type in ['integer', 'number'] -%}\nnumber\n{%- elif p.type == 'object' -%}\n{ {% for k, v in p.properties|dictsort %}{{ k }}: {{ type_of(v) }}{{ ', ' if not loop.last }}{% endfor %} }\n{%- else -%}\n{{ p.type | default('any') }}\n{%- endif -%}\n{%- endmacro -%}\n{% for t in tools %}\n// {{ t.name }}\ntype {{ t.name }} = (_: {\n{% for k, v in t.parameters.properties.items() %}\n{% if v.description %}\n  // {{ v.description }}\n{% endif %}\n  {{ k }}{{ '?' if k not in t.parameters.required }}: {{ type_of(v) }},{% if v.default is defined %} // default: {{ v.default | tojson if v.default is not string else v.default }}{% endif +%}\n{% endfor %}\n}) => any;\n{% endfor %}",
     [{"tools": [{"name": "f", "parameters": {"required": ["a"], "properties": {"a": {"type": "integer", "description": "first"}, "b": {"type": "array", "items": {"type": "string"}}, "c": {"enum": ["x", "y"], "default": "x"},
                                                                                 "d": {"type": ["string", "null"], "default": None}, "e": {"type": "object", "properties": {"z": {"type": "number"}, "y": {}}}, "f": {"type": "array"}, "g": {"type": "number", "default": 1.50}}}}]}]),
    ("style_tools_last", "{%- set ns = namespace(last_user=-1, tool_ids=[]) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last_user = loop.index0 -%}{%- endif -%}{%- if m.tool_calls is defined and m.tool_calls is not none and m.tool_calls | length > 0 -%}{%- for t in m.tool_calls -%}{%- set ns.tool_ids = ns.tool_ids + [t.id | default('no-id')] -%}{%- endfor -%}{%- endif -%}{%- endfor -%}{{ ns.last_user }} {{ ns.tool_ids }}{%- for m in messages if m.role != 'system' %} {{ loop.index }}:{{ m.role[0] }}{% if loop.index0 == ns.last_user %}*{% endif %}{%- endfor -%}",
     [{"messages": CONVERSATIONS[k]} for k in ("tool_calls_parallel", "tool_call", "user", "no_messages")]),
    # errors
    ("error_raise", "{% if x %}{{ raise_exception('bad: ' ~ x) }}{% endif %}ok", [{"x": "é"}, {"x": ""}]),
    ("error_undefined_attribute", "{{ missing.attr }}"),
    ("error_undefined_deep", "{{ d.a.b.c }}", [{"d": {"a": {}}}]),
    ("error_undefined_call", "{{ missing() }}"),
    ("error_undefined_add", "{{ 'a' + missing }}"),
    ("error_add_types", "{{ 'a' + 1 }}"),
    ("error_none_attribute_call", "{{ none.strip() }}"),
    ("error_none_concat", "{{ 'a' + content }}", [{"content": None}]),
    ("error_divide", "{{ 1 / 0 }}"),
    ("error_filter", "{{ 1|nope }}"),
    ("error_test", "{{ 1 is nope }}"),
    ("error_syntax_if", "{% if %}x{% endif %}"),
    ("error_syntax_end", "{% for x in y %}"),
    ("error_syntax_brace", "{{ 1 + }}"),
    ("error_unknown_tag", "{% frob %}"),
    ("error_unterminated", "{{ 'abc }}"),
    ("error_unexpected_end", "a{% endif %}"),
    ("error_comment", "{# never closed"),
    ("error_append", "{% set l = [1] %}{{ l.append(2) }}"),
    ("error_update", "{{ d.update({'a': 2}) }}", [{"d": {"a": 1}}]),
    ("error_private", "{{ ''.__class__.__mro__ }}"),
    ("error_private_call", "{{ x.__init__.__globals__ }}", [{"x": "s"}]),
    ("error_big_range", "{% for i in range(1000000) %}x{% endfor %}"),
    ("error_macro_arguments", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}"),
    ("error_macro_keyword", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=2) }}"),
    ("error_unpack", "{% for a, b in [[1]] %}{{ a }}{% endfor %}"),
    ("error_not_iterable", "{% for a in 5 %}{{ a }}{% endfor %}"),
    ("error_sort_mixed", "{{ [1, 'a']|sort }}"),
    ("error_set_attribute", "{% set d.x = 1 %}", [{"d": {}}]),
    ("error_tojson_undefined", "{{ missing|tojson }}"),
    ("error_in_number", "{{ 1 in 5 }}"),
    ("error_compare", "{{ 1 < 'a' }}"),
    ("error_include", "{% include 'x' %}"),
    ("error_break_outside", "{% break %}"),
]


def expressions(template):
    """The expressions of a template that has nothing else but single characters between them, else []."""
    parts, text = [], ""
    for _, kind, value in environment().lex(template):
        if kind in ("block_begin", "comment_begin", "raw_begin") or (kind == "data" and value not in ("|", " ")):
            return []
        if kind == "data":
            continue
        text += value
        if kind == "variable_end":
            parts.append(text)
            text = ""
    return parts if len(parts) > 1 else []


def make(root, only):
    cases = []
    for name in ("qwen3", "deepseek_v3"):
        template = json.loads((DATA / f"{name}.tokenizer_config.json").read_text())["chat_template"]
        for label, context in contexts_for(name):
            cases.append(render(f"{name}/{label}", template, context))
    for entry in SNIPPETS:
        name, template = entry[0], entry[1]
        contexts = entry[2] if len(entry) > 2 else [{}]
        try:
            parts = expressions(template)
        except jinja2.TemplateSyntaxError:
            parts = []
        for i, context in enumerate(contexts):
            label = f"snippet/{name}" + (f"/{i}" if len(contexts) > 1 else "")
            if parts:  # one case per expression, so that a failure names it
                cases += [render(f"{label}/e{j}", part, context) for j, part in enumerate(parts)]
            else:
                cases.append(render(label, template, context))
    text = "[\n" + ",\n".join(json.dumps(c, ensure_ascii=False) for c in cases) + "\n]\n"
    common.write_text(root / "template" / "cases.json", text)
    errors = sum("error" in c for c in cases)
    return {"template": {"cases": len(cases), "errors": errors}}, ["template"]


if __name__ == "__main__":
    common.main("template", make, PACKAGES, __doc__)
