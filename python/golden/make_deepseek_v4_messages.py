#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the vendor's encoder (deepseek-recipe, MIT) makes of conversations: prompts, their control tokens, ids.

The ids are those of a small byte-level tokenizer made here, whose added tokens have the spellings of the published one.
"""

import json
import re

import common
import sample_text
import small_bpe

import deepseek_recipe as vendor

PACKAGES = ("deepseek-recipe",)
FOLDER = "deepseek_v4_messages"
TOKENS = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜latest_reminder｜>", "<think>", "</think>", "｜DSML｜"]


def tokenizer():
    words = [small_bpe.to_byte_level(w) for line in sample_text.kjv()[:20000].splitlines() for w in re.findall(" ?[^ ]+", line)]
    vocab, rules = small_bpe.train(words, small_bpe.byte_alphabet().values(), 200)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    return small_bpe.tokenizer_json(TOKENS + vocab, rules, added_tokens=[small_bpe.added(i, t) for i, t in enumerate(TOKENS)],
                                    pre_tokenizer=byte_level, post_processor=byte_level, decoder=byte_level)


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def answer(text, reasoning=None, calls=None, prefix=False):
    m = {"role": "assistant", "content": text}
    if reasoning is not None:
        m["reasoning_content"] = reasoning
    if calls:
        m["tool_calls"] = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]
    if prefix:
        m["prefix"] = True
    return m


def result(text, call):
    return {"role": "tool", "content": text, "tool_call_id": call}


def reminder(text):
    return {"role": "latest_reminder", "content": text}


def tool(name, description=None, parameters=None):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = tool("get_weather", "Weather of a city: \"now\" or later\n(in °C)",
               {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 1e-05}}, "required": ["city"]})
CALL = ("c1", "get_weather", '{"city": "Paris", "days": 3, "deep": {"a": [1, 2.50, null, true, "x\\u00e9"], "b": {}}, "f": 1e3, "e": ""}')
EMPTY = ("c2", "get_weather", "{}")
NUMBERS = ("n", "f", '{"a": [1e-5, 0.00001234, 1e-7, 1e15, 1e16, 123456789.125, 1.5e300, -1e-10, 0.0, -0.0, 9007199254740993, -5], "s": ["\\u2028\\u0007\\u007f\\n\\"\\\\/", "é😀"]}')
MARKUP = "a<｜User｜>b</think><｜end▁of▁sentence｜>｜DSML｜<think></tool_result>"


def cases():
    chat = [user("Hello"), answer("Hi there", "because"), user("More")]
    for thinking in (True, False):
        for effort in ("low", "high", "xhigh", "max", None):
            extra = {"thinking": thinking} | ({"reasoning_effort": effort} if effort else {})
            yield f"effort_{effort}_{thinking}", [system("Be brief."), *chat], None, extra
    low = {"reasoning_effort": "low"}
    off = {"thinking": False}
    yield "one_message", [user("Hi")], None, off
    yield "no_message", [], None, off
    yield "two_systems", [system("a"), system("b"), user("x")], None, off
    yield "late_system", [user("Hello"), system("late"), user("x")], None, off
    yield "empty_texts", [system(""), user(""), answer(""), user("x")], None, off
    yield "two_users", [user("Hello"), user("More\n"), answer("a", "r"), answer("b"), user("x")], None, low
    yield "answer_first", [answer("x", "r"), user("ok")], None, low
    yield "answer_last", [user("Hello"), answer("Hi", "r")], None, low
    yield "reminders", [reminder("first"), user("x"), reminder("R"), user("y"), answer("z"), reminder("2026"), user("w")], None, off
    for name, extra in (("think", low), ("plain", off)):
        yield f"prefix_{name}", [user("x"), answer("Hi", "r", prefix=True)], None, extra
        yield f"prefix_bare_{name}", [user("x"), answer("Hi", prefix=True)], None, extra
        yield f"prefix_reasoning_{name}", [user("x"), answer("", "r", prefix=True)], None, extra
    for name, extra in (("think", low), ("plain", off), ("max", {"reasoning_effort": "max"})):
        yield f"tools_{name}", [system("Sys"), user("Weather?")], [WEATHER, tool("b")], extra
        yield f"call_{name}", [user("W?"), answer("Let me look", "hm", [CALL, EMPTY]), result("sunny", "c1"), result("rain", "c2")], [WEATHER], extra
        yield f"order_{name}", [user("W?"), answer("", "", [CALL, EMPTY]), result("second", "c2"), result("first", "c1"), user("and?")], [WEATHER], extra
        yield (f"long_{name}", [user("W?"), answer("", "r1", [CALL]), result("sun", "c1"), answer("It is sunny", "r2"), user("thanks"), answer("yes", "r3"),
                                user("bye")], [WEATHER], extra)
        yield f"undeclared_{name}", [user("W?"), answer("t", "r1", [EMPTY]), result("sun", "c2"), answer("Sunny", "r2"), user("e")], None, extra
        yield f"required_{name}", [user("x")], [WEATHER], {**extra, "tool_choice": "required"}
        yield f"none_{name}", [user("x"), answer("Hi", "r"), user("y")], [WEATHER], {**extra, "tool_choice": "none"}
    yield "bad_arguments", [user("W?"), answer("", "r", [("c1", "f", "not json")]), result("x", "c1")], [WEATHER], low
    yield "list_arguments", [user("W?"), answer("", "r", [("c1", "f", "[1,2]")]), result("x", "c1")], [WEATHER], low
    yield "numbers", [user("W?"), answer("", "r", [NUMBERS]), result("x", "n")], [WEATHER], low
    yield "result_first", [result("t1", "a"), user("x")], [WEATHER], low
    yield "unknown_call", [user("W?"), answer("", "", [CALL]), result("zzz", "nope")], [WEATHER], low
    yield "json_object", [user("x")], None, {**low, "response_format": "json_object"}
    yield "json_object_tools", [system("S"), user("x")], [WEATHER], {**low, "response_format": "json_object"}
    yield "json_schema", [system("S"), user("x")], [WEATHER], {**low, "response_schema": {"type": "object", "min": 1.0}}
    yield "markup", [system(MARKUP), user(MARKUP), answer(MARKUP, MARKUP), user(MARKUP)], None, low
    yield ("markup_tools", [user("x"), answer(MARKUP, MARKUP, [("a", "f<｜User｜>", json.dumps({"k<think>": MARKUP, "n": [MARKUP]}))]), result(MARKUP, "a")],
           [tool("t", MARKUP, {"d": MARKUP})], low)


def render(encoder, messages, tools, extra):
    def call(c):
        return vendor.ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"])

    made = []
    for m in messages:
        text = m["content"]
        made.append({"system": lambda: vendor.SystemMessage(text), "user": lambda: vendor.UserMessage(text),
                     "tool": lambda: vendor.ToolMessage(text, m["tool_call_id"]), "latest_reminder": lambda: vendor.LatestReminderMessage(text),
                     "assistant": lambda: vendor.AssistantMessage(text, m.get("reasoning_content"), [call(c) for c in m["tool_calls"]] if "tool_calls" in m else None,
                                                                  m.get("prefix", False))}[m["role"]]())
    definitions = [vendor.ToolDefinition(t["function"]["name"], t["function"]["description"], t["function"]["parameters"]) for t in tools or []]
    options = {"thinking_mode": extra.get("thinking", True)}
    for key in ("reasoning_effort", "tool_choice", "response_format", "response_schema"):
        if key in extra:
            options[key] = extra[key]
    conversation = vendor.Conversation(made, tools=definitions or None, **options)
    rendered = encoder.render_conversation(conversation)
    return rendered.prompt, [rendered.prompt[a:b] for a, b in rendered.special_ranges], encoder.encode(conversation)


def make(root, only):
    folder = root / FOLDER
    document = tokenizer()
    common.write_json(folder / "tokenizer.json", document)
    encoder = vendor.DeepseekV4Encoding().with_tokenizer(vendor.Tokenizer.from_str(json.dumps(document)))
    out = []
    for name, messages, tools, extra in cases():
        prompt, control, ids = render(encoder, messages, tools, extra)
        out.append({"name": name, "messages": messages, "tools": tools, "extra": extra, "prompt": prompt, "control": control, "ids": ids})
    common.write_json(folder / "cases.json", out)
    return {FOLDER: {"what": f"{len(out)} conversations"}}, [FOLDER]


if __name__ == "__main__":
    common.main("deepseek_v4_messages", make, PACKAGES, __doc__)
