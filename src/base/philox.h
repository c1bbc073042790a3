// SPDX-License-Identifier: Apache-2.0
//
// Philox 4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11).
// A draw is a pure function of (key, counter): the same noise for every thread count, chunking and device.
#pragma once

#include <array>
#include <cstdint>

namespace pointsman {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline PhiloxCounter philox4x32_10(PhiloxCounter c, PhiloxKey k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k[0], static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k[1], static_cast<uint32_t>(p0)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

// What a draw is for: two purposes never share a number.
enum class RandomPurpose : uint32_t { kSampling = 1, kRouteNoise = 2, kTest = 3 };

// The draw for (seed, purpose, step, layer, token, expert). `step` matters only in training: it is folded into the key's upper
// half, like the seed's; token is the global index in the sequence.
inline uint32_t random_u32(uint64_t seed, RandomPurpose purpose, uint64_t step, uint32_t layer, uint64_t token,
                           uint32_t expert) {
  // A first block mixes what does not fit into one counter, so that no two argument lists share a (key, counter) by addition.
  const PhiloxCounter mixed =
      philox4x32_10({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), static_cast<uint32_t>(purpose), layer},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return philox4x32_10({static_cast<uint32_t>(token), static_cast<uint32_t>(token >> 32), expert, mixed[2]},
                       {mixed[0], mixed[1]})[0];
}

// (r + 0.5) * 2^-32: uniform in the open interval (0, 1), so a logarithm needs no epsilon.
inline double uniform_open(uint32_t r) { return (r + 0.5) * 0x1p-32; }

}  // namespace pointsman
