#include "kernels/cuda/emulation/instructions.h"

#include <array>
#include <cmath>
#include <cstring>

namespace lssar::cuda_emulated {
namespace {

struct MmaOperands {
  float* c;
  const unsigned* a;
  const unsigned* b;
};

float LowHalf(unsigned pair, bool is_bf16) {
  const uint16_t bits = uint16_t(pair & 0xFFFF);
  return is_bf16 ? FloatFromBf16(bits) : FloatFromF16(bits);
}
float HighHalf(unsigned pair, bool is_bf16) { return LowHalf(pair >> 16, is_bf16); }

// Tensor cores add exact products and may truncate the sum. Truncation is the worst case.
float Truncated(double sum) {
  const float nearest = float(sum);
  if (!(std::fabs(double(nearest)) > std::fabs(sum))) return nearest;
  return std::nextafter(nearest, 0.0f);
}

template <bool kBf16>
void MmaWarp(void* const* slots) {
  double a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const MmaOperands& own = *static_cast<const MmaOperands*>(slots[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      const int row = group + i % 2 * 8, col = pair + i / 2 * 8;
      a[row][col] = double(LowHalf(own.a[i], kBf16));
      a[row][col + 1] = double(HighHalf(own.a[i], kBf16));
    }
    for (int i = 0; i < 2; ++i) {
      b[pair + 8 * i][group] = double(LowHalf(own.b[i], kBf16));
      b[pair + 8 * i + 1][group] = double(HighHalf(own.b[i], kBf16));
    }
    for (int i = 0; i < 4; ++i) {
      c[group + i / 2 * 8][pair + i % 2] = double(own.c[i]);
    }
  }
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
    }
  }
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const MmaOperands& own = *static_cast<const MmaOperands*>(slots[lane]);
    for (int i = 0; i < 4; ++i) {
      own.c[i] = Truncated(c[lane / 4 + i / 2 * 8][2 * (lane % 4) + i % 2]);
    }
  }
}

}  // namespace

void MmaF16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MmaOperands own{c, a, b};
  emulation::MeetWarp(&MmaWarp<false>, &own);
}

void MmaBf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MmaOperands own{c, a, b};
  emulation::MeetWarp(&MmaWarp<true>, &own);
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
            to[matrix] =
                elements[matrix][row_idx][col] | unsigned(elements[matrix][row_idx + 1][col]) << 16;
          }
        }
      },
      &slot);
}

}  // namespace lssar::cuda_emulated
