// SPDX-License-Identifier: Apache-2.0
//
// PM_CHECK: a broken invariant of ours. Prints and aborts. Never used on anything that came from disk, network or user.
#pragma once

#include <cstdio>
#include <cstdlib>

#define PM_CHECK(cond, ...)                                                           \
  do {                                                                                \
    if (!(cond)) [[unlikely]] {                                                       \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, #cond);   \
      __VA_OPT__(std::fprintf(stderr, __VA_ARGS__); std::fputc('\n', stderr);)        \
      std::abort();                                                                   \
    }                                                                                 \
  } while (0)

#ifdef NDEBUG
#define PM_DCHECK(cond, ...) static_cast<void>(0)
#else
#define PM_DCHECK(cond, ...) PM_CHECK(cond __VA_OPT__(, ) __VA_ARGS__)
#endif
