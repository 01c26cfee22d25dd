#include "kernels/reference/rope_write.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/check.h"
#include "kernels/kv_rows.h"
#include "kernels/reference/dense.h"

namespace lssar {
namespace {

// Rotates the pairs (x_a, x_b) of the first r elements of one head by the row's angles: the complex
// product (x_a + i x_b)(cos + i sin).
// Shapes  x [head_dim]; rope: r/2 cosines, then r/2 sines
void Rotate(const RopeWriteArgs& args, const float* rope, std::vector<double>* x) {
  const size_t half = size_t(args.RotaryDims()) / 2;
  for (size_t i = 0; i < half; ++i) {
    const bool half_split = args.rope_layout == RopeLayout::kHalfSplit;
    double& a = (*x)[half_split ? i : 2 * i];
    double& b = (*x)[half_split ? i + half : 2 * i + 1];
    const double x_a = a, x_b = b, cos = rope[i], sin = rope[half + i];
    a = x_a * cos - x_b * sin;
    b = x_b * cos + x_a * sin;
  }
}

// One head's q or k as it is written.
std::vector<float> HeadVector(const float* x, const float* rope, const NormView& qk_norm,
                              const RopeWriteArgs& args) {
  std::vector<double> y(x, x + args.kv.layout.head_dim);
  if (!args.qk_norm.after_rotary) ReferenceNormInPlace(qk_norm, &y);
  Rotate(args, rope, &y);
  if (args.qk_norm.after_rotary) ReferenceNormInPlace(qk_norm, &y);
  double sum_of_squares = 0;
  for (const double element : y) sum_of_squares += element * element;
  const double norm = args.normalize ? std::max(std::sqrt(sum_of_squares), double{kMinNorm}) : 1.0;
  std::vector<float> written;
  for (const double element : y) written.push_back(float(element / norm));
  return written;
}

}  // namespace

void ReferenceRopeWrite(const RopeWriteArgs& args) {
  const KvLayout& layout = args.kv.layout;
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % layout.num_kv_heads == 0);
  LSSAR_CHECK(args.RotaryDims() % 2 == 0 && args.RotaryDims() <= layout.head_dim);
  const size_t head_dim = size_t(layout.head_dim);
  const size_t q_floats = size_t(args.num_heads) * head_dim;
  const size_t kv_floats = size_t(layout.num_kv_heads) * head_dim;
  for (const SequenceSlice& sequence : args.rows->sequences) {
    for (int r = 0; r < sequence.num_rows; ++r) {
      const size_t row = size_t(sequence.first_row + r);
      const int position = sequence.first_position + r;
      const int page = sequence.pages[size_t(position / layout.page_size)];
      const int slot = position % layout.page_size;
      const float* rope = args.rope + row * size_t(args.RotaryDims());
      const float* q = args.qkv + row * (q_floats + 2 * kv_floats);
      const float* k = q + q_floats;
      const float* v = k + kv_floats;
      for (size_t head = 0; head < size_t(args.num_heads); ++head) {
        const std::vector<float> head_q =
            HeadVector(q + head * head_dim, rope, args.qk_norm.q, args);
        std::copy(head_q.begin(), head_q.end(), args.q + row * q_floats + head * head_dim);
      }
      for (size_t head = 0; head < size_t(layout.num_kv_heads); ++head) {
        const KvBlock block = layout.Block(args.layer, page, int(head));
        KeyRow(args.kv, block, slot)
            .Store(HeadVector(k + head * head_dim, rope, args.qk_norm.k, args));
        ValueRow(args.kv, block, slot).Store({v + head * head_dim, head_dim});
      }
    }
  }
}

}  // namespace lssar
