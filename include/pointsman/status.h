// SPDX-License-Identifier: Apache-2.0
//
// Status and Result<T>: how every fallible function of Pointsman reports failure. Nothing here throws.
//
// A message names what, where, expected against found, and what to do. Codes exist so that a program can branch;
// the command line maps them to exit codes (see exit_code()).
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace pointsman {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // the caller asked for something that cannot be
  kNotFound,         // a named file, tensor or key is absent
  kCorrupt,          // bytes on disk are not what they claim to be
  kUnsupported,      // well-formed, but not something this build can do
  kBudgetExceeded,   // the memory budget has no room; the message says how many bytes are short
  kIo,               // the operating system refused or failed
  kUnavailable,      // a peer, a device or a kernel is missing
  kDeadlineExceeded,
  kInternal,         // an invariant of ours was broken
};

// "corrupt", "budget exceeded", ... Never null.
const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  // "corrupt: layer 12 expert 7 ...", or "ok".
  std::string to_string() const;
  // The same failure with `where` in front of the message: errors gain context on their way up.
  Status with_context(std::string_view where) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status ok_status() { return {}; }

// A T or the reason why there is none. value() on a failure is a bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: conversion is the point
  Result(Status status) : status_(std::move(status)) {
    if (status_.ok()) {
      std::fputs("Result made from an ok Status\n", stderr);
      std::abort();
    }
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return need(), *value_; }
  const T& value() const& { return need(), *value_; }
  T&& value() && { return need(), std::move(*value_); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  void need() const {
    if (value_) return;
    std::fprintf(stderr, "Result::value() on a failure: %s\n", status_.to_string().c_str());
    std::abort();
  }
  std::optional<T> value_;
  Status status_;
};

}  // namespace pointsman

#define PM_CONCAT_INNER(a, b) a##b
#define PM_CONCAT(a, b) PM_CONCAT_INNER(a, b)

#define PM_RETURN_IF_ERROR(expr)                          \
  do {                                                    \
    if (::pointsman::Status pm_status = (expr); !pm_status.ok()) return pm_status; \
  } while (0)

// PM_ASSIGN_OR_RETURN(auto x, make_x());
#define PM_ASSIGN_OR_RETURN(lhs, expr) PM_ASSIGN_OR_RETURN_(PM_CONCAT(pm_result_, __LINE__), lhs, expr)
#define PM_ASSIGN_OR_RETURN_(tmp, lhs, expr) \
  auto tmp = (expr);                         \
  if (!tmp.ok()) return tmp.status();        \
  lhs = std::move(tmp).value()
