#include "kernels/reference/rope_write.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/check.h"
#include "kernels/kv_rows.h"

namespace lssar {
namespace {

// Rotates the pairs (x_a, x_b) of one head by the row's angles: the complex product (x_a + i
// x_b)(cos + i sin). Then divides by the norm if args.normalize; rotation does not change it.
// Shapes  x [head_dim]; rope: head_dim/2 cosines, then head_dim/2 sines
std::vector<float> RotatedUnit(const float* x, const float* rope, int head_dim,
                               const RopeWriteArgs& args) {
  const int half = head_dim / 2;
  std::vector<double> rotated(static_cast<size_t>(head_dim));
  double sum_of_squares = 0;
  for (int i = 0; i < half; ++i) {
    const bool half_split = args.rope_layout == RopeLayout::kHalfSplit;
    const int a = half_split ? i : 2 * i;
    const int b = half_split ? i + half : 2 * i + 1;
    const double x_a = x[a], x_b = x[b], cos = rope[i], sin = rope[half + i];
    rotated[size_t(a)] = x_a * cos - x_b * sin;
    rotated[size_t(b)] = x_b * cos + x_a * sin;
    sum_of_squares += x_a * x_a + x_b * x_b;
  }
  const double norm = args.normalize ? std::max(std::sqrt(sum_of_squares), double{kMinNorm}) : 1.0;
  std::vector<float> unit;
  for (double element : rotated) unit.push_back(float(element / norm));
  return unit;
}

}  // namespace

void ReferenceRopeWrite(const RopeWriteArgs& args) {
  const KvLayout& layout = args.kv.layout;
  LSSAR_CHECK(args.num_heads >= 1 && args.num_heads % layout.num_kv_heads == 0);
  const size_t head_dim = size_t(layout.head_dim);
  const size_t q_floats = size_t(args.num_heads) * head_dim;
  const size_t kv_floats = size_t(layout.num_kv_heads) * head_dim;
  for (const SequenceSlice& sequence : args.rows->sequences) {
    for (int r = 0; r < sequence.num_rows; ++r) {
      const size_t row = size_t(sequence.first_row + r);
      const int position = sequence.first_position + r;
      const int page = sequence.pages[size_t(position / layout.page_size)];
      const int slot = position % layout.page_size;
      const float* rope = args.rope + row * head_dim;
      const float* q = args.qkv + row * (q_floats + 2 * kv_floats);
      const float* k = q + q_floats;
      const float* v = k + kv_floats;
      for (size_t head = 0; head < size_t(args.num_heads); ++head) {
        const std::vector<float> unit_q =
            RotatedUnit(q + head * head_dim, rope, layout.head_dim, args);
        std::copy(unit_q.begin(), unit_q.end(), args.q + row * q_floats + head * head_dim);
      }
      for (size_t head = 0; head < size_t(layout.num_kv_heads); ++head) {
        const size_t block = layout.BlockIndex(args.layer, page, int(head));
        KeyRow(args.kv, block, slot)
            .Store(RotatedUnit(k + head * head_dim, rope, layout.head_dim, args));
        ValueRow(args.kv, block, slot).Store({v + head * head_dim, head_dim});
      }
    }
  }
}

}  // namespace lssar
