#include "kernels/cpu/embed.h"

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

void WidenRow(const CpuMatrix& table, int row_idx, float* out) {
  switch (table.StoredType()) {
    case DType::kF32:
      return CopyRow<float>(
          table, row_idx, [](float value) { return value; }, out);
    case DType::kF16: return CopyRow<uint16_t>(table, row_idx, FloatFromF16, out);
    case DType::kBF16: return CopyRow<uint16_t>(table, row_idx, FloatFromBf16, out);
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
