// SPDX-License-Identifier: Apache-2.0
#include "tokenizer/jinja/parser.h"

#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "base/log.h"
#include "tokenizer/jinja/lexer.h"

namespace pointsman::jinja {
namespace {

using TokenKind = Token::Kind;

// Failures are sticky: after the first one, the current token is the end of the text and every loop finishes.
class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<std::shared_ptr<const Template>> run() {
    template_->loop_symbol = symbol("loop");
    template_->body = body({});
    if (!failed() && !current().text.empty() && current().kind != TokenKind::kEnd) fail("unexpected text");
    PM_RETURN_IF_ERROR(status_);
    return std::shared_ptr<const Template>(std::move(template_));
  }

 private:
  // --- tokens ---
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool failed() const { return !status_.ok(); }
  void fail(std::string_view what, StatusCode code = StatusCode::kCorrupt) {
    if (status_.ok()) status_ = error(code, "template, line {}: {}", current().line, what);
    at_ = tokens_.size() - 1;
  }
  void unsupported(std::string_view what) { fail(format("{} is not supported", what), StatusCode::kUnsupported); }
  bool is_op(std::string_view op) const { return current().kind == TokenKind::kOperator && current().text == op; }
  bool is_name(std::string_view name) const { return current().kind == TokenKind::kName && current().text == name; }
  bool skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    next();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    next();
    return true;
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) fail(format("'{}' expected", op));
  }
  std::string expect_name() {
    if (current().kind != TokenKind::kName) {
      fail("a name expected");
      return {};
    }
    std::string name = current().text;
    next();
    return name;
  }
  void expect(TokenKind kind, std::string_view what) {
    if (current().kind == kind) {
      next();
    } else {
      fail(format("{} expected", what));
    }
  }
  void block_end() { expect(TokenKind::kBlockEnd, "'%}'"); }

  int symbol(const std::string& name) {
    const auto [it, fresh] = symbols_.emplace(name, static_cast<int>(template_->symbols.size()));
    if (fresh) template_->symbols.push_back(name);
    return it->second;
  }

  // Guards recursion: `if (Nest nest(*this); nest.ok)`.
  struct Nest {
    explicit Nest(Parser& p) : parser(p), ok(++p.depth_ <= kMaxSyntaxDepth) {
      if (!ok) p.fail(format("nested deeper than {} levels", kMaxSyntaxDepth), StatusCode::kUnsupported);
    }
    ~Nest() { --parser.depth_; }
    Parser& parser;
    bool ok;
  };

  // --- expressions ---
  ExprPtr make(Expr::Kind kind) {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->line = current().line;
    return e;
  }

  bool at_tuple_end() const {
    return current().kind == TokenKind::kVariableEnd || current().kind == TokenKind::kBlockEnd || is_op(")") ||
           current().kind == TokenKind::kEnd;
  }

  ExprPtr tuple(bool with_condition, bool in_parentheses = false) {
    ExprPtr out = make(Expr::Kind::kTuple);
    bool is_tuple = false;
    while (!failed()) {
      if (!out->operands.empty()) expect_op(",");
      if (at_tuple_end()) break;
      out->operands.push_back(with_condition ? expression() : logical_or());
      if (!is_op(",")) break;
      is_tuple = true;
    }
    if (is_tuple) return out;
    if (!out->operands.empty()) return std::move(out->operands[0]);
    if (!in_parentheses) fail("an expression expected");
    return out;
  }

  ExprPtr expression() {
    Nest nest(*this);
    if (!nest.ok) return make(Expr::Kind::kNone);
    ExprPtr value = logical_or();
    // a if b else c if d else e: the chain hangs in the last place, so it is built without recursion here.
    ExprPtr root;
    ExprPtr* place = nullptr;
    int links = 0;
    while (is_name("if")) {
      ExprPtr condition = make(Expr::Kind::kConditional);
      next();
      condition->operands.push_back(std::move(value));
      condition->operands.push_back(logical_or());
      condition->operands.push_back(nullptr);
      const bool has_else = skip_name("else");
      if (has_else) value = logical_or();
      Expr* raw = condition.get();
      if (place == nullptr) {
        root = std::move(condition);
      } else {
        *place = std::move(condition);
      }
      place = &raw->operands[2];
      if (!has_else) return root;
      if (++links > kMaxSyntaxDepth) {
        fail("too many conditions in a row", StatusCode::kUnsupported);
        return root;
      }
    }
    if (place == nullptr) return value;
    *place = std::move(value);
    return root;
  }

  // One or more operands joined by 'and' or by 'or'.
  ExprPtr joined(Expr::Kind kind, const char* word, ExprPtr (Parser::*operand)()) {
    ExprPtr first = (this->*operand)();
    if (!is_name(word)) return first;
    ExprPtr out = make(kind);
    out->operands.push_back(std::move(first));
    while (skip_name(word)) out->operands.push_back((this->*operand)());
    return out;
  }
  ExprPtr logical_or() { return joined(Expr::Kind::kOr, "or", &Parser::logical_and); }
  ExprPtr logical_and() { return joined(Expr::Kind::kAnd, "and", &Parser::logical_not); }
  ExprPtr logical_not() {
    if (!is_name("not")) return compare();
    Nest nest(*this);
    ExprPtr out = make(Expr::Kind::kNot);
    next();
    out->operands.push_back(nest.ok ? logical_not() : make(Expr::Kind::kNone));
    return out;
  }

  ExprPtr compare() {
    ExprPtr out = make(Expr::Kind::kCompare);
    out->operands.push_back(sum());
    while (!failed()) {
      static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt},
                                                                 {"<=", Op::kLe}, {">", Op::kGt},  {">=", Op::kGe}};
      bool found = false;
      for (const auto& [text, op] : kOps) {
        if (skip_op(text)) {
          out->ops.push_back(op);
          found = true;
          break;
        }
      }
      if (!found && skip_name("in")) {
        out->ops.push_back(Op::kIn);
        found = true;
      }
      if (!found && is_name("not") && ahead().kind == TokenKind::kName && ahead().text == "in") {
        next();
        next();
        out->ops.push_back(Op::kNotIn);
        found = true;
      }
      if (!found) break;
      out->operands.push_back(sum());
    }
    return out->ops.empty() ? std::move(out->operands[0]) : std::move(out);
  }

  ExprPtr chain(std::initializer_list<std::pair<std::string_view, Op>> ops, ExprPtr (Parser::*operand)()) {
    ExprPtr out = make(Expr::Kind::kChain);
    out->operands.push_back((this->*operand)());
    while (!failed()) {
      bool found = false;
      for (const auto& [text, op] : ops) {
        if (skip_op(text)) {
          out->ops.push_back(op);
          found = true;
          break;
        }
      }
      if (!found) break;
      out->operands.push_back((this->*operand)());
    }
    return out->ops.empty() ? std::move(out->operands[0]) : std::move(out);
  }
  ExprPtr sum() { return chain({{"+", Op::kAdd}, {"-", Op::kSub}}, &Parser::concatenation); }
  ExprPtr concatenation() { return chain({{"~", Op::kConcat}}, &Parser::product); }
  ExprPtr product() {
    return chain({{"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}}, &Parser::power);
  }
  ExprPtr power() { return chain({{"**", Op::kPow}}, &Parser::unary_with_filters); }
  ExprPtr unary_with_filters() { return unary(true); }

  ExprPtr unary(bool with_filters) {
    Nest nest(*this);
    if (!nest.ok) return make(Expr::Kind::kNone);
    ExprPtr node;
    if (is_op("-") || is_op("+")) {
      node = make(is_op("-") ? Expr::Kind::kNegate : Expr::Kind::kPlus);
      next();
      node->operands.push_back(unary(false));
    } else {
      node = primary();
    }
    return suffixes(std::move(node), with_filters);
  }

  ExprPtr primary() {
    const Token token = current();
    ExprPtr out = make(Expr::Kind::kNone);
    switch (token.kind) {
      case TokenKind::kName:
        next();
        if (token.text == "true" || token.text == "True" || token.text == "false" || token.text == "False") {
          out->kind = Expr::Kind::kBool;
          out->integer = (token.text[0] | 0x20) == 't';
        } else if (token.text != "none" && token.text != "None") {
          out->kind = Expr::Kind::kName;
          out->integer = symbol(token.text);
          out->text = token.text;
          note_use(token.text);
        }
        return out;
      case TokenKind::kString:
        out->kind = Expr::Kind::kString;
        // Adjacent strings are one.
        while (current().kind == TokenKind::kString) {
          out->text += current().text;
          next();
        }
        return out;
      case TokenKind::kInt: {
        out->kind = Expr::Kind::kInt;
        std::string_view digits = token.text;
        int base = 10;
        if (digits.size() > 2 && digits[0] == '0' && (digits[1] | 0x20) >= 'a') {
          base = (digits[1] | 0x20) == 'x' ? 16 : (digits[1] | 0x20) == 'o' ? 8 : 2;
          digits.remove_prefix(2);
        }
        const auto [end, ec] = std::from_chars(digits.data(), digits.data() + digits.size(), out->integer, base);
        if (ec != std::errc() || end != digits.data() + digits.size())
          unsupported(format("an integer of more than 64 bits ({})", token.text.substr(0, 40)));
        next();
        return out;
      }
      case TokenKind::kFloat:
        out->kind = Expr::Kind::kFloat;
        std::from_chars(token.text.data(), token.text.data() + token.text.size(), out->real);
        next();
        return out;
      case TokenKind::kOperator:
        if (skip_op("(")) {
          Nest nest(*this);
          if (nest.ok) out = tuple(true, true);
          expect_op(")");
          return out;
        }
        if (is_op("[")) return list();
        if (is_op("{")) return dict();
        break;
      default: break;
    }
    fail("an expression expected");
    return out;
  }

  ExprPtr list() {
    ExprPtr out = make(Expr::Kind::kList);
    expect_op("[");
    while (!failed() && !is_op("]")) {
      if (!out->operands.empty()) expect_op(",");
      if (is_op("]")) break;
      out->operands.push_back(expression());
    }
    expect_op("]");
    return out;
  }

  ExprPtr dict() {
    ExprPtr out = make(Expr::Kind::kDict);
    expect_op("{");
    while (!failed() && !is_op("}")) {
      if (!out->operands.empty()) expect_op(",");
      if (is_op("}")) break;
      out->operands.push_back(expression());
      expect_op(":");
      out->operands.push_back(expression());
    }
    expect_op("}");
    return out;
  }

  ExprPtr suffixes(ExprPtr node, bool with_filters) {
    ExprPtr out = make(Expr::Kind::kPostfix);
    out->line = node->line;
    bool filtered = false;
    while (!failed()) {
      if (!filtered && is_op(".")) {
        out->suffixes.push_back(attribute());
      } else if (!filtered && is_op("[")) {
        out->suffixes.push_back(subscript());
      } else if (is_op("(")) {
        Suffix call{.kind = Suffix::Kind::kCall, .line = current().line};
        call.arguments = arguments();
        out->suffixes.push_back(std::move(call));
      } else if (with_filters && is_op("|")) {
        out->suffixes.push_back(filter());
        filtered = true;
      } else if (with_filters && is_name("is")) {
        out->suffixes.push_back(test());
        filtered = true;
      } else {
        break;
      }
    }
    if (out->suffixes.empty()) return node;
    out->operands.push_back(std::move(node));
    return out;
  }

  Suffix attribute() {
    Suffix s{.kind = Suffix::Kind::kAttribute, .line = current().line};
    next();
    if (current().kind == TokenKind::kName) {
      s.name = expect_name();
    } else if (current().kind == TokenKind::kInt) {
      s.kind = Suffix::Kind::kItem;
      s.key = primary();
    } else {
      fail("a name after '.' expected");
    }
    return s;
  }

  Suffix subscript() {
    Suffix s{.kind = Suffix::Kind::kItem, .line = current().line};
    expect_op("[");
    int part = 0;
    if (!is_op(":")) s.key = expression();
    while (part < 2 && skip_op(":")) {
      if (part == 0) {
        s.kind = Suffix::Kind::kSlice;
        s.slice[0] = std::move(s.key);
      }
      ++part;
      if (!is_op(":") && !is_op("]")) s.slice[part] = expression();
    }
    if (is_op(",")) unsupported("more than one subscript");
    expect_op("]");
    return s;
  }

  std::vector<Argument> arguments() {
    std::vector<Argument> out;
    expect_op("(");
    while (!failed() && !is_op(")")) {
      if (!out.empty()) expect_op(",");
      if (is_op(")")) break;
      if (is_op("*") || is_op("**")) unsupported("unpacking of arguments");
      Argument argument;
      if (current().kind == TokenKind::kName && ahead().kind == TokenKind::kOperator && ahead().text == "=") {
        argument.name = expect_name();
        next();
      } else if (!out.empty() && !out.back().name.empty()) {
        fail("a positional argument after a named one");
      }
      argument.value = expression();
      out.push_back(std::move(argument));
    }
    expect_op(")");
    return out;
  }

  // From the '|', or from the name for filter blocks.
  Suffix filter() {
    skip_op("|");
    Suffix s{.kind = Suffix::Kind::kFilter, .line = current().line};
    s.name = expect_name();
    while (skip_op(".")) s.name += "." + expect_name();
    if (is_op("(")) s.arguments = arguments();
    return s;
  }

  Suffix test() {
    Suffix s{.kind = Suffix::Kind::kTest, .line = current().line};
    next();
    s.negated = skip_name("not");
    s.name = expect_name();
    while (skip_op(".")) s.name += "." + expect_name();
    if (is_op("(")) {
      s.arguments = arguments();
      return s;
    }
    const TokenKind kind = current().kind;
    const bool begins_value = kind == TokenKind::kName || kind == TokenKind::kString || kind == TokenKind::kInt ||
                              kind == TokenKind::kFloat || is_op("[") || is_op("{");
    if (begins_value && !is_name("else") && !is_name("or") && !is_name("and")) {
      if (is_name("is")) fail("tests cannot be chained with 'is'");
      Argument argument;
      argument.value = suffixes(primary(), false);
      s.arguments.push_back(std::move(argument));
    }
    return s;
  }

  // --- statements ---
  Body body(std::initializer_list<std::string_view> ends) {
    Body out;
    Nest nest(*this);
    while (nest.ok && !failed()) {
      const Token& token = current();
      auto stmt = std::make_unique<Stmt>();
      stmt->line = token.line;
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() != 0) fail(format("the template ends where '{}' is expected", *(ends.end() - 1)));
        break;
      }
      if (token.kind == TokenKind::kText) {
        stmt->kind = Stmt::Kind::kText;
        stmt->text = token.text;
        next();
      } else if (token.kind == TokenKind::kVariableBegin) {
        next();
        stmt->kind = Stmt::Kind::kPrint;
        stmt->exprs.push_back(tuple(true));
        expect(TokenKind::kVariableEnd, "'}}'");
      } else {
        next();
        for (const std::string_view end : ends) {
          if (is_name(end)) return out;
        }
        statement(*stmt);
      }
      out.push_back(std::move(stmt));
    }
    return out;
  }
  // Past the name that ended a body.
  void end_body() {
    next();
    block_end();
  }

  void statement(Stmt& s) {
    const std::string name = expect_name();
    if (name == "if") return if_statement(s);
    if (name == "for") return for_statement(s);
    if (name == "set") return set_statement(s);
    if (name == "macro") return macro_statement(s);
    if (name == "with") return with_statement(s);
    if (name == "break" || name == "continue") {
      s.kind = name == "break" ? Stmt::Kind::kBreak : Stmt::Kind::kContinue;
      if (loops_ == 0) fail(format("'{}' outside a loop", name));
      return block_end();
    }
    if (name == "filter") {
      s.kind = Stmt::Kind::kFilter;
      s.filters.push_back(filter());
      while (is_op("|")) s.filters.push_back(filter());
      block_end();
      s.bodies.push_back(body({"endfilter"}));
      return end_body();
    }
    if (name == "generation") {
      s.kind = Stmt::Kind::kGeneration;
      block_end();
      s.bodies.push_back(own_loops({"endgeneration"}));
      return end_body();
    }
    for (const std::string_view known :
         {"extends", "block", "include", "import", "from", "call", "autoescape", "do", "trans"}) {
      if (name == known) return unsupported(format("'{}'", name));
    }
    fail(format("unknown tag '{}'", name));
  }

  // A body that 'break' cannot leave.
  Body own_loops(std::initializer_list<std::string_view> ends) {
    const int loops = std::exchange(loops_, 0);
    Body out = body(ends);
    loops_ = loops;
    return out;
  }

  void if_statement(Stmt& s) {
    s.kind = Stmt::Kind::kIf;
    s.exprs.push_back(tuple(false));
    block_end();
    while (!failed()) {
      s.bodies.push_back(body({"elif", "else", "endif"}));
      if (skip_name("elif")) {
        s.exprs.push_back(tuple(false));
        block_end();
      } else if (skip_name("else")) {
        block_end();
        s.bodies.push_back(body({"endif"}));
        return end_body();
      } else {
        return end_body();
      }
    }
  }

  void for_statement(Stmt& s) {
    s.kind = Stmt::Kind::kFor;
    s.target = target(false);
    if (!skip_name("in")) fail("'in' expected");
    s.exprs.push_back(tuple(false));
    s.exprs.push_back(skip_name("if") ? expression() : nullptr);
    if (is_name("recursive")) unsupported("a recursive loop");
    block_end();
    ++loops_;
    s.bodies.push_back(body({"else", "endfor"}));
    --loops_;
    if (skip_name("else")) {
      block_end();
      s.bodies.push_back(body({"endfor"}));
    }
    end_body();
  }

  void set_statement(Stmt& s) {
    s.kind = Stmt::Kind::kSet;
    s.target = target(true);
    if (skip_op("=")) {
      s.exprs.push_back(tuple(true));
      return block_end();
    }
    s.kind = Stmt::Kind::kSetBlock;
    while (is_op("|")) s.filters.push_back(filter());
    block_end();
    s.bodies.push_back(body({"endset"}));
    end_body();
  }

  void with_statement(Stmt& s) {
    s.kind = Stmt::Kind::kWith;
    while (!failed() && current().kind != TokenKind::kBlockEnd) {
      if (!s.targets.empty()) expect_op(",");
      s.targets.push_back(target(false, true));
      expect_op("=");
      s.exprs.push_back(expression());
    }
    block_end();
    s.bodies.push_back(body({"endwith"}));
    end_body();
  }

  void macro_statement(Stmt& s) {
    s.kind = Stmt::Kind::kMacro;
    s.macro = std::make_unique<Macro>();
    s.macro->name = expect_name();
    s.symbol = symbol(s.macro->name);
    expect_op("(");
    while (!failed() && !is_op(")")) {
      if (!s.macro->parameters.empty()) expect_op(",");
      if (is_op(")")) break;
      Macro::Parameter p;
      p.name = expect_name();
      p.symbol = symbol(p.name);
      if (skip_op("=")) {
        p.otherwise = expression();
      } else if (!s.macro->parameters.empty() && s.macro->parameters.back().otherwise != nullptr) {
        fail("a parameter without default after one with a default");
      }
      s.macro->parameters.push_back(std::move(p));
    }
    expect_op(")");
    block_end();
    Macro* outer = std::exchange(macro_, s.macro.get());
    s.macro->body = own_loops({"endmacro"});
    macro_ = outer;
    end_body();
  }

  // The special names of a macro's body.
  void note_use(const std::string& name) {
    if (macro_ == nullptr) return;
    if (name == "varargs") macro_->varargs_symbol = symbol(name);
    if (name == "kwargs") macro_->kwargs_symbol = symbol(name);
    if (name == "caller") unsupported("'caller'");
  }

  // name | name.attribute | a, b | (a, b)
  Target target(bool with_namespace, bool single = false) {
    Target out;
    out.line = current().line;
    Nest nest(*this);
    while (nest.ok && !failed()) {
      out.parts.push_back(target_part(with_namespace));
      if (single || !skip_op(",")) break;
      if (is_name("in") || is_op("=") || is_op(")")) {
        if (out.parts.size() == 1) return out;
        break;
      }
    }
    if (out.parts.size() == 1) {
      Target only = std::move(out.parts[0]);
      return only;
    }
    return out;
  }

  Target target_part(bool with_namespace) {
    if (skip_op("(")) {
      Target inner = target(with_namespace);
      expect_op(")");
      return inner;
    }
    Target out;
    out.line = current().line;
    out.name = expect_name();
    for (const std::string_view word : {"true", "false", "none", "True", "False", "None"}) {
      if (out.name == word) fail(format("cannot assign to '{}'", word));
    }
    out.symbol = symbol(out.name);
    if (with_namespace && skip_op(".")) out.attribute = expect_name();
    return out;
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;
  Macro* macro_ = nullptr;
  std::unique_ptr<Template> template_ = std::make_unique<Template>();
  std::unordered_map<std::string, int> symbols_;
  Status status_;
};

}  // namespace

Result<std::shared_ptr<const Template>> parse(std::string_view source) {
  PM_ASSIGN_OR_RETURN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace pointsman::jinja
