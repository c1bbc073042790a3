// SPDX-License-Identifier: Apache-2.0
//
// Runs a compiled template over a context. Semantics are those of jinja2's ImmutableSandboxedEnvironment as transformers sets
// it up: undefined values print as nothing and fail when used, lists and dicts cannot be changed, only namespaces can.
//
// Everything is bounded: steps, nesting, output, memory. The first failure is kept and everything unwinds: functions then
// return undefined values, which nobody looks at.
//
// One Interpreter is one rendering on one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/log.h"
#include "pointsman/status.h"
#include "tokenizer/jinja/ast.h"
#include "tokenizer/jinja/value.h"

namespace pointsman::jinja {

// What strftime_now() reads.
struct Clock {
  std::optional<int64_t> unix_seconds;
  int64_t utc_offset_seconds = 0;
};

struct Limits {
  uint64_t max_steps = 10'000'000;
  int max_depth = 400;  // of calls, expressions and statements together
};

struct Scope {
  Scope* parent = nullptr;
  bool captured = false;  // a macro refers to it: it must stay
  std::vector<std::pair<int, Value>> values;
};

// Arguments of a call, evaluated.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  bool empty() const { return positional.empty() && named.empty(); }
};

class Interpreter {
 public:
  Interpreter(const Template& tmpl, Clock clock, Limits limits);
  Result<std::string> run(const Json& context);

  // --- for filters, tests and methods ---
  bool failed() const { return !status_.ok(); }
  // Records the first failure, with the line, and returns an undefined value.
  template <class... Args>
  Value fail(fmt::format_string<Args...> f, Args&&... args) {
    return fail_with(StatusCode::kInvalidArgument, fmt::format(f, std::forward<Args>(args)...));
  }
  Value fail_with(StatusCode code, std::string message);
  // Using an undefined value where it may not be used.
  Value undefined_error(const Value& v);
  // Charges work; false when it is used up.
  bool step(uint64_t n = 1);
  // False, with a failure, beyond the limit of one text.
  bool check_size(size_t bytes);
  Heap& heap() { return heap_; }
  Value string(std::string text, bool markup = false);
  std::string to_str(const Value& v);
  // What `for` goes through: items, keys of a dict, characters of a string. False with a failure.
  bool iterate(const Value& v, std::vector<Value>& out);
  Value get_attribute(const Value& object, std::string_view name);
  Value get_item(const Value& object, const Value& key);
  bool contains(const Value& container, const Value& item);
  // equal() and less(), charged as steps.
  bool same(const Value& a, const Value& b);
  bool before(const Value& a, const Value& b, bool& ok);
  Value binary(Op op, const Value& a, const Value& b);
  bool compare(Op op, const Value& a, const Value& b);
  Value call(const Value& callee, const Arguments& arguments);
  Value apply_filter(std::string_view name, const Value& input, const Arguments& arguments);
  bool apply_test(std::string_view name, const Value& input, const Arguments& arguments);
  Value call_method(const Value& self, std::string_view name, const Arguments& arguments);
  Value call_builtin(std::string_view name, const Arguments& arguments);
  std::string strftime(std::string_view pattern);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  // Counts nesting; `ok` is false, with a failure, when it is too deep.
  struct Nest {
    explicit Nest(Interpreter& interpreter);
    ~Nest() { --owner.depth_; }
    Interpreter& owner;
    bool ok;
  };

  Flow run_body(const Body& body);
  Flow run_statement(const Stmt& s);
  Flow run_for(const Stmt& s);
  void emit(std::string_view text);
  std::string capture(const Body& body, Flow& flow, Scope* parent);
  Value filtered(const std::vector<Suffix>& filters, Value value);
  void assign(const Target& target, const Value& value);
  void set_variable(int symbol, Value value);
  Scope* new_scope(Scope* parent);

  Value eval(const Expr& e);
  Value eval_chain(const Expr& e);
  Value eval_postfix(const Expr& e);
  Value eval_name(const Expr& e);
  Value slice(const Value& object, const Suffix& s);
  Arguments eval_arguments(const std::vector<Argument>& arguments);
  Value power(const Value& a, const Value& b);
  Value add(const Value& a, const Value& b);
  Value repeat(const Value& sequence, int64_t times);
  Value format_text(std::string_view pattern, const Value& arguments);
  Value call_macro(const Object& macro, const Arguments& arguments);
  Value loop_attribute(const Object& loop, std::string_view name);

  const Template& template_;
  Clock clock_;
  Limits limits_;
  Heap heap_;
  std::vector<std::optional<Value>> context_;  // by symbol
  std::deque<Scope> scopes_;                   // those that macros refer to
  Scope root_;
  Scope* scope_ = &root_;
  std::string* out_ = nullptr;
  uint64_t steps_ = 0;
  int depth_ = 0;
  int line_ = 0;
  Status status_;
};

}  // namespace pointsman::jinja
