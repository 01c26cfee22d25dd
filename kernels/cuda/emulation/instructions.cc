#include "kernels/cuda/emulation/instructions.h"

#include <array>
#include <cmath>
#include <cstring>

namespace lssar::cuda_emulated {
namespace {

struct Product {
  float* c;
  const unsigned* a;
  const unsigned* b;
};

float LowHalf(unsigned pair, bool is_bf16) {
  const uint16_t bits = static_cast<uint16_t>(pair & 0xFFFF);
  return is_bf16 ? FloatFromBf16(bits) : FloatFromF16(bits);
}
float HighHalf(unsigned pair, bool is_bf16) { return LowHalf(pair >> 16, is_bf16); }

// Tensor cores add exact products and cut the sum off: the worst that a rounding may do.
float CutOff(double sum) {
  const float nearest = static_cast<float>(sum);
  if (!(std::fabs(static_cast<double>(nearest)) > std::fabs(sum))) return nearest;
  return std::nextafter(nearest, 0.0f);
}

template <bool kBf16>
void MultiplyWarp(void* const* slots) {
  double a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const Product& own = *static_cast<const Product*>(slots[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, col = pair + i / 2 * 8;
      a[row][col] = static_cast<double>(LowHalf(own.a[i], kBf16));
      a[row][col + 1] = static_cast<double>(HighHalf(own.a[i], kBf16));
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + 8 * i][group] = static_cast<double>(LowHalf(own.b[i], kBf16));
      b[pair + 8 * i + 1][group] = static_cast<double>(HighHalf(own.b[i], kBf16));
    }
    for (int i = 0; i < 4; ++i) {
      c[group + i / 2 * 8][pair + i % 2] = static_cast<double>(own.c[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const Product& own = *static_cast<const Product*>(slots[lane]);
    for (int i = 0; i < 4; ++i) {
      own.c[i] = CutOff(c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2]);
    }
  }
}

}  // namespace

void MultiplyF16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Product own{c, a, b};
  emulation::MeetWarp(&MultiplyWarp<false>, &own);
}

void MultiplyBf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  Product own{c, a, b};
  emulation::MeetWarp(&MultiplyWarp<true>, &own);
}

void LoadTransposed(unsigned (&b)[2], const void* row) {
  struct Slot {
    const void* row;
    unsigned* b;
  } slot{row, b};
  emulation::MeetWarp(
      [](void* const* slots) {
        uint16_t elements[2][8][8];
        for (int lane = 0; lane < 16; ++lane) {
          std::memcpy(elements[lane / 8][lane % 8], static_cast<const Slot*>(slots[lane])->row, 16);
        }
        for (int lane = 0; lane < kWarpThreads; ++lane) {
          unsigned* const to = static_cast<const Slot*>(slots[lane])->b;
          const int row_idx = 2 * (lane % 4), col = lane / 4;
          for (int matrix = 0; matrix < 2; ++matrix) {
            to[matrix] = elements[matrix][row_idx][col] |
                         static_cast<unsigned>(elements[matrix][row_idx + 1][col]) << 16;
          }
        }
      },
      &slot);
}

}  // namespace lssar::cuda_emulated
