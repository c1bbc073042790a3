// SPDX-License-Identifier: Apache-2.0
// The input is a .npy file. What is accepted must lie inside it, and be as large as its shape says.
#include "fuzz_input.h"
#include "verify/npy.h"

namespace pm = pointsman;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto h = pm::parse_npy_header(pm::fuzz::text_of(data, size), size);
  if (!h.ok()) return 0;
  unsigned __int128 bytes = static_cast<unsigned>(pm::dtype_bits(h->dtype) / 8);
  bool empty = false;
  for (const int64_t n : h->shape) empty |= n == 0;
  for (const int64_t n : h->shape) {
    pm::fuzz::expect(n >= 0);
    if (empty) continue;  // then the other sizes mean nothing
    bytes *= static_cast<uint64_t>(n);
    pm::fuzz::expect(bytes <= size);
  }
  pm::fuzz::expect(h->offset <= size && h->size_bytes == size - h->offset && h->size_bytes == (empty ? 0 : static_cast<uint64_t>(bytes)));
  return 0;
}
