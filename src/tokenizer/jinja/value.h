// SPDX-License-Identifier: Apache-2.0
//
// Values of the template language: Python's, as far as chat templates can see them.
//
// Strings are shared and counted. Everything that can refer to other values (lists, dicts, namespaces, loops, macros) lives in
// the Heap of one rendering and dies with it, so that cycles through namespaces leak nothing and deep nesting needs no deep
// destructor.
//
// A Heap and its values belong to one rendering on one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "pointsman/status.h"

namespace pointsman::jinja {

struct Macro;  // ast.h
struct Scope;  // interpreter.h
struct Object;

// Bytes alive in one rendering.
struct Meter {
  uint64_t bytes = 0;
};

struct StringBox {
  StringBox(std::string t, bool m, Meter* meter_in) : text(std::move(t)), markup(m), meter(meter_in) {
    meter->bytes += text.capacity() + sizeof(StringBox);
  }
  ~StringBox() { meter->bytes -= text.capacity() + sizeof(StringBox); }
  StringBox(const StringBox&) = delete;
  StringBox& operator=(const StringBox&) = delete;
  std::string text;
  bool markup;  // result of |safe or |escape
  Meter* meter;
};

enum class Kind : uint8_t {
  kUndefined,  // text(): why, for the message when it is used
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kGenerator,  // what map, select and their like return: can be gone through once, has no length
  kView,       // dict.keys(), .values(), .items()
  kDict,
  kNamespace,
  kLoop,
  kMacro,
  kMethod,   // "text".strip, not yet called
  kBuiltin,  // range, namespace, ...
};

class Value {
 public:
  Value() = default;  // undefined without a reason
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool v) {
    Value r(Kind::kBool);
    r.int_ = v;
    return r;
  }
  static Value integer(int64_t v) {
    Value r(Kind::kInt);
    r.int_ = v;
    return r;
  }
  static Value real(double v) {
    Value r(Kind::kFloat);
    r.float_ = v;
    return r;
  }
  static Value string(std::shared_ptr<const StringBox> box, Kind kind = Kind::kString) {
    Value r(kind);
    r.string_ = std::move(box);
    return r;
  }
  static Value object(Kind kind, Object* object) {
    Value r(kind);
    r.object_ = object;
    return r;
  }

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool is_integral() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integral() || kind_ == Kind::kFloat; }

  int64_t as_int() const { return int_; }  // REQUIRES: is_integral()
  double as_float() const { return is_integral() ? static_cast<double>(int_) : float_; }
  std::string_view text() const { return string_ ? std::string_view(string_->text) : std::string_view(); }
  bool is_markup() const { return string_ && string_->markup; }
  // Identity of shared storage, for `is sameas`.
  const void* address() const { return string_ ? static_cast<const void*>(string_.get()) : object_; }
  Object& ref() const { return *object_; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  Kind kind_ = Kind::kUndefined;
  union {
    int64_t int_ = 0;
    double float_;
    Object* object_;
  };
  std::shared_ptr<const StringBox> string_;
};

// One shape for all that is not a scalar; the kind of the Value says which members count.
struct Object {
  std::vector<Value> items;                                        // list, tuple, generator, view; loop: the sequence
  std::vector<std::pair<Value, Value>> members;                    // dict, namespace: in order of insertion
  std::unique_ptr<std::unordered_map<std::string, size_t>> index;  // dict with many members: where its string keys are
  size_t cursor = 0;                                               // generator: items taken; loop: current index
  const Macro* macro = nullptr;
  Scope* scope = nullptr;  // macro: where it was defined
  Value self;              // method: its object; view: unused
  std::string name;        // method, builtin; view: "dict_keys" ...; list: "range(0, 3)"; tuple: "group" (of groupby)
  Value last_changed;      // loop.changed()
};

class Heap {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{256} << 20;

  Value string(std::string text, bool markup = false) {
    return Value::string(std::make_shared<const StringBox>(std::move(text), markup, &meter_));
  }
  Value undefined(std::string why) {
    return Value::string(std::make_shared<const StringBox>(std::move(why), false, &meter_), Kind::kUndefined);
  }
  Value object(Kind kind) {
    meter_.bytes += sizeof(Object);
    objects_.emplace_back();
    return Value::object(kind, &objects_.back());
  }
  Value list(std::vector<Value> items, Kind kind = Kind::kList) {
    Value v = object(kind);
    meter_.bytes += items.size() * sizeof(Value);
    v.ref().items = std::move(items);
    return v;
  }
  void charge(uint64_t bytes) { meter_.bytes += bytes; }
  void release(uint64_t bytes) { meter_.bytes -= bytes; }
  bool is_full() const { return meter_.bytes > kMaxBytes; }

 private:
  Meter meter_;  // first: strings report to it when they die
  std::deque<Object> objects_;
};

// Recursion over values stops at this depth, with a failure.
inline constexpr int kMaxValueDepth = 200;

// "str", "dict", "NoneType", ... as Python names types in messages.
const char* type_name(const Value& v);
// "'dict object'", "'None'": as Jinja names objects in messages.
std::string object_name(const Value& v);

bool truthy(const Value& v);
// Python's ==. Values of different kinds are unequal; True equals 1. Every value looked at takes one from `budget`: lists that
// share parts can unfold without end. Beyond it, and beyond kMaxValueDepth: false.
bool equal(const Value& a, const Value& b, uint64_t& budget, int depth = 0);
// Python's <; false in `ok` when the kinds cannot be compared.
bool less(const Value& a, const Value& b, bool& ok, uint64_t& budget, int depth = 0);

// Appends str(v), repr(v), json.dumps(v). They stop early when `out` exceeds kMaxTextBytes; the caller checks its size.
inline constexpr size_t kMaxTextBytes = size_t{16} << 20;
void append_str(std::string& out, const Value& v);
void append_repr(std::string& out, const Value& v, int depth = 0);
struct JsonStyle {
  bool ensure_ascii = false;
  std::string indent;
  bool has_indent = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
// False when a value has no JSON form; `why` says which.
bool append_json(std::string& out, const Value& v, const JsonStyle& style, std::string& why, int depth = 0);

// Whether a value can be the key of a dict: no list and no dict, also not inside a tuple.
bool is_hashable(const Value& v, int depth = 0);
// Adds or replaces a member of a dict or namespace.
void set_member(Object& dict, Value key, Value value);
// The member of a dict or namespace, or null.
const Value* find_member(const Object& dict, const Value& key);
const Value* find_member(const Object& dict, std::string_view key);

// Deeper than kMaxValueDepth: kInvalidArgument.
Status from_json(Heap& heap, const Json& json, Value& out, int depth = 0);

}  // namespace pointsman::jinja
