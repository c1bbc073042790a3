// SPDX-License-Identifier: Apache-2.0
//
// Replaces operator new and delete by counting ones: num_news says how often the C++ code of this program allocated. Include it in
// one file of a test program.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

std::atomic<uint64_t> num_news{0};

}  // namespace

// Counts what the C++ code of this program allocates. malloc() and free() underneath keep the sanitizers' checks. Not inlined:
// the compiler would take a new and a free() in one function for a mismatch.
[[gnu::noinline]] void* operator new(size_t bytes) {
  num_news.fetch_add(1, std::memory_order_relaxed);
  if (void* p = std::malloc(bytes == 0 ? 1 : bytes)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  num_news.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}
