// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/log.h"
#include "tokenizer/message_encoding.h"

namespace pointsman {
namespace {

constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
constexpr std::string_view kUser = "<｜User｜>";
constexpr std::string_view kAssistant = "<｜Assistant｜>";
constexpr std::string_view kReminder = "<｜latest_reminder｜>";
constexpr std::string_view kThink = "<think>";
constexpr std::string_view kEndThink = "</think>";
constexpr std::string_view kDsml = "｜DSML｜";
constexpr std::string_view kTokens[] = {kBos, kEos, kUser, kAssistant, kReminder, kThink, kEndThink, kDsml};

constexpr std::string_view kHighEffort =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic "
    "against all potential paths, edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure "
    "absolutely no assumption is left unchecked.\n\n";
constexpr std::string_view kMaxEffort =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental "
    "components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and "
    "no error remains undiscovered.\n\n";
constexpr std::string_view kToolsBefore =
    "\n\n## Tools\n\n"
    "You have access to a set of tools to help answer the user's question. You can invoke tools by writing a \"<｜DSML｜tool_calls>\" block like the "
    "following:\n\n"
    "<｜DSML｜tool_calls>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME\">\n"
    "<｜DSML｜parameter name=\"$PARAMETER_NAME\" string=\"true|false\">$PARAMETER_VALUE</｜DSML｜parameter>\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "<｜DSML｜invoke name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜invoke>\n"
    "</｜DSML｜tool_calls>\n\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON "
    "format and set `string=\"false\"`.\n\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final "
    "response.\n\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n\n"
    "### Available Tool Schemas\n\n";
constexpr std::string_view kToolsAfter = "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n";
constexpr std::string_view kJsonObject =
    "\n\nYou are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY.";
constexpr std::string_view kJsonSchema = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";
constexpr std::string_view kCallsBegin = "\n\n<｜DSML｜tool_calls>\n";
constexpr std::string_view kCallsEnd = "</｜DSML｜tool_calls>";

// A double as the vendor's encoder prints it: shortest digits; plain from 1e-5 to below 1e16, else 1.5e+300, 1e-7.
std::string number(double v) {
  if (!std::isfinite(v)) return "null";
  char digits[40];
  const auto end = std::to_chars(digits, digits + sizeof digits, v, std::chars_format::scientific).ptr;
  const std::string_view text(digits, static_cast<size_t>(end - digits));
  const size_t e = text.find('e');
  int exponent = 0;
  std::from_chars(text.data() + e + (text[e + 1] == '+' ? 2 : 1), text.data() + text.size(), exponent);
  if (v != 0 && (exponent < -5 || exponent >= 16)) return format("{}e{}{}", text.substr(0, e), exponent < 0 ? "-" : "+", std::abs(exponent));
  char plain[64];
  const auto plain_end = std::to_chars(plain, plain + sizeof plain, v, std::chars_format::fixed).ptr;
  std::string result(plain, static_cast<size_t>(plain_end - plain));
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

// ", " and ": " between parts; non-ASCII as it is.
void dump(const Json& j, std::string& out) {
  if (j.is_array()) {
    out += '[';
    for (size_t i = 0; i < j.as_array().size(); ++i) {
      if (i > 0) out += ", ";
      dump(j.as_array()[i], out);
    }
    out += ']';
  } else if (j.is_object()) {
    out += '{';
    bool first = true;
    for (const auto& [key, value] : j.as_object()) {
      if (!std::exchange(first, false)) out += ", ";
      out += json_quote(key) + ": ";
      dump(value, out);
    }
    out += '}';
  } else {
    out += j.is_double() ? number(j.as_double()) : j.dump();
  }
}
std::string dumped(const Json& j) {
  std::string out;
  dump(j, out);
  return out;
}

class Prompt {
 public:
  void token(std::string_view t) { pieces_.push_back({.is_token = true, .text = std::string(t)}); }
  // Not ours: stays text.
  void text(std::string_view t) {
    if (t.empty()) return;
    if (pieces_.empty() || pieces_.back().is_token) pieces_.push_back({});
    pieces_.back().text += t;
  }
  // Ours: spellings of tokens in it are tokens.
  void markup(std::string_view t) {
    while (!t.empty()) {
      size_t at = t.size();
      std::string_view found;
      for (const std::string_view candidate : kTokens) {
        if (const size_t p = t.find(candidate); p < at) at = p, found = candidate;
      }
      text(t.substr(0, at));
      if (found.empty()) return;
      token(found);
      t.remove_prefix(at + found.size());
    }
  }
  std::vector<PromptPiece> take() { return std::move(pieces_); }

 private:
  std::vector<PromptPiece> pieces_;
};

struct Call {
  std::string id, name;
  Json arguments;  // an object; a string when it is none
};

struct Message {
  size_t number;
  std::string role, content, tool_call_id;
  std::optional<std::string> reasoning;
  std::vector<Call> calls;
  bool prefix = false;
};

struct Options {
  bool thinking = true;
  bool keep_reasoning = false;
  std::string effort = "high", tool_choice = "auto";
};

template <class... Args>
Status wrong(size_t message, fmt::format_string<Args...> text, Args&&... args) {
  return error(StatusCode::kInvalidArgument, "messages[{}]: {}", message, fmt::format(text, std::forward<Args>(args)...));
}

// A string; null and absent are "".
Result<std::string> string_of(const Json& j, std::string_view key, size_t message) {
  const Json* v = j.find(key);
  if (v == nullptr || v->is_null()) return std::string();
  if (!v->is_string()) return wrong(message, "{} is {}, expected a string", key, v->type_name());
  return v->as_string();
}

Result<std::vector<Call>> calls_of(const Json& m, size_t message) {
  std::vector<Call> calls;
  const Json* list = m.find("tool_calls");
  if (list == nullptr || list->is_null()) return calls;
  if (!list->is_array()) return wrong(message, "tool_calls is {}, expected a list", list->type_name());
  for (const Json& entry : list->as_array()) {
    const Json* f = entry.find("function");
    const Json& function = f != nullptr ? *f : entry;
    Call call;
    PM_ASSIGN_OR_RETURN(call.id, string_of(entry, "id", message));
    PM_ASSIGN_OR_RETURN(call.name, string_of(function, "name", message));
    if (call.name.empty()) return wrong(message, "a tool call without a name");
    const Json* arguments = function.find("arguments");
    call.arguments = arguments != nullptr ? *arguments : Json::object();
    if (call.arguments.is_string()) {
      Result<Json> parsed = parse_json(call.arguments.as_string());
      if (parsed.ok() && parsed->is_object()) call.arguments = std::move(*parsed);
    } else if (!call.arguments.is_object()) {
      return wrong(message, "arguments of {} are {}, expected an object or its text", call.name, call.arguments.type_name());
    }
    calls.push_back(std::move(call));
  }
  return calls;
}

Result<std::vector<Message>> read_messages(const Json& list) {
  if (!list.is_array()) return error(StatusCode::kInvalidArgument, "messages: {}, expected a list", list.type_name());
  std::vector<Message> messages;
  for (size_t i = 0; i < list.as_array().size(); ++i) {
    const Json& m = list.as_array()[i];
    if (!m.is_object()) return wrong(i, "{}, expected an object", m.type_name());
    Message out{.number = i};
    PM_ASSIGN_OR_RETURN(out.role, string_of(m, "role", i));
    constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool", "latest_reminder"};
    if (std::find(std::begin(kRoles), std::end(kRoles), out.role) == std::end(kRoles)) {
      return wrong(i, "role \"{}\" is none of system, user, assistant, tool, latest_reminder", out.role.substr(0, 64));
    }
    PM_ASSIGN_OR_RETURN(out.content, string_of(m, "content", i));
    PM_ASSIGN_OR_RETURN(out.tool_call_id, string_of(m, "tool_call_id", i));
    if (const Json* r = m.find("reasoning_content"); r != nullptr && !r->is_null()) {
      PM_ASSIGN_OR_RETURN(out.reasoning, string_of(m, "reasoning_content", i));
    }
    PM_ASSIGN_OR_RETURN(out.calls, calls_of(m, i));
    if (const Json* p = m.find("prefix"); p != nullptr && p->is_bool()) out.prefix = p->as_bool();
    messages.push_back(std::move(out));
  }
  return messages;
}

Result<Options> read_options(const Json& extra) {
  Options o;
  for (const std::string_view key : {"enable_thinking", "thinking"}) {
    const Json* v = extra.find(key);
    if (v == nullptr || v->is_null()) continue;
    if (!v->is_bool()) return error(StatusCode::kInvalidArgument, "{}: {}, expected true or false", key, v->type_name());
    o.thinking = v->as_bool();
  }
  const auto choice = [&](std::string_view key, std::initializer_list<std::string_view> known, std::string& out) -> Status {
    const Json* v = extra.find(key);
    if (v == nullptr || v->is_null()) return ok_status();
    if (!v->is_string() || std::find(known.begin(), known.end(), v->as_string()) == known.end()) {
      return error(StatusCode::kInvalidArgument, "{}: {} is none of {}", key, v->dump().substr(0, 64), fmt::join(known, ", "));
    }
    out = v->as_string();
    return ok_status();
  };
  PM_RETURN_IF_ERROR(choice("reasoning_effort", {"low", "high", "xhigh", "max"}, o.effort));
  PM_RETURN_IF_ERROR(choice("tool_choice", {"auto", "none", "required"}, o.tool_choice));
  return o;
}

// Name, description and schema of every tool, a line each.
Result<std::string> tool_lines(const Json& tools) {
  std::string lines;
  if (!tools.is_array()) return error(StatusCode::kInvalidArgument, "tools: {}, expected a list", tools.type_name());
  for (const Json& entry : tools.as_array()) {
    const Json* f = entry.find("function");
    const Json& function = f != nullptr ? *f : entry;
    const Json *name = function.find("name"), *description = function.find("description"), *parameters = function.find("parameters");
    if (name == nullptr || !name->is_string()) return error(StatusCode::kInvalidArgument, "tools: an entry without a name");
    Json line = Json::object();
    line.set("name", *name);
    line.set("description", description != nullptr && description->is_string() ? *description : Json(""));
    line.set("parameters", parameters != nullptr ? *parameters : Json());
    lines += dumped(line) + "\n";
  }
  return lines;
}

Status write_front(const ChatRequest& request, const std::vector<Message>& messages, const Options& o, bool has_tools, Prompt& out) {
  out.token(kBos);
  if (o.thinking && o.effort != "low") out.text(o.effort == "max" ? kMaxEffort : kHighEffort);
  bool any = false;
  for (const Message& m : messages) {
    if (m.role != "system" || m.content.empty()) continue;
    if (std::exchange(any, true)) out.text("\n\n");
    out.text(m.content);
  }
  if (has_tools) {
    PM_ASSIGN_OR_RETURN(const std::string lines, tool_lines(request.tools));
    out.markup(kToolsBefore);
    out.text(lines);
    out.text(kToolsAfter);
  }
  if (const Json* schema = request.extra.find("response_schema"); schema != nullptr && !schema->is_null()) {
    out.text(kJsonSchema);
    out.text(dumped(*schema));
  } else if (const Json* f = request.extra.find("response_format"); f != nullptr && f->is_string() && f->as_string() == "json_object") {
    out.text(kJsonObject);
  }
  return ok_status();
}

void write_calls(const std::vector<Call>& calls, Prompt& out) {
  out.markup(kCallsBegin);
  const auto parameter = [&](std::string_view name, const Json& value) {
    out.markup("<｜DSML｜parameter name=\"");
    out.text(name);
    out.text(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
    out.text(value.is_string() ? value.as_string() : dumped(value));
    out.markup("</｜DSML｜parameter>\n");
  };
  for (const Call& c : calls) {
    out.markup("<｜DSML｜invoke name=\"");
    out.text(c.name);
    out.text("\">\n");
    if (c.arguments.is_object()) {
      for (const auto& [name, value] : c.arguments.as_object()) parameter(name, value);
    } else {
      parameter("arguments", c.arguments);
    }
    out.markup("</｜DSML｜invoke>\n");
  }
  out.markup(kCallsEnd);
}

// Returns whether the answer is left open.
bool write_assistant(const Message& m, const Options& o, bool is_last, Prompt& out) {
  out.token(kAssistant);
  const bool continued = m.prefix && is_last;
  if (m.reasoning && (o.keep_reasoning || m.prefix)) {
    out.token(kThink);
    out.text(*m.reasoning);
    // What is continued may be the reasoning itself.
    if (!(continued && o.thinking && m.content.empty() && m.calls.empty())) out.token(kEndThink);
  } else {
    out.token(kEndThink);
  }
  out.text(m.content);
  if (!m.calls.empty()) write_calls(m.calls, out);
  if (!continued) out.token(kEos);
  return continued;
}

// Tool results in the order of the calls, then texts.
Status write_user(std::vector<const Message*> turn, const std::vector<Call>& calls, Prompt& out) {
  size_t results = 0, known = 0;
  const auto order = [&](const Message* m) {
    return std::find_if(calls.begin(), calls.end(), [&](const Call& c) { return c.id == m->tool_call_id; }) - calls.begin();
  };
  for (; results < turn.size() && turn[results]->role == "tool"; ++results) known += order(turn[results]) < static_cast<ptrdiff_t>(calls.size()) ? 1 : 0;
  for (size_t i = results; i < turn.size(); ++i) {
    if (turn[i]->role == "tool") return wrong(turn[i]->number, "a tool result after a text of the user; results come first");
  }
  if (known == results) {
    std::stable_sort(turn.begin(), turn.begin() + static_cast<ptrdiff_t>(results), [&](const Message* a, const Message* b) { return order(a) < order(b); });
  } else if (known > 0) {
    return wrong(turn[0]->number, "some of {} tool results name no call of the answer before", results);
  }
  out.token(kUser);
  for (size_t i = 0; i < turn.size(); ++i) {
    if (i > 0) out.text("\n\n");
    if (turn[i]->role == "tool") out.text("<tool_result>");
    out.text(turn[i]->content);
    if (turn[i]->role == "tool") out.text("</tool_result>");
  }
  return ok_status();
}

}  // namespace

Result<std::vector<PromptPiece>> render_deepseek_v4(const ChatRequest& request) {
  PM_ASSIGN_OR_RETURN(const std::vector<Message> messages, read_messages(request.messages));
  PM_ASSIGN_OR_RETURN(Options o, read_options(request.extra));
  const bool has_tools = o.tool_choice != "none" && request.tools.is_array() && !request.tools.as_array().empty();
  o.keep_reasoning = has_tools;
  Prompt out;
  PM_RETURN_IF_ERROR(write_front(request, messages, o, has_tools, out));

  std::vector<const Message*> turn;  // of the user
  const std::vector<Call>* calls = nullptr;
  bool is_open = false;
  const auto end_turn = [&]() -> Status {
    if (turn.empty()) return ok_status();
    return write_user(std::exchange(turn, {}), calls != nullptr ? *calls : std::vector<Call>{}, out);
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& m = messages[i];
    if (m.role == "user" || m.role == "tool") {
      turn.push_back(&m);
    } else if (m.role == "assistant") {
      PM_RETURN_IF_ERROR(end_turn());
      is_open = write_assistant(m, o, i + 1 == messages.size(), out);
      calls = &m.calls;
    } else if (m.role == "latest_reminder") {
      PM_RETURN_IF_ERROR(end_turn());
      out.token(kReminder);
      out.text(m.content);
    }
  }
  PM_RETURN_IF_ERROR(end_turn());
  if (request.add_generation_prompt && !is_open) {
    out.token(kAssistant);
    out.token(o.thinking ? kThink : kEndThink);
    if (has_tools && o.tool_choice == "required") out.markup(kCallsBegin);
  }
  return out.take();
}

Json parse_deepseek_v4_answer(std::string_view text) {
  Json m = Json::object();
  m.set("role", "assistant");
  // The prompt ended in <think> or </think>; the answer brings at most the end of the reasoning.
  if (const size_t end = text.find(kEndThink); end != std::string_view::npos) {
    std::string_view reasoning = text.substr(0, end);
    if (reasoning.starts_with(kThink)) reasoning.remove_prefix(kThink.size());
    m.set("reasoning_content", reasoning);
    text.remove_prefix(end + kEndThink.size());
  }
  m.set("content", text);
  return m;
}

}  // namespace pointsman
