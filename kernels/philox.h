// Philox4x32-10: a counter-based random generator. It has no state: a draw is a function of seed,
// choice and position.
// Source  Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011
#ifndef LSSAR_KERNELS_PHILOX_H_
#define LSSAR_KERNELS_PHILOX_H_

#include <array>
#include <cstdint>

namespace lssar {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key[0], uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key[1], uint32_t(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

// The draw of one token, uniform over 64 bits. `position` is the token's position in the whole
// sequence, so a request that resumes a generated prefix continues with the same draws.
constexpr uint64_t DrawFor(uint64_t seed, uint32_t choice, uint64_t position) {
  const PhiloxCounter draw = Philox4x32({uint32_t(position), uint32_t(position >> 32), choice, 0},
                                        {uint32_t(seed), uint32_t(seed >> 32)});
  return (uint64_t(draw[0]) << 32) | draw[1];
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_PHILOX_H_
