// Weights packed for the GEMM: panels of 32 rows, each read as one stream.
#ifndef LSSAR_KERNELS_CPU_PACKED_MATRIX_H_
#define LSSAR_KERNELS_CPU_PACKED_MATRIX_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/quantize.h"

namespace lssar {

// Rows of W (output features, N) in a panel. At 16 bits one k of a panel is one cache line. With 32
// columns a 512-bit machine holds a tile of 12 rows of x in its 32 registers (24 sums, 2 weights).
// Wider panels would leave small models with fewer panels than threads.
inline constexpr int kPanelN = 32;

// int8: a panel is a sequence of groups of kGroupCols k. A group starts with the bf16 scales of its
// 32 rows (one cache line). Then follow pairs of k, [pair][kPanelN][2], which one instruction
// multiplies. This is one stream, 1/32 longer than its int8 elements. An odd last k is paired with
// zeros.
inline constexpr size_t kGroupScaleBytes = size_t{kPanelN} * 2;

// int4: the same with groups of kInt4GroupCols k. After the scales follow blocks of 8 k,
// [block][kPanelN][4] bytes. A byte has two codes: of k in the low half, of k + 4 in the high half,
// with k in the order 0, 2, 1, 3. So a byte of each quad is a 16-bit lane's low or high one, which
// makes pairs of k (WidenInt4); and 4 bytes are 4 k of a column, which one instruction multiplies.
// A group is 9 cache lines: 4.5 bits an element. The last block is padded: x is zero there.
inline constexpr int kInt4BlockCols = 8;
inline constexpr size_t kInt4BlockBytes = size_t{kPanelN} * 4;

// Bytes from a panel's start to its k; int8, int4: to the start of the group of k.
// Requires  int8, int4: k is a multiple of GroupColsOf(stored), or the panel's whole depth
constexpr size_t PanelOffset(DType stored, int k) {
  if (stored == DType::kI4) {
    const int num_int4_groups = (k + kInt4GroupCols - 1) / kInt4GroupCols;
    const int num_blocks = (k + kInt4BlockCols - 1) / kInt4BlockCols;
    return size_t(num_blocks) * kInt4BlockBytes + size_t(num_int4_groups) * kGroupScaleBytes;
  }
  if (stored != DType::kI8) return size_t(k) * size_t{kPanelN} * BytesOf(stored);
  const int num_groups = (k + kGroupCols - 1) / kGroupCols;
  return size_t((k + 1) / 2) * 2 * size_t{kPanelN} + size_t(num_groups) * kGroupScaleBytes;
}

// int8: bytes from a group's first scale to its element (k, column). `k` counts from the group's
// start.
constexpr size_t Int8Offset(int k, int column) {
  return kGroupScaleBytes + size_t(k / 2 * kPanelN + column) * 2 + size_t(k % 2);
}

// int4: bytes from a group's first scale to the byte of element (k, column), and the bit of its
// code there. `k` counts from the group's start.
constexpr size_t Int4Offset(int k, int column) {
  constexpr size_t kByteOf[] = {0, 2, 1, 3};
  return kGroupScaleBytes + size_t(k / kInt4BlockCols) * kInt4BlockBytes + size_t(column) * 4 +
         kByteOf[k % 4];
}
constexpr int Int4Shift(int k) { return k % kInt4BlockCols / 4 * 4; }

// Bytes of a panel: whole cache lines.
constexpr size_t PanelBytesOf(DType stored, int num_cols) {
  return (PanelOffset(stored, num_cols) + 63) / 64 * 64;
}

// Element (row, k) is at [row / 32][k][row % 32]; int8 and int4: see kGroupScaleBytes. Rows past
// the end of the matrix, in the last panel, are zero; int4: their scales are.
class CpuMatrix final : public PackedMatrix {
 public:
  // Requires  panels of NumPanels() * PanelBytes() bytes, 64-byte aligned
  CpuMatrix(int num_rows, int num_cols, DType stored, std::unique_ptr<Buffer> panels)
      : num_rows_(num_rows), num_cols_(num_cols), stored_(stored), panels_(std::move(panels)) {}

  int NumRows() const override { return num_rows_; }
  int NumCols() const override { return num_cols_; }
  DType StoredType() const override { return stored_; }
  size_t NumBytes() const override { return size_t(NumPanels()) * PanelBytes(); }

  int NumPanels() const { return (num_rows_ + kPanelN - 1) / kPanelN; }
  size_t PanelBytes() const { return PanelBytesOf(stored_, num_cols_); }
  // Writes row `row` of the matrix, widened to fp32, to out [NumCols()].
  // Cost  one cache line per element: the elements of a row are one k of the panel apart
  void WidenRow(int row, float* out) const;

  const void* Panel(int panel_idx) const {
    return panels_->As<const std::byte>() + size_t(panel_idx) * PanelBytes();
  }

 private:
  int num_rows_;
  int num_cols_;
  DType stored_;
  std::unique_ptr<Buffer> panels_;
};

// Copies `view` into panels, rounded to nearest (ties to even) if `stored` is narrower.
// Requires  view.num_rows, view.num_cols >= 1
// Errors    RESOURCE_EXHAUSTED: not enough memory; INVALID_ARGUMENT: CheckPack's, a finite weight
//           overflows `stored`, or a weight is not finite and `stored` is int8 or int4
// Threads   the whole pool
absl::StatusOr<std::unique_ptr<PackedMatrix>> PackForCpu(const MatrixView& view, DType stored,
                                                         ThreadPool& pool);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_PACKED_MATRIX_H_
