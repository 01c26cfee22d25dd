#include "clients/cli/python_random.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace lssar::cli {

// init_by_array over the seed's 32-bit words, lowest first.
PythonRandom::PythonRandom(uint64_t seed) {
  const std::array<uint32_t, 2> key = {uint32_t(seed), uint32_t(seed >> 32)};
  const uint32_t num_keys = key[1] == 0 ? 1 : 2;

  state_[0] = 19650218;
  for (uint32_t i = 1; i < kNumWords; ++i) {
    state_[i] = 1812433253u * (state_[i - 1] ^ (state_[i - 1] >> 30)) + i;
  }
  uint32_t i = 1;
  const auto advance = [&] {
    if (++i == kNumWords) {
      state_[0] = state_[kNumWords - 1];
      i = 1;
    }
  };
  for (uint32_t step = 0, j = 0; step < kNumWords; ++step, j = (j + 1) % num_keys) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1664525u)) + key[j] + j;
    advance();
  }
  for (int step = 0; step < kNumWords - 1; ++step) {
    state_[i] = (state_[i] ^ ((state_[i - 1] ^ (state_[i - 1] >> 30)) * 1566083941u)) - i;
    advance();
  }
  state_[0] = 0x80000000u;
}

void PythonRandom::Twist() {
  constexpr int kShift = 397;
  for (int i = 0; i < kNumWords; ++i) {
    const auto at = [this](int idx) { return state_[size_t(idx % kNumWords)]; };
    const uint32_t mixed = (at(i) & 0x80000000u) | (at(i + 1) & 0x7FFFFFFFu);
    state_[size_t(i)] = at(i + kShift) ^ (mixed >> 1) ^ ((mixed & 1) != 0 ? 0x9908B0DFu : 0);
  }
  next_idx_ = 0;
}

uint32_t PythonRandom::NextWord() {
  if (next_idx_ == kNumWords) Twist();
  uint32_t word = state_[size_t(next_idx_++)];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9D2C5680u;
  word ^= (word << 15) & 0xEFC60000u;
  return word ^ (word >> 18);
}

// _randbelow_with_getrandbits: draws as many bits as `width` has, again while it is too large.
int64_t PythonRandom::RandInt(int64_t first, int64_t last) {
  LSSAR_CHECK(first <= last && last - first < int64_t{1} << 31);
  const auto width = uint32_t(last - first + 1);
  const int num_bits = std::bit_width(width);
  uint32_t drawn = 0;
  do {
    drawn = NextWord() >> (32 - num_bits);
  } while (drawn >= width);
  return first + drawn;
}

double PythonRandom::Random() {
  const uint32_t high = NextWord() >> 5;  // 27 bits
  const uint32_t low = NextWord() >> 6;   // 26 bits
  return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

}  // namespace lssar::cli
