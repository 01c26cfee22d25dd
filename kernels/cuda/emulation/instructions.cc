#include "kernels/cuda/emulation/instructions.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstring>

namespace lssar::cuda_emulated {
namespace {

struct MmaOperands {
  float* c;
  const unsigned* a;
  const unsigned* b;
};

// Operands of a warp as bits, and the sums.
struct WarpMma {
  uint16_t a[16][16];
  uint16_t b[16][8];
  float c[16][8];
};

// 16-bit elements as float.
template <bool kBf16>
void Widen(const uint16_t* bits, int count, float* to) {
#if defined(__F16C__)
  if constexpr (!kBf16) {
    for (int i = 0; i < count; i += 8) {
      const __m128i eight = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits + i));
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(eight));
    }
    return;
  }
#endif
  for (int i = 0; i < count; ++i) to[i] = kBf16 ? FloatFromBf16(bits[i]) : FloatFromF16(bits[i]);
}

// Tensor cores add exact products and may truncate the sum. Truncation is the worst case.
float Truncated(double sum) {
  const float nearest = float(sum);
  const bool is_above = std::fabs(double(nearest)) > std::fabs(sum);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(nearest) - (is_above ? 1u : 0u));
}

// In double, where a product of two 16-bit elements is exact.
template <bool kBf16>
void Multiply(WarpMma& mma) {
  float a[16][16], b[16][8];
  Widen<kBf16>(mma.a[0], 256, a[0]);
  Widen<kBf16>(mma.b[0], 128, b[0]);
  float sum_of_b = 0;  // finite: so are all elements
  for (int i = 0; i < 128; ++i) sum_of_b += b[i / 8][i % 8] * 0.0f;
  for (int row = 0; row < 16; ++row) {
    // Most rows of A are zero in decode. They change C only where B is not finite.
    unsigned any = 0;
    for (int k = 0; k < 16; ++k) any |= mma.a[row][k] & 0x7FFFu;
    if (any == 0 && sum_of_b == 0) continue;
    double c[8];
    for (int col = 0; col < 8; ++col) c[col] = double(mma.c[row][col]);
    for (int k = 0; k < 16; ++k) {
      for (int col = 0; col < 8; ++col) c[col] += double(a[row][k]) * double(b[k][col]);
    }
    for (int col = 0; col < 8; ++col) mma.c[row][col] = Truncated(c[col]);
  }
}

template <bool kBf16>
void MmaWarp(void* const* slots) {
  WarpMma mma;
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const MmaOperands& own = *static_cast<const MmaOperands*>(slots[lane]);
    const int group = lane / 4, pair = 2 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&mma.a[group + i % 2 * 8][pair + i / 2 * 8], &own.a[i], sizeof(own.a[i]));
    }
    for (int i = 0; i < 2; ++i) {
      mma.b[pair + 8 * i][group] = uint16_t(own.b[i] & 0xFFFF);
      mma.b[pair + 8 * i + 1][group] = uint16_t(own.b[i] >> 16);
    }
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&mma.c[group + i * 8][pair], &own.c[2 * i], 2 * sizeof(float));
    }
  }
  Multiply<kBf16>(mma);
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const MmaOperands& own = *static_cast<const MmaOperands*>(slots[lane]);
    for (int i = 0; i < 2; ++i) {
      std::memcpy(&own.c[2 * i], &mma.c[lane / 4 + i * 8][2 * (lane % 4)], 2 * sizeof(float));
    }
  }
}

struct ByteOperands {
  int* c;
  const unsigned* a;
  const unsigned* b;
};

void MmaBytesWarp(void* const* slots) {
  int8_t a[16][32];
  uint8_t b[8][32];  // by column
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const ByteOperands& own = *static_cast<const ByteOperands*>(slots[lane]);
    const int group = lane / 4, first = 4 * (lane % 4);
    for (int i = 0; i < 4; ++i) {
      std::memcpy(&a[group + i % 2 * 8][first + i / 2 * 16], &own.a[i], sizeof(own.a[i]));
    }
    for (int i = 0; i < 2; ++i) std::memcpy(&b[group][first + 16 * i], &own.b[i], sizeof(own.b[i]));
  }
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    const ByteOperands& own = *static_cast<const ByteOperands*>(slots[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, col = 2 * (lane % 4) + i % 2;
      for (int k = 0; k < 32; ++k) own.c[i] += int{a[row][k]} * int{b[col][k]};
    }
  }
}

}  // namespace

void MmaF16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MmaOperands own{c, a, b};
  emulation::EmulatedSyncWarp(&MmaWarp<false>, &own);
}

void MmaBf16(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  MmaOperands own{c, a, b};
  emulation::EmulatedSyncWarp(&MmaWarp<true>, &own);
}

void MmaBytes(int (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  ByteOperands own{c, a, b};
  emulation::EmulatedSyncWarp(&MmaBytesWarp, &own);
}

void LoadTransposed(unsigned (&b)[2][2], const void* row) {
  struct Slot {
    const void* row;
    unsigned* b;
  } slot{row, b[0]};
  emulation::EmulatedSyncWarp(
      [](void* const* slots) {
        uint16_t elements[4][8][8];
        for (int lane = 0; lane < kWarpThreads; ++lane) {
          std::memcpy(elements[lane / 8][lane % 8], static_cast<const Slot*>(slots[lane])->row, 16);
        }
        for (int lane = 0; lane < kWarpThreads; ++lane) {
          unsigned* const to = static_cast<const Slot*>(slots[lane])->b;
          const int row_idx = 2 * (lane % 4), col = lane / 4;
          for (int matrix = 0; matrix < 4; ++matrix) {
            to[matrix] =
                elements[matrix][row_idx][col] | unsigned(elements[matrix][row_idx + 1][col]) << 16;
          }
        }
      },
      &slot);
}

}  // namespace lssar::cuda_emulated
