// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/jinja/interpreter.h"

#include <algorithm>

#include "tokenizer/jinja/python_text.h"
#include "tokenizer/utf8.h"

namespace pointsman::jinja {

Interpreter::Interpreter(const Template& tmpl, Clock clock, Limits limits) : template_(tmpl), clock_(clock), limits_(limits) {}

Interpreter::Nest::Nest(Interpreter& interpreter)
    : owner(interpreter), ok(++interpreter.depth_ <= interpreter.limits_.max_depth) {
  if (!ok) owner.fail("nested deeper than {} levels", owner.limits_.max_depth);
}

Result<std::string> Interpreter::run(const Json& context) {
  context_.resize(template_.symbols.size());
  for (size_t i = 0; i < context_.size(); ++i) {
    const Json* member = context.find(template_.symbols[i]);
    if (member == nullptr) continue;
    Value v;
    PM_RETURN_IF_ERROR(from_json(heap_, *member, v));
    context_[i] = std::move(v);
  }
  std::string out;
  out_ = &out;
  run_body(template_.body);
  if (failed()) return status_;
  return out;
}

Value Interpreter::fail_with(StatusCode code, std::string message) {
  if (status_.ok()) status_ = error(code, "template, line {}: {}", line_, message);
  return {};
}

Value Interpreter::undefined_error(const Value& v) {
  return fail("{}", v.text().empty() ? "an undefined value" : v.text());
}

bool Interpreter::step(uint64_t n) {
  if (failed()) return false;
  steps_ += n;
  if (steps_ > limits_.max_steps) return fail("more than {} steps", limits_.max_steps), false;
  if (heap_.is_full()) return fail("more than {} bytes of values", Heap::kMaxBytes), false;
  return true;
}

bool Interpreter::check_size(size_t bytes) {
  if (bytes <= kMaxTextBytes) return !failed();
  fail("a text of more than {} bytes", kMaxTextBytes);
  return false;
}

Value Interpreter::string(std::string text, bool markup) {
  // Copying is work, too.
  if (!check_size(text.size()) || !step(text.size() / 256)) return {};
  return heap_.string(std::move(text), markup);
}

std::string Interpreter::to_str(const Value& v) {
  std::string out;
  append_str(out, v);
  step(out.size() / 256);
  check_size(out.size());
  return out;
}

void Interpreter::emit(std::string_view text) {
  if (check_size(out_->size() + text.size()) && step(text.size() / 256)) *out_ += text;
}

// --- statements ---

Interpreter::Flow Interpreter::run_body(const Body& body) {
  Nest nest(*this);
  for (const auto& s : body) {
    if (!nest.ok || !step()) return Flow::kBreak;
    line_ = s->line;
    const Flow flow = run_statement(*s);
    if (failed()) return Flow::kBreak;
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_statement(const Stmt& s) {
  switch (s.kind) {
    case Stmt::Kind::kText: emit(s.text); return Flow::kNormal;
    case Stmt::Kind::kPrint: {
      const Value v = eval(*s.exprs[0]);
      if (failed()) return Flow::kBreak;
      if (v.is_string()) {
        emit(v.text());
      } else {
        emit(to_str(v));
      }
      return Flow::kNormal;
    }
    case Stmt::Kind::kIf:
      for (size_t i = 0; i < s.exprs.size(); ++i) {
        const bool yes = truthy(eval(*s.exprs[i]));
        if (failed()) return Flow::kBreak;
        if (yes) return run_body(s.bodies[i]);
      }
      return s.bodies.size() > s.exprs.size() ? run_body(s.bodies.back()) : Flow::kNormal;
    case Stmt::Kind::kFor: return run_for(s);
    case Stmt::Kind::kSet: assign(s.target, eval(*s.exprs[0])); return Flow::kNormal;
    case Stmt::Kind::kSetBlock:
    case Stmt::Kind::kFilter:
    case Stmt::Kind::kGeneration: {
      Flow flow = Flow::kNormal;
      Value text = string(capture(s.bodies[0], flow, scope_));
      if (flow != Flow::kNormal) return flow;
      text = filtered(s.filters, std::move(text));
      if (s.kind == Stmt::Kind::kSetBlock) {
        assign(s.target, text);
      } else if (!failed()) {
        emit(to_str(text));
      }
      return Flow::kNormal;
    }
    case Stmt::Kind::kMacro: {
      Value macro = heap_.object(Kind::kMacro);
      macro.ref().macro = s.macro.get();
      macro.ref().scope = scope_;
      for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) scope->captured = true;
      set_variable(s.symbol, std::move(macro));
      return Flow::kNormal;
    }
    case Stmt::Kind::kWith: {
      std::vector<Value> values;
      for (const ExprPtr& e : s.exprs) values.push_back(eval(*e));
      scope_ = new_scope(scope_);
      for (size_t i = 0; i < values.size() && !failed(); ++i) assign(s.targets[i], values[i]);
      const Flow flow = failed() ? Flow::kBreak : run_body(s.bodies[0]);
      scope_ = scope_->parent;
      return flow;
    }
    case Stmt::Kind::kBreak: return Flow::kBreak;
    case Stmt::Kind::kContinue: return Flow::kContinue;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::run_for(const Stmt& s) {
  std::vector<Value> items;
  if (!iterate(eval(*s.exprs[0]), items)) return Flow::kBreak;
  Scope* outer = scope_;
  Scope* inner = new_scope(outer);
  // A scope that no macro has seen serves the next iteration as well.
  const auto fresh_scope = [&] {
    if (inner->captured) inner = new_scope(outer);
    heap_.release(inner->values.size() * sizeof(inner->values[0]));
    inner->values.clear();
    scope_ = inner;
  };
  if (s.exprs[1] != nullptr) {
    std::vector<Value> kept;
    for (const Value& item : items) {
      fresh_scope();
      assign(s.target, item);
      const bool yes = truthy(eval(*s.exprs[1]));
      if (failed() || !step()) break;
      if (yes) kept.push_back(item);
    }
    items = std::move(kept);
  }
  // As in Jinja, 'else' is for loops of which no iteration came to its end: 'continue' and 'break' count as not.
  bool ran_through = false;
  const Value loop = heap_.list(std::move(items), Kind::kLoop);
  Object& state = loop.ref();
  for (state.cursor = 0; state.cursor < state.items.size() && step(); ++state.cursor) {
    fresh_scope();
    set_variable(template_.loop_symbol, loop);
    line_ = s.line;
    assign(s.target, state.items[state.cursor]);
    if (failed()) break;
    const Flow flow = run_body(s.bodies[0]);
    ran_through = ran_through || flow == Flow::kNormal;
    if (flow == Flow::kBreak) break;
  }
  scope_ = outer;
  // Loops inside loops would add up. A `loop` that was kept somewhere has no neighbours any more.
  heap_.release(state.items.size() * sizeof(Value));
  state.items = {};
  if (ran_through || failed() || s.bodies.size() < 2) return Flow::kNormal;
  fresh_scope();
  const Flow flow = run_body(s.bodies[1]);
  scope_ = outer;
  return flow;
}

std::string Interpreter::capture(const Body& body, Flow& flow, Scope* parent) {
  std::string text;
  std::string* const outer_out = std::exchange(out_, &text);
  Scope* const outer_scope = scope_;
  scope_ = new_scope(parent);
  flow = run_body(body);
  scope_ = outer_scope;
  out_ = outer_out;
  return text;
}

Value Interpreter::filtered(const std::vector<Suffix>& filters, Value value) {
  for (const Suffix& f : filters) {
    if (failed()) return {};
    value = apply_filter(f.name, value, eval_arguments(f.arguments));
  }
  return value;
}

Scope* Interpreter::new_scope(Scope* parent) {
  heap_.charge(sizeof(Scope));
  scopes_.emplace_back().parent = parent;
  return &scopes_.back();
}

void Interpreter::set_variable(int symbol, Value value) {
  for (auto& [known, v] : scope_->values) {
    if (known == symbol) {
      v = std::move(value);
      return;
    }
  }
  heap_.charge(sizeof(scope_->values[0]));
  scope_->values.emplace_back(symbol, std::move(value));
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (failed()) return;
  if (!target.parts.empty()) {
    std::vector<Value> items;
    if (!iterate(value, items)) return;
    if (items.size() != target.parts.size()) {
      fail("{} values for {} names", items.size(), target.parts.size());
      return;
    }
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) {
    set_variable(target.symbol, value);
    return;
  }
  Expr name{.kind = Expr::Kind::kName, .line = target.line, .integer = target.symbol, .text = target.name};
  const Value object = eval_name(name);
  if (!object.is(Kind::kNamespace)) {
    fail("cannot assign attribute on non-namespace object");
  } else if (target.attribute.starts_with('_')) {
    fail("namespace attributes may not begin with '_'");
  } else {
    heap_.charge(2 * sizeof(Value));
    set_member(object.ref(), heap_.string(target.attribute), value);
  }
}

// --- expressions ---

Value Interpreter::eval(const Expr& e) {
  Nest nest(*this);
  if (!nest.ok || !step()) return {};
  line_ = e.line;
  switch (e.kind) {
    case Expr::Kind::kNone: return Value::none();
    case Expr::Kind::kBool: return Value::boolean(e.integer != 0);
    case Expr::Kind::kInt: return Value::integer(e.integer);
    case Expr::Kind::kFloat: return Value::real(e.real);
    case Expr::Kind::kString: return string(e.text);
    case Expr::Kind::kName: return eval_name(e);
    case Expr::Kind::kList:
    case Expr::Kind::kTuple: {
      std::vector<Value> items;
      for (const ExprPtr& item : e.operands) items.push_back(eval(*item));
      return heap_.list(std::move(items), e.kind == Expr::Kind::kList ? Kind::kList : Kind::kTuple);
    }
    case Expr::Kind::kDict: {
      Value dict = heap_.object(Kind::kDict);
      for (size_t i = 0; i < e.operands.size(); i += 2) {
        Value key = eval(*e.operands[i]);
        Value value = eval(*e.operands[i + 1]);
        if (failed()) return {};
        if (!is_hashable(key)) return fail("unhashable type: '{}'", type_name(key));
        heap_.charge(2 * sizeof(Value));
        if (!step(key.is_string() ? 1 : dict.ref().members.size())) return {};
        set_member(dict.ref(), std::move(key), std::move(value));
      }
      return dict;
    }
    case Expr::Kind::kNot: return Value::boolean(!truthy(eval(*e.operands[0])));
    case Expr::Kind::kNegate:
    case Expr::Kind::kPlus: {
      const Value v = eval(*e.operands[0]);
      if (failed()) return {};
      if (v.is_undefined()) return undefined_error(v);
      if (!v.is_number())
        return fail("bad operand type for unary {}: '{}'", e.kind == Expr::Kind::kPlus ? '+' : '-', type_name(v));
      const bool negate = e.kind == Expr::Kind::kNegate;
      if (v.is(Kind::kFloat)) return Value::real(negate ? -v.as_float() : v.as_float());
      if (!negate) return Value::integer(v.as_int());
      if (v.as_int() == INT64_MIN) return fail("integer overflow");
      return Value::integer(-v.as_int());
    }
    case Expr::Kind::kChain: return eval_chain(e);
    case Expr::Kind::kCompare: {
      Value left = eval(*e.operands[0]);
      for (size_t i = 0; i < e.ops.size(); ++i) {
        Value right = eval(*e.operands[i + 1]);
        if (failed()) return {};
        const bool yes = compare(e.ops[i], left, right);
        if (failed() || !yes) return Value::boolean(false);
        left = std::move(right);
      }
      return Value::boolean(true);
    }
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr: {
      Value v;
      for (const ExprPtr& operand : e.operands) {
        v = eval(*operand);
        if (failed()) return {};
        if (truthy(v) == (e.kind == Expr::Kind::kOr)) break;
      }
      return v;
    }
    case Expr::Kind::kConditional: {
      const bool yes = truthy(eval(*e.operands[1]));
      if (failed()) return {};
      if (yes) return eval(*e.operands[0]);
      if (e.operands[2] != nullptr) return eval(*e.operands[2]);
      return heap_.undefined("the inline if-expression evaluated to false and no else section was defined.");
    }
    case Expr::Kind::kPostfix: return eval_postfix(e);
  }
  return {};
}

Value Interpreter::eval_name(const Expr& e) {
  const int symbol = static_cast<int>(e.integer);
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [known, value] : scope->values) {
      if (known == symbol) return value;
    }
  }
  if (const auto& value = context_[static_cast<size_t>(symbol)]; value) return *value;
  for (const std::string_view builtin : {"range", "dict", "namespace", "raise_exception", "strftime_now"}) {
    if (e.text == builtin) {
      Value v = heap_.object(Kind::kBuiltin);
      v.ref().name = e.text;
      return v;
    }
  }
  for (const std::string_view builtin : {"cycler", "joiner", "lipsum"}) {
    if (e.text == builtin) return fail_with(StatusCode::kUnsupported, format("'{}' is not supported", e.text));
  }
  return heap_.undefined(format("'{}' is undefined", e.text));
}

Value Interpreter::eval_chain(const Expr& e) {
  if (e.ops[0] == Op::kConcat) {
    std::string text;
    for (const ExprPtr& operand : e.operands) {
      const Value v = eval(*operand);
      if (failed()) return {};
      append_str(text, v);
      if (!check_size(text.size())) return {};
    }
    return string(std::move(text));
  }
  Value left = eval(*e.operands[0]);
  for (size_t i = 0; i < e.ops.size() && !failed(); ++i) {
    const Value right = eval(*e.operands[i + 1]);
    if (failed()) return {};
    line_ = e.line;
    left = binary(e.ops[i], left, right);
  }
  return left;
}

Arguments Interpreter::eval_arguments(const std::vector<Argument>& arguments) {
  Arguments out;
  for (const Argument& a : arguments) {
    Value v = eval(*a.value);
    if (a.name.empty()) {
      out.positional.push_back(std::move(v));
    } else {
      out.named.emplace_back(a.name, std::move(v));
    }
  }
  return out;
}

Value Interpreter::eval_postfix(const Expr& e) {
  Value v = eval(*e.operands[0]);
  for (const Suffix& s : e.suffixes) {
    if (failed() || !step()) return {};
    line_ = s.line;
    switch (s.kind) {
      case Suffix::Kind::kAttribute: v = get_attribute(v, s.name); break;
      case Suffix::Kind::kItem: {
        const Value key = eval(*s.key);
        if (!failed()) v = get_item(v, key);
        break;
      }
      case Suffix::Kind::kSlice: v = slice(v, s); break;
      case Suffix::Kind::kCall: {
        const Arguments arguments = eval_arguments(s.arguments);
        if (!failed()) v = call(v, arguments);
        break;
      }
      case Suffix::Kind::kFilter: {
        const Arguments arguments = eval_arguments(s.arguments);
        if (!failed()) v = apply_filter(s.name, v, arguments);
        break;
      }
      case Suffix::Kind::kTest: {
        const Arguments arguments = eval_arguments(s.arguments);
        if (!failed()) v = Value::boolean(apply_test(s.name, v, arguments) != s.negated);
        break;
      }
    }
  }
  return failed() ? Value() : v;
}

bool Interpreter::iterate(const Value& v, std::vector<Value>& out) {
  if (failed()) return false;
  switch (v.kind()) {
    case Kind::kUndefined: return true;
    case Kind::kString:
      if (!step(v.text().size())) return false;
      for (size_t i = 0; i < v.text().size();) {
        const size_t begin = i;
        utf8_decode_valid(v.text(), i);
        out.push_back(heap_.string(std::string(v.text().substr(begin, i - begin))));
        if ((out.size() & 1023) == 0 && !step()) return false;
      }
      return true;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: out = v.ref().items; break;
    case Kind::kGenerator: {
      Object& generator = v.ref();
      out.assign(generator.items.begin() + static_cast<std::ptrdiff_t>(generator.cursor), generator.items.end());
      generator.cursor = generator.items.size();
      break;
    }
    case Kind::kDict:
      for (const auto& [key, value] : v.ref().members) out.push_back(key);
      break;
    default: fail("'{}' object is not iterable", type_name(v)); return false;
  }
  return step(out.size() / 16);
}

Value Interpreter::slice(const Value& object, const Suffix& s) {
  int64_t bounds[3] = {0, 0, 1};
  bool given[3] = {false, false, false};
  for (int i = 0; i < 3; ++i) {
    if (s.slice[i] == nullptr) continue;
    const Value v = eval(*s.slice[i]);
    if (failed()) return {};
    if (v.is(Kind::kNone)) continue;
    if (!v.is_integral()) return fail("slice indices must be integers or None");
    bounds[i] = v.as_int();
    given[i] = true;
  }
  if (object.is_undefined()) return undefined_error(object);
  if (!object.is_sequence() && !object.is_string()) return fail("'{}' object cannot be sliced", type_name(object));
  const int64_t step_size = bounds[2];
  if (step_size == 0) return fail("slice step cannot be zero");
  const int64_t n =
      object.is_string() ? static_cast<int64_t>(utf8_length(object.text())) : static_cast<int64_t>(object.ref().items.size());
  // Python's slice.indices().
  const int64_t low = step_size < 0 ? -1 : 0;
  const int64_t high = step_size < 0 ? n - 1 : n;
  const auto clip = [&](int64_t v) { return v < 0 ? std::max(v + n, low) : std::min(v, high); };
  const int64_t start = given[0] ? clip(bounds[0]) : step_size < 0 ? high : low;
  const int64_t stop = given[1] ? clip(bounds[1]) : step_size < 0 ? low : high;
  if (!step(static_cast<uint64_t>(n) / 64)) return {};
  if (object.is_string() && step_size == 1) {
    if (start >= stop) return string("");
    const size_t begin = byte_offset(object.text(), static_cast<size_t>(start));
    const std::string_view tail = object.text().substr(begin);
    return string(std::string(tail.substr(0, byte_offset(tail, static_cast<size_t>(stop - start)))));
  }
  std::vector<Value> items;
  if (object.is_string()) {
    if (!iterate(object, items)) return {};
  }
  const std::vector<Value>& from = object.is_string() ? items : object.ref().items;
  std::vector<Value> out;
  // A step may be so large that adding it overflows.
  for (int64_t i = start; step_size > 0 ? i < stop : i > stop;) {
    out.push_back(from[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step_size, &i)) break;
  }
  if (!object.is_string()) return heap_.list(std::move(out), object.kind());
  std::string text;
  for (const Value& c : out) text += c.text();
  return string(std::move(text));
}

Value Interpreter::call(const Value& callee, const Arguments& arguments) {
  if (failed()) return {};
  switch (callee.kind()) {
    case Kind::kMacro: return call_macro(callee.ref(), arguments);
    case Kind::kMethod: return call_method(callee.ref().self, callee.ref().name, arguments);
    case Kind::kBuiltin: return call_builtin(callee.ref().name, arguments);
    case Kind::kUndefined: return undefined_error(callee);
    case Kind::kLoop: return fail_with(StatusCode::kUnsupported, "a recursive loop is not supported");
    default: return fail("'{}' object is not callable", type_name(callee));
  }
}

Value Interpreter::call_macro(const Object& object, const Arguments& arguments) {
  const Macro& macro = *object.macro;
  Nest nest(*this);
  if (!nest.ok) return {};
  const int call_line = line_;
  Scope* const caller = scope_;
  Scope* const parent = new_scope(object.scope);
  scope_ = parent;
  std::vector<bool> used(arguments.named.size(), false);
  for (size_t i = 0; i < macro.parameters.size() && !failed(); ++i) {
    const Macro::Parameter& p = macro.parameters[i];
    Value v;
    bool given = i < arguments.positional.size();
    if (given) v = arguments.positional[i];
    for (size_t k = 0; k < arguments.named.size(); ++k) {
      if (arguments.named[k].first != p.name) continue;
      if (given) fail("macro '{}' got multiple values for argument '{}'", macro.name, p.name);
      given = used[k] = true;
      v = arguments.named[k].second;
    }
    if (!given)
      v = p.otherwise != nullptr ? eval(*p.otherwise) : heap_.undefined(format("parameter '{}' was not provided", p.name));
    set_variable(p.symbol, std::move(v));
  }
  line_ = call_line;
  std::vector<Value> more;
  for (size_t i = macro.parameters.size(); i < arguments.positional.size(); ++i) more.push_back(arguments.positional[i]);
  Value rest = heap_.object(Kind::kDict);
  for (size_t k = 0; k < used.size(); ++k) {
    if (!used[k]) set_member(rest.ref(), heap_.string(arguments.named[k].first), arguments.named[k].second);
  }
  if (macro.varargs_symbol < 0 && !more.empty()) {
    fail("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size());
  }
  if (macro.kwargs_symbol < 0 && !rest.ref().members.empty()) {
    fail("macro '{}' takes no keyword argument {}", macro.name, python_repr(rest.ref().members[0].first.text()));
  }
  if (macro.varargs_symbol >= 0) set_variable(macro.varargs_symbol, heap_.list(std::move(more), Kind::kTuple));
  if (macro.kwargs_symbol >= 0) set_variable(macro.kwargs_symbol, rest);
  Flow flow = Flow::kNormal;
  std::string text = failed() ? "" : capture(macro.body, flow, parent);
  scope_ = caller;
  line_ = call_line;
  return string(std::move(text));
}

}  // namespace pointsman::jinja
