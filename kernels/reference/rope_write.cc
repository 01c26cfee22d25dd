#include "kernels/reference/rope_write.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kv_rows.h"

namespace lssar {
namespace {

// Rotates the pairs (x_a, x_b) of one head by the row's angles: the complex product
// (x_a + i x_b)(cos + i sin). Then divides by the norm, which the rotation kept.
// rope: head_dim/2 cosines, then head_dim/2 sines.
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
    rotated[static_cast<size_t>(a)] = x_a * cos - x_b * sin;
    rotated[static_cast<size_t>(b)] = x_b * cos + x_a * sin;
    sum_of_squares += x_a * x_a + x_b * x_b;
  }
  const double norm = args.normalize ? std::max(std::sqrt(sum_of_squares), double{kMinNorm}) : 1.0;
  std::vector<float> unit;
  for (double element : rotated) unit.push_back(static_cast<float>(element / norm));
  return unit;
}

}  // namespace

void ReferenceRopeWrite(const RopeWriteArgs& args) {
  const KvLayout& layout = args.kv.layout;
  const int head_dim = layout.head_dim;
  const size_t width = static_cast<size_t>(layout.num_heads) * static_cast<size_t>(head_dim);
  for (const SequenceSlice& sequence : args.rows->sequences) {
    for (int r = 0; r < sequence.num_rows; ++r) {
      const size_t row = static_cast<size_t>(sequence.first_row + r);
      const int position = sequence.first_position + r;
      const int page = sequence.pages[static_cast<size_t>(position / layout.page_size)];
      const int slot = position % layout.page_size;
      const float* rope = args.rope + row * static_cast<size_t>(head_dim);
      for (int head = 0; head < layout.num_heads; ++head) {
        const size_t at = static_cast<size_t>(head) * static_cast<size_t>(head_dim);
        const float* q = args.qkv + row * 3 * width + at;
        const float* k = q + width;
        const float* v = k + width;
        const std::vector<float> unit_q = RotatedUnit(q, rope, head_dim, args);
        const std::vector<float> unit_k = RotatedUnit(k, rope, head_dim, args);
        std::copy(unit_q.begin(), unit_q.end(), args.q + row * width + at);
        const size_t block = layout.BlockIndex(args.layer, page, head);
        KeyRow(args.kv, block, slot).Store(unit_k);
        ValueRow(args.kv, block, slot).Store({v, static_cast<size_t>(head_dim)});
      }
    }
  }
}

}  // namespace lssar
