#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/float_bits.h"
#include "kernels/host_buffer.h"
#include "kernels/pack_check.h"

namespace lssar {
namespace {

// Elements of a row that are packed together: a group of int8, two of int4. For all types, source
// and panel stay in L1 from one row to the next.
constexpr int kBlockCols = kGroupCols;
static_assert(kBlockCols % kInt4GroupCols == 0 && kInt4GroupCols % kInt4BlockCols == 0);

// Columns [first_col, first_col + num_cols) of one row of `view`.
struct RowBlock {
  const MatrixView& view;
  int row;
  int first_col;
  int num_cols;

  // Calls visit(k, element) with k from 0 to num_cols - 1.
  template <typename Element, typename Visit>
  void ForEach(const Visit& visit) const {
    const size_t row_stride = view.transposed ? 1 : size_t(view.num_cols);
    const size_t col_stride = view.transposed ? size_t(view.num_rows) : 1;
    const Element* from = static_cast<const Element*>(view.elements) + size_t(row) * row_stride +
                          size_t(first_col) * col_stride;
    for (int k = 0; k < num_cols; ++k) visit(k, from[size_t(k) * col_stride]);
  }

  void Widen(float* to) const {
    switch (view.dtype) {
      case DType::kF32: return ForEach<float>([to](int k, float value) { to[k] = value; });
      case DType::kF16:
        return ForEach<uint16_t>([to](int k, uint16_t bits) { to[k] = FloatFromF16(bits); });
      case DType::kBF16:
        return ForEach<uint16_t>([to](int k, uint16_t bits) { to[k] = FloatFromBf16(bits); });
      case DType::kI8:
        return ForEach<int8_t>([to, scale = FloatFromBf16(ScaleBits(0))](int k, int8_t steps) {
          to[k] = float(steps) * scale;
        });
      case DType::kI4:
        for (int k = 0; k < num_cols; ++k) {
          to[k] = float(kInt4Values[Int4Code(k)]) * FloatFromBf16(ScaleBits(k));
        }
        return;
      case DType::kFx16: break;  // no type of weights
    }
    LSSAR_CHECK(false);
  }

  // int8, int4: of the group of column first_col + k.
  uint16_t ScaleBits(int k) const {
    const int group_cols = GroupColsOf(view.dtype);
    const int num_groups = (view.num_cols + group_cols - 1) / group_cols;
    return view.scales[size_t(row) * size_t(num_groups) + size_t((first_col + k) / group_cols)];
  }

  // The code of column first_col + k of an int4 view.
  uint8_t Int4Code(int k) const {
    const uint8_t* codes =
        static_cast<const uint8_t*>(view.elements) + size_t(row) * Int4RowBytes(view.num_cols);
    return Int4CodeAt(codes, size_t(first_col + k));
  }
};

// to[k * kPanelN] = bits of values[k] as `stored`. False: a finite value overflows to infinity.
bool StoreBits(std::span<const float> values, DType stored, uint16_t* to) {
  bool fits = true;
  for (const float value : values) {
    const uint16_t bits = stored == DType::kF16 ? F16FromFloat(value) : Bf16FromFloat(value);
    const float kept = stored == DType::kF16 ? FloatFromF16(bits) : FloatFromBf16(bits);
    if (std::isinf(kept) && !std::isinf(value)) fits = false;
    *to = bits;
    to += kPanelN;
  }
  return fits;
}

// Quantizes one row's part of a group. `to`: the group; `column`: the row's index in the panel.
// False: a weight is not finite.
bool StoreInt8(std::span<const float> values, int column, std::byte* to) {
  int8_t quantized[kGroupCols];
  const std::optional<float> scale = QuantizeGroup(values, quantized);
  if (!scale) return false;
  reinterpret_cast<uint16_t*>(to)[column] = Bf16FromFloat(*scale);
  for (size_t k = 0; k < values.size(); ++k) {
    to[Int8Offset(int(k), column)] = static_cast<std::byte>(quantized[k]);
  }
  return true;
}

// Stores one row's part of a group: codes and scale. `to`: the group, zeroed; `column`: the row's
// index in the panel.
void StoreInt4Codes(std::span<const uint8_t> codes, uint16_t scale_bits, int column,
                    std::byte* to) {
  reinterpret_cast<uint16_t*>(to)[column] = scale_bits;
  for (int k = 0; k < std::ssize(codes); ++k) {
    to[Int4Offset(k, column)] |= std::byte(codes[size_t(k)] << Int4Shift(k));
  }
}

// Quantizes one row's part of a block of groups. False: a weight is not finite.
bool StoreInt4(std::span<const float> values, int column, std::byte* to) {
  for (size_t k = 0; k < values.size(); k += kInt4GroupCols) {
    const auto group = values.subspan(k, std::min(values.size() - k, size_t{kInt4GroupCols}));
    uint8_t codes[kInt4GroupCols];
    const std::optional<float> scale = QuantizeInt4Group(group, codes);
    if (!scale) return false;
    StoreInt4Codes({codes, group.size()}, Bf16FromFloat(*scale), column,
                   to + PanelOffset(DType::kI4, int(k)));
  }
  return true;
}

// The same of a block that is int4 already.
void CopyInt4(const RowBlock& block, int column, std::byte* to) {
  for (int k = 0; k < block.num_cols; k += kInt4GroupCols) {
    const int count = std::min(kInt4GroupCols, block.num_cols - k);
    uint8_t codes[kInt4GroupCols];
    for (int i = 0; i < count; ++i) codes[i] = block.Int4Code(k + i);
    StoreInt4Codes({codes, size_t(count)}, block.ScaleBits(k), column,
                   to + PanelOffset(DType::kI4, k));
  }
}

// `to`: the panel at k = block.first_col. False: `stored` cannot hold an element.
bool PackBlock(const RowBlock& block, DType stored, std::byte* to) {
  const int column = block.row % kPanelN;
  auto* to_bits = reinterpret_cast<uint16_t*>(to) + column;
  if (block.view.dtype == stored && (stored == DType::kF16 || stored == DType::kBF16)) {
    block.ForEach<uint16_t>([to_bits](int k, uint16_t bits) { to_bits[k * kPanelN] = bits; });
    return true;
  }
  if (block.view.dtype == DType::kI8 && stored == DType::kI8) {
    reinterpret_cast<uint16_t*>(to)[column] = block.ScaleBits(0);
    block.ForEach<std::byte>(
        [to, column](int k, std::byte steps) { to[Int8Offset(k, column)] = steps; });
    return true;
  }
  if (block.view.dtype == DType::kI4 && stored == DType::kI4) {
    CopyInt4(block, column, to);
    return true;
  }
  float widened[kBlockCols];
  block.Widen(widened);
  const std::span<const float> values(widened, size_t(block.num_cols));
  switch (stored) {
    case DType::kF32: {
      auto* to_floats = reinterpret_cast<float*>(to) + column;
      for (size_t k = 0; k < values.size(); ++k) to_floats[k * kPanelN] = values[k];
      return true;
    }
    case DType::kF16:
    case DType::kBF16: return StoreBits(values, stored, to_bits);
    case DType::kI8: return StoreInt8(values, column, to);
    case DType::kI4: return StoreInt4(values, column, to);
    case DType::kFx16: break;  // no type of weights
  }
  LSSAR_CHECK(false);
}

template <typename Element, typename Widen>
void WidenColumn(const CpuMatrix& matrix, const std::byte* panel, int column, const Widen& widen,
                 float* out) {
  const Element* from = reinterpret_cast<const Element*>(panel) + column;
  for (int k = 0; k < matrix.NumCols(); ++k) out[k] = widen(from[size_t(k) * kPanelN]);
}

void WidenInt8Column(const CpuMatrix& matrix, const std::byte* panel, int column, float* out) {
  for (int first = 0; first < matrix.NumCols(); first += kGroupCols) {
    const std::byte* group = panel + PanelOffset(DType::kI8, first);
    const float scale = FloatFromBf16(reinterpret_cast<const uint16_t*>(group)[column]);
    const int count = std::min(kGroupCols, matrix.NumCols() - first);
    for (int k = 0; k < count; ++k) {
      out[first + k] = float(int8_t(group[Int8Offset(k, column)])) * scale;
    }
  }
}

void WidenInt4Column(const CpuMatrix& matrix, const std::byte* panel, int column, float* out) {
  for (int first = 0; first < matrix.NumCols(); first += kInt4GroupCols) {
    const std::byte* group = panel + PanelOffset(DType::kI4, first);
    const float scale = FloatFromBf16(reinterpret_cast<const uint16_t*>(group)[column]);
    const int count = std::min(kInt4GroupCols, matrix.NumCols() - first);
    for (int k = 0; k < count; ++k) {
      const auto code = uint8_t(group[Int4Offset(k, column)]) >> Int4Shift(k) & 15;
      out[first + k] = float(kInt4Values[size_t(code)]) * scale;
    }
  }
}

}  // namespace

void CpuMatrix::WidenRow(int row, float* out) const {
  const auto* panel = static_cast<const std::byte*>(Panel(row / kPanelN));
  const int column = row % kPanelN;
  switch (stored_) {
    case DType::kF32:
      return WidenColumn<float>(
          *this, panel, column, [](float value) { return value; }, out);
    case DType::kF16: return WidenColumn<uint16_t>(*this, panel, column, FloatFromF16, out);
    case DType::kBF16: return WidenColumn<uint16_t>(*this, panel, column, FloatFromBf16, out);
    case DType::kI8: return WidenInt8Column(*this, panel, column, out);
    case DType::kI4: return WidenInt4Column(*this, panel, column, out);
    case DType::kFx16: break;  // no type of weights
  }
  LSSAR_CHECK(false);
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackForCpu(const MatrixView& view, DType stored,
                                                         ThreadPool& pool) {
  RETURN_IF_ERROR(CheckPack(view));
  const int num_panels = (view.num_rows + kPanelN - 1) / kPanelN;
  const size_t panel_bytes = PanelBytesOf(stored, view.num_cols);
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> panels,
                   AllocateLastingBuffer(size_t(num_panels) * panel_bytes));
  std::byte* address = panels->As<std::byte>();
  std::atomic<bool> fits{true};
  // Each thread writes, and so places, the panels that it reads in a decode step.
  pool.ParallelForOwn(num_panels, [&](int64_t panel_idx, int) {
    std::byte* panel = address + size_t(panel_idx) * panel_bytes;
    const int first_row = int(panel_idx) * kPanelN;
    const int end_row = std::min(first_row + kPanelN, view.num_rows);
    for (int col = 0; col < view.num_cols; col += kBlockCols) {
      const int num_cols = std::min(kBlockCols, view.num_cols - col);
      for (int row = first_row; row < end_row; ++row) {
        const RowBlock block = {view, row, col, num_cols};
        if (!PackBlock(block, stored, panel + PanelOffset(stored, col))) fits = false;
      }
    }
  });
  if (!fits) return WeightDoesNotFit(stored);
  return std::make_unique<CpuMatrix>(view.num_rows, view.num_cols, stored, std::move(panels));
}

}  // namespace lssar
