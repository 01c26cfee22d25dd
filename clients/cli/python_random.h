// CPython's random.Random, so that a seed gives the same documents as the Python reference.
#ifndef LSSAR_CLIENTS_CLI_PYTHON_RANDOM_H_
#define LSSAR_CLIENTS_CLI_PYTHON_RANDOM_H_

#include <array>
#include <cstdint>

namespace lssar::cli {

// MT19937. std::mt19937 is the same generator, but it cannot be seeded to CPython's state.
// Source  CPython 3.11 Modules/_randommodule.c and Lib/random.py
class PythonRandom {
 public:
  // random.Random(seed), for seed >= 0.
  explicit PythonRandom(uint64_t seed);

  // random.randint(first, last). Requires first <= last.
  int64_t RandInt(int64_t first, int64_t last);

  // random.random(): 53 random bits in [0, 1).
  double Random();

 private:
  static constexpr int kNumWords = 624;
  uint32_t NextWord();
  void Twist();

  std::array<uint32_t, kNumWords> state_;
  int next_idx_ = kNumWords;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_PYTHON_RANDOM_H_
