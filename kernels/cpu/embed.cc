#include "kernels/cpu/embed.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/float_bits.h"

namespace lssar {
namespace {

template <typename Element, typename Widen>
void CopyRow(const CpuMatrix& table, int row_idx, const Widen& widen, float* out) {
  const auto* from = static_cast<const Element*>(table.Panel(row_idx / kPanelRows));
  from += row_idx % kPanelRows;
  for (int k = 0; k < table.NumCols(); ++k) {
    out[k] = widen(from[static_cast<size_t>(k) * kPanelRows]);
  }
}

void CopyInt8Row(const CpuMatrix& table, int row_idx, float* out) {
  const auto* panel = static_cast<const std::byte*>(table.Panel(row_idx / kPanelRows));
  const int column = row_idx % kPanelRows;
  for (int first = 0; first < table.NumCols(); first += kGroupCols) {
    const std::byte* group = panel + StepOffset(DType::kI8, first);
    const float scale = FloatFromBf16(reinterpret_cast<const uint16_t*>(group)[column]);
    const int count = std::min(kGroupCols, table.NumCols() - first);
    for (int k = 0; k < count; ++k) {
      out[first + k] =
          static_cast<float>(static_cast<int8_t>(group[Int8Offset(k, column)])) * scale;
    }
  }
}

void WidenRow(const CpuMatrix& table, int row_idx, float* out) {
  switch (table.StoredType()) {
    case DType::kF32:
      return CopyRow<float>(
          table, row_idx, [](float value) { return value; }, out);
    case DType::kF16: return CopyRow<uint16_t>(table, row_idx, FloatFromF16, out);
    case DType::kBF16: return CopyRow<uint16_t>(table, row_idx, FloatFromBf16, out);
    case DType::kI8: return CopyInt8Row(table, row_idx, out);
  }
}

}  // namespace

void EmbedOnCpu(const EmbedArgs& args, ThreadPool& pool, Scratch&) {
  LSSAR_CHECK(args.table != nullptr);
  const auto& table = static_cast<const CpuMatrix&>(*args.table);
  const size_t width = static_cast<size_t>(table.NumCols());
  pool.ParallelFor(static_cast<int64_t>(args.ids.size()), [&](int64_t row, int) {
    const int32_t id = args.ids[static_cast<size_t>(row)];
    LSSAR_CHECK(0 <= id && id < table.NumRows());
    WidenRow(table, id, args.out + static_cast<size_t>(row) * width);
  });
}

}  // namespace lssar
