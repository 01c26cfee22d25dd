// Weights as the matrix kernel reads them: panels of 32 rows, each streamed once from end to end.
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

// Rows of W (output features) in a panel. At 16 bits a panel's step of k is one cache line; at 32
// columns a 512-bit machine holds a tile of 12 rows of x in its 32 registers (24 sums, 2 weights).
// More would leave small models with fewer panels than threads.
inline constexpr int kPanelRows = 32;

// int8: a panel is cut into groups of kGroupCols steps of k, and each group starts with the bf16
// scales of its 32 rows, one cache line; then pairs of steps, [pair][kPanelRows][2], which one
// instruction multiplies. One stream is read, 1/32 longer than its int8. An odd last step is
// paired with zeros.
inline constexpr size_t kGroupScaleBytes = size_t{kPanelRows} * 2;

// Bytes of a panel before step k: where its group starts, for int8.
// Requires  int8: k is a multiple of kGroupCols, or all of a panel's steps
constexpr size_t StepOffset(DType stored, int k) {
  if (stored != DType::kI8) return size_t(k) * size_t{kPanelRows} * BytesOf(stored);
  const int num_groups = (k + kGroupCols - 1) / kGroupCols;
  return size_t((k + 1) / 2) * 2 * size_t{kPanelRows} + size_t(num_groups) * kGroupScaleBytes;
}

// Bytes from a group's first scale to step `k` of the group in column `column`.
constexpr size_t Int8Offset(int k, int column) {
  return kGroupScaleBytes + size_t(k / 2 * kPanelRows + column) * 2 + size_t(k % 2);
}

// Whole cache lines.
constexpr size_t PanelBytesOf(DType stored, int num_cols) {
  return (StepOffset(stored, num_cols) + 63) / 64 * 64;
}

// Element (row, k) lies at [row / 32][k][row % 32]: [panel][k][kPanelRows], but for int8, whose
// steps are paired behind their group's scales. Rows beyond the matrix, in the last panel, are
// zero.
class CpuMatrix : public PackedMatrix {
 public:
  // Requires  panels of NumPanels() * PanelBytes() bytes, 64-byte aligned
  CpuMatrix(int num_rows, int num_cols, DType stored, std::unique_ptr<Buffer> panels)
      : num_rows_(num_rows), num_cols_(num_cols), stored_(stored), panels_(std::move(panels)) {}

  int NumRows() const override { return num_rows_; }
  int NumCols() const override { return num_cols_; }
  DType StoredType() const override { return stored_; }
  size_t NumBytes() const override { return size_t(NumPanels()) * PanelBytes(); }

  int NumPanels() const { return (num_rows_ + kPanelRows - 1) / kPanelRows; }
  size_t PanelBytes() const { return PanelBytesOf(stored_, num_cols_); }
  const void* Panel(int panel_idx) const {
    return panels_->As<const std::byte>() + size_t(panel_idx) * PanelBytes();
  }

 private:
  int num_rows_;
  int num_cols_;
  DType stored_;
  std::unique_ptr<Buffer> panels_;
};

// Copies `view` into panels, rounded to nearest (ties to even) where `stored` is narrower.
// Requires  view.num_rows, view.num_cols >= 1
// Errors    RESOURCE_EXHAUSTED: no memory; INVALID_ARGUMENT: int8 given, a finite weight overflows
//           `stored`, a weight that is not finite as int8
// Threads   the whole pool
absl::StatusOr<std::unique_ptr<PackedMatrix>> PackForCpu(const MatrixView& view, DType stored,
                                                         ThreadPool& pool);

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_PACKED_MATRIX_H_
