// Element types of K/V pages and of weights, and the MMAs on them.
//
// A row of fp32 is multiplied by 16-bit elements in two parts: x = part 0 + part 1, each rounded to
// the MMA's element type. fp16 parts keep 22 of fp32's 24 bits, bf16 parts 16: an error of 2^-18 of
// x, where Linear allows 1e-5. One part would be an error of 2^-12 or 2^-9. A
// stored operand has one part, which is exact. Rows are scaled by a power of two to [2^11, 2^12)
// first, so that no part leaves fp16's range.
//
// The order of dimensions does not matter to a dot product if it is the same in both operands. So
// thread t of a quad takes 8 adjacent dimensions of each 32 (4 of a last 16): one load of 16 bytes
// where the MMA's own layout would need four loads of 4 bytes.
#ifndef LSSAR_KERNELS_CUDA_ELEMENTS_CUH_
#define LSSAR_KERNELS_CUDA_ELEMENTS_CUH_

#include "kernels/cuda/attention_math.cuh"
#include "kernels/cuda/instructions.cuh"

namespace lssar::LSSAR_CUDA_NAMESPACE {

struct alignas(16) Bits128 {
  unsigned x[4];
};
struct alignas(8) Bits64 {
  unsigned x[2];
};

LSSAR_DEVICE unsigned Pair(uint16_t low, uint16_t high) {
  return unsigned(low) | unsigned(high) << 16;
}

struct F16Element {
  using Value = F16Element;  // of the values beside keys of this type
  static constexpr bool kTwoPlanes = false;
  static constexpr int kBytes = 2;
  static constexpr bool kHasScales = false;
  static constexpr unsigned kOnes = 0x3C003C00;
  static constexpr unsigned kExponent = 0x7C00;  // of an infinity or a NaN: all set

  LSSAR_DEVICE static uint16_t FromFloat(float x) { return F16FromFloat(x); }
  LSSAR_DEVICE static float ToFloat(uint16_t bits) { return FloatFromF16(bits); }
  LSSAR_DEVICE static void Mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MmaF16(c, a, b);
  }
  // Element `i` of the 8 that 16 bytes hold.
  LSSAR_DEVICE static float Element(const Bits128& piece, int i) {
    return FloatFromF16(uint16_t(piece.x[i / 2] >> (16 * (i % 2))));
  }
  // 8 adjacent elements as pairs of 16 bits: from the words that hold them, or from memory.
  LSSAR_DEVICE static void Unpack8(const unsigned (&words)[4], unsigned (&to)[4]) {
    for (int i = 0; i < 4; ++i) to[i] = words[i];
  }
  LSSAR_DEVICE static void Load8(const unsigned char* from, unsigned (&to)[4]) {
    Unpack8(reinterpret_cast<const Bits128*>(from)->x, to);
  }
  // 4 adjacent elements.
  LSSAR_DEVICE static void Load4(const unsigned char* from, unsigned (&to)[2]) {
    const Bits64 bits = *reinterpret_cast<const Bits64*>(from);
    for (int i = 0; i < 2; ++i) to[i] = bits.x[i];
  }
};

struct Bf16Element : F16Element {
  static constexpr unsigned kOnes = 0x3F803F80;
  static constexpr unsigned kExponent = 0x7F80;

  LSSAR_DEVICE static uint16_t FromFloat(float x) { return Bf16FromFloat(x); }
  LSSAR_DEVICE static float ToFloat(uint16_t bits) { return FloatFromBf16(bits); }
  LSSAR_DEVICE static void Mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    MmaBf16(c, a, b);
  }
  LSSAR_DEVICE static float Element(const Bits128& piece, int i) {
    return FloatFromBf16(uint16_t(piece.x[i / 2] >> (16 * (i % 2))));
  }
};

// int8 with scales beside it. Multiplied as fp16, which represents every int8 exactly.
struct I8Element : F16Element {
  using Value = I8Element;
  static constexpr int kBytes = 1;
  static constexpr bool kHasScales = true;

  // Element `i` of the 16 that 16 bytes hold.
  LSSAR_DEVICE static float Element(const Bits128& piece, int i) {
    return float(int8_t(piece.x[i / 4] >> (8 * (i % 4))));
  }
  LSSAR_DEVICE static void Unpack8(const unsigned (&words)[2], unsigned (&to)[4]) {
    for (int i = 0; i < 2; ++i) F16FromI8(words[i], to[2 * i], to[2 * i + 1]);
  }
  LSSAR_DEVICE static void Load8(const unsigned char* from, unsigned (&to)[4]) {
    Unpack8(reinterpret_cast<const Bits64*>(from)->x, to);
  }
  LSSAR_DEVICE static void Load4(const unsigned char* from, unsigned (&to)[2]) {
    F16FromI8(*reinterpret_cast<const unsigned*>(from), to[0], to[1]);
  }

  // 4 adjacent elements times their scale, rounded to fp16.
  LSSAR_DEVICE static Bits64 Scale4(const unsigned char* from, float scale) {
    const unsigned bits = *reinterpret_cast<const unsigned*>(from);
    uint16_t scaled[4];
    for (int i = 0; i < 4; ++i) {
      scaled[i] = F16FromFloat(scale * float(int8_t(bits >> (8 * i))));
    }
    return {{Pair(scaled[0], scaled[1]), Pair(scaled[2], scaled[3])}};
  }
};

// Keys in 16-bit fixed point (kernels/DESIGN.md, "K in two planes"): a plane's elements are
// unsigned bytes, 128 larger than its integers. Scales beside them. Values are fp16.
struct Fx16Element : F16Element {
  static constexpr bool kTwoPlanes = true;
  static constexpr int kBytes = 1;  // of a plane
  static constexpr bool kHasScales = true;
};

// The first of the four dimensions that thread t of a quad takes in step `step` (16 dimensions).
template <int kDim>
LSSAR_DEVICE constexpr int DimOfStep(int step, int t) {
  return step / 2 * 32 + 32 <= kDim ? step / 2 * 32 + 8 * t + step % 2 * 4 : step * 16 + 4 * t;
}

// A row of fp32, scaled, as two parts of 16 bits.
template <typename E, int kDim>
struct ScaledRow {
  const float* row;  // null: zeros
  float factor;      // of its elements
  float inverse;     // of the power of two in the factor

  // is_unit: the row has unit length, or is zero. Times any scale of scores it is in the range of
  // the parts, and the power of two is 1. All lanes of the warp; the lanes of a quad share a row.
  LSSAR_DEVICE void Load(const float* from, float scale, bool is_unit) {
    row = from;
    factor = scale;
    inverse = 1;
    if (is_unit) return;
    const int t = LaneIdx() % 4;
    float largest = 0;
    if (row != nullptr) {
      for (int step = 0; step < kDim / 16; ++step) {
        for (int i = 0; i < 4; ++i) {
          largest = fmaxf(largest, fabsf(row[DimOfStep<kDim>(step, t) + i] * scale));
        }
      }
    }
    const float power = PowerOfTwoFor(LargestOfQuad(largest), 11);
    factor = scale * power;
    inverse = 1.0f / power;
  }

  // Elements `dim` and dim + 1 of both parts.
  LSSAR_DEVICE void Split(int dim, unsigned (&parts)[2]) const {
    float low = row == nullptr ? 0.0f : row[dim] * factor;
    float high = row == nullptr ? 0.0f : row[dim + 1] * factor;
    LSSAR_UNROLL
    for (int part = 0; part < 2; ++part) {
      const uint16_t low_bits = E::FromFloat(low), high_bits = E::FromFloat(high);
      parts[part] = Pair(low_bits, high_bits);
      low -= E::ToFloat(low_bits);
      high -= E::ToFloat(high_bits);
    }
  }
};

// Loads 8 stored rows as the B operands of a dot product's MMAs. `stored`: row lane / 4 of them.
template <typename E, int kDim>
LSSAR_DEVICE void LoadStored(const unsigned char* stored, unsigned (&b)[kDim / 16][2]) {
  constexpr int kSteps = kDim / 16;
  const int t = LaneIdx() % 4;
  LSSAR_UNROLL
  for (int step = 0; step + 2 <= kSteps; step += 2) {
    unsigned words[4];
    E::Load8(stored + DimOfStep<kDim>(step, t) * E::kBytes, words);
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) b[step + i / 2][i % 2] = words[i];
  }
  if constexpr (kSteps % 2 == 1) {
    E::Load4(stored + DimOfStep<kDim>(kSteps - 1, t) * E::kBytes, b[kSteps - 1]);
  }
}

// c[i] = 16 rows times 8 stored rows, for kCount sets of them: as many chains of MMAs in flight. A
// chain does not depend on kCount.
template <typename E, int kSteps, int kCount>
LSSAR_DEVICE void Dot(const unsigned (&a)[kSteps][4], const unsigned (*b)[kSteps][2],
                      float (&c)[kCount][4]) {
  LSSAR_UNROLL
  for (int i = 0; i < 4 * kCount; ++i) c[i / 4][i % 4] = 0;
  LSSAR_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    LSSAR_UNROLL
    for (int set = 0; set < kCount; ++set) E::Mma(c[set], a[step], b[set][step]);
  }
}

// ---- Bytes: rows in 16-bit fixed point times planes of keys. All integers are exact.

// MMAs of 32 dimensions that a dot product has.
template <int kDim>
inline constexpr int kByteSteps = (kDim + 31) / 32;

// The first of the four dimensions that thread t of a quad takes in word `word` of step `step`: 16
// adjacent dimensions of each 64, 8 of a last 32. Word 0 alone has some of a last 16 (HasWord).
template <int kDim>
LSSAR_DEVICE constexpr int DimOfWord(int step, int word, int t) {
  if (step / 2 * 64 + 64 <= kDim) return step / 2 * 64 + 16 * t + step % 2 * 8 + word * 4;
  return step * 32 + 32 <= kDim ? step * 32 + 8 * t + word * 4 : step * 32 + 4 * t;
}
template <int kDim>
LSSAR_DEVICE constexpr bool HasWord(int step, int word) {
  return step * 32 + 32 <= kDim || word == 0;
}

// The smallest stride of at least num_bytes that is 64 more than a multiple of 128: 16-byte loads
// of 4 threads from each of 2 rows then touch all banks once.
constexpr int KeyStride(int num_bytes) { return (num_bytes + 63) / 128 * 128 + 64; }

// Loads a plane of 8 keys as the B operands of a dot product's MMAs. `plane`: of key lane / 4.
template <int kDim>
LSSAR_DEVICE void LoadPlane(const unsigned char* plane, unsigned (&b)[kByteSteps<kDim>][2]) {
  const int t = LaneIdx() % 4;
  LSSAR_UNROLL
  for (int dim = 0; dim + 64 <= kDim; dim += 64) {
    const Bits128 bits = *reinterpret_cast<const Bits128*>(plane + dim + 16 * t);
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) b[dim / 32 + i / 2][i % 2] = bits.x[i];
  }
  if constexpr (kDim % 64 == 32) {
    const Bits64 bits = *reinterpret_cast<const Bits64*>(plane + kDim / 64 * 64 + 8 * t);
    for (int i = 0; i < 2; ++i) b[kDim / 32 - 1][i] = bits.x[i];
  } else if constexpr (kDim % 64 == 16) {
    b[kDim / 32][0] = *reinterpret_cast<const unsigned*>(plane + kDim / 64 * 64 + 4 * t);
    b[kDim / 32][1] = 0;
  }
}

// c[i] = 16 rows of bytes times a plane of 8 keys, for kCount sets of keys.
template <int kSteps, int kCount>
LSSAR_DEVICE void DotPlane(const unsigned (&a)[kSteps][4], const unsigned (*b)[kSteps][2],
                           int (&c)[kCount][4]) {
  LSSAR_UNROLL
  for (int i = 0; i < 4 * kCount; ++i) c[i / 4][i % 4] = 0;
  LSSAR_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    LSSAR_UNROLL
    for (int set = 0; set < kCount; ++set) MmaBytes(c[set], a[step], b[set][step]);
  }
}

LSSAR_DEVICE unsigned LargerBits(unsigned largest_bits, float x) {
  const unsigned bits = BitsOfFloat(x) & 0x7FFFFFFF;
  return bits > largest_bits ? bits : largest_bits;
}

// The scale of a vector in 16-bit fixed point, from the bits of its largest magnitude; NaN if that
// is not finite. quantize.h: QuantizeFixed
LSSAR_DEVICE float FixedScale(unsigned largest_bits) {
  return largest_bits < 0x7F800000 ? FloatOfBits(largest_bits) / float(kMaxFixed)
                                   : FloatOfBits(0x7FC00000);
}
// Requires  steps is a number
LSSAR_DEVICE int FixedOf(float steps) {
  constexpr float kMost = float(kMaxFixed);
  return int(rintf(fminf(fmaxf(steps, -kMost), kMost)));
}
LSSAR_DEVICE int ToFixed(float x, float scale) { return scale > 0 ? FixedOf(x / scale) : 0; }
// The nearest multiple of 256, over 256: x = 256 FixedHigh(x) + a rest in [-128, 127].
LSSAR_DEVICE int FixedHigh(int x) { return (x + 128) >> 8; }

// A row of q in 16-bit fixed point, q = 256 q_high + a rest, and how its dot products with planes
// become scores: h of q with the high plane, s = h + the low plane's part.
template <int kDim>
struct FixedRow {
  float factor;      // of <q, high> and of <q_high, low>, times the key's scale
  float bound;       // |s - h| is at most this times the key's scale
  float low_factor;  // of <q, low>, times the key's scale: in rows that take all from both planes
  int offset;        // planes are stored 128 larger: -128 sum of q
  int high_offset;   // -128 sum of q_high

  // row: null for zeros. row_scale: RowScale. take(step, word, parts): the thread's words of the
  // high bytes and of the rests. All lanes of the warp; the lanes of a quad share a row.
  template <typename F>
  LSSAR_DEVICE void Load(const float* row, float row_scale, const F& take) {
    unsigned largest = 0;
    if (row != nullptr) {
      ForEachWord([&](int, int, int dim) {
        for (int i = 0; i < 4; ++i) largest = LargerBits(largest, row[dim + i]);
      });
    }
    for (int mask = 1; mask <= 2; mask *= 2) {
      const unsigned other = ShuffleXor(largest, mask);
      largest = other > largest ? other : largest;
    }
    const float scale = FixedScale(largest);
    // A product in place of a quotient: near a tie it may round to the other neighbour.
    const float inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
    int sum = 0, high_sum = 0, high_norm = 0;
    ForEachWord([&](int step, int word, int dim) {
      unsigned parts[2] = {0, 0};
      LSSAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int x = row == nullptr ? 0 : FixedOf(row[dim + i] * inverse), high = FixedHigh(x);
        sum += x;
        high_sum += high;
        high_norm += high < 0 ? -high : high;
        parts[0] |= unsigned(high & 0xFF) << (8 * i);
        parts[1] |= unsigned(x & 0xFF) << (8 * i);
      }
      take(step, word, parts);
    });
    for (int mask = 1; mask <= 2; mask *= 2) {
      sum += ShuffleXor(sum, mask);
      high_sum += ShuffleXor(high_sum, mask);
      high_norm += ShuffleXor(high_norm, mask);
    }
    low_factor = scale * row_scale;
    factor = low_factor * 256;
    // 2^-16 more than the largest |<q_high, low>|: more than the rounding errors of the two scores.
    bound = factor * 128 * float(high_norm) * (1 + 0x1p-16f);
    offset = -128 * sum;
    high_offset = -128 * high_sum;
  }

  // `high`, `rest`: sums of products of a plane with q's high bytes, and with the rests.
  LSSAR_DEVICE float HighScore(int high, int rest, float key_scale) const {
    return float(256 * high + rest + offset) * key_scale * factor;
  }
  // Between these lies the score from both planes.
  LSSAR_DEVICE float LowerBound(float score, float key_scale) const {
    return MulAdd(-bound, key_scale, score);
  }
  LSSAR_DEVICE float UpperBound(float score, float key_scale) const {
    return MulAdd(bound, key_scale, score);
  }
  LSSAR_DEVICE float WithLow(float score, int high, float key_scale) const {
    return MulAdd(float(high + high_offset) * key_scale, factor, score);
  }
  // The same with all of q.
  LSSAR_DEVICE float WithAllOfLow(float score, int high, int rest, float key_scale) const {
    return MulAdd(float(256 * high + rest + offset) * key_scale, low_factor, score);
  }

 private:
  // f(step, word, dim) for the words of the thread.
  template <typename F>
  LSSAR_DEVICE static void ForEachWord(const F& f) {
    LSSAR_UNROLL
    for (int i = 0; i < 2 * kByteSteps<kDim>; ++i) {
      const int step = i / 2, word = i % 2;
      if (HasWord<kDim>(step, word)) f(step, word, DimOfWord<kDim>(step, word, LaneIdx() % 4));
    }
  }
};

// Weighted sums of values for 16 rows, in the layout of C. `weights`: sums of the rounded weights.
template <typename E, int kDim>
struct ValueSums {
  static constexpr int kTiles = kDim / 8;
  float values[kTiles][4];
  float weights[4];

  LSSAR_DEVICE void Clear() {
    LSSAR_UNROLL
    for (int i = 0; i < 4; ++i) {
      weights[i] = 0;
      LSSAR_UNROLL
      for (int n = 0; n < kTiles; ++n) values[n][i] = 0;
    }
  }

  // Adds 16 keys. weights_of: A operand. rows: 16 values in shared memory, 16-bit elements,
  // `stride` bytes apart. kGuarded: some row does not attend to all of these keys; a value that it
  // does not attend to must not change it, even a NaN.
  template <bool kGuarded>
  LSSAR_DEVICE void Add(const unsigned (&weights_of)[4], const unsigned char* rows, int stride) {
    const unsigned char* row = rows + LaneIdx() % 16 * stride + LaneIdx() / 16 * 16;
    const unsigned ones[2] = {E::kOnes, E::kOnes};
    E::Mma(weights, weights_of, ones);
    LSSAR_UNROLL
    for (int n = 0; n < kTiles; n += 2) {
      unsigned b[2][2];
      LoadTransposed(b, row + n * 16);
      LSSAR_UNROLL
      for (int i = 0; i < 2; ++i) {
        if constexpr (kGuarded) Guard(weights_of, b[i], values[n + i]);
        E::Mma(values[n + i], weights_of, b[i]);
      }
    }
  }

 private:
  // Clears infinities and NaNs in b, and sets to NaN the sums of rows that attend to them.
  LSSAR_DEVICE static void Guard(const unsigned (&weights_of)[4], unsigned (&b)[2], float (&c)[4]) {
    unsigned bad[2];
    for (int i = 0; i < 2; ++i) {
      const bool low = (b[i] & E::kExponent) == E::kExponent;
      const bool high = (b[i] >> 16 & E::kExponent) == E::kExponent;
      bad[i] = (low ? E::kOnes & 0xFFFF : 0) | (high ? E::kOnes & 0xFFFF0000 : 0);
      b[i] &= (low ? 0xFFFF0000u : 0xFFFFFFFFu) & (high ? 0x0000FFFFu : 0xFFFFFFFFu);
    }
    if (Ballot((bad[0] | bad[1]) != 0) == 0) return;
    unsigned attends[4];
    for (int i = 0; i < 4; ++i) {
      attends[i] = ((weights_of[i] & 0x7FFF) != 0 ? E::kOnes & 0xFFFF : 0) |
                   ((weights_of[i] >> 16 & 0x7FFF) != 0 ? E::kOnes & 0xFFFF0000 : 0);
    }
    float num_bad[4] = {};
    E::Mma(num_bad, attends, bad);
    for (int i = 0; i < 4; ++i) {
      if (num_bad[i] > 0) c[i] = FloatOfBits(0x7FC00000);
    }
  }
};

}  // namespace lssar::LSSAR_CUDA_NAMESPACE

#endif  // LSSAR_KERNELS_CUDA_ELEMENTS_CUH_
