#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/float_bits.h"
#include "kernels/host_buffer.h"

namespace lssar {
namespace {

// Elements of a block that is copied across at once: both its source and its panel stay in L1.
constexpr int kBlockCols = 64;

// One panel of `view`, whose elements are bits of type Element, each mapped by `convert`.
template <typename To, typename From, typename Convert>
void PackPanel(const MatrixView& view, int panel_idx, To* panel, const Convert& convert) {
  const auto* from = static_cast<const From*>(view.elements);
  const size_t row_stride = view.transposed ? 1 : static_cast<size_t>(view.num_cols);
  const size_t col_stride = view.transposed ? static_cast<size_t>(view.num_rows) : 1;
  const int first_row = panel_idx * kPanelRows;
  const int num_rows = std::min(kPanelRows, view.num_rows - first_row);
  if (num_rows < kPanelRows) {
    std::memset(panel, 0, sizeof(To) * size_t{kPanelRows} * static_cast<size_t>(view.num_cols));
  }
  for (int block = 0; block < view.num_cols; block += kBlockCols) {
    const int end = std::min(block + kBlockCols, view.num_cols);
    for (int r = 0; r < num_rows; ++r) {
      const From* row = from + static_cast<size_t>(first_row + r) * row_stride;
      for (int k = block; k < end; ++k) {
        panel[static_cast<size_t>(k) * kPanelRows + static_cast<size_t>(r)] =
            convert(row[static_cast<size_t>(k) * col_stride]);
      }
    }
  }
}

float FloatFromBits(uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? FloatFromF16(bits) : FloatFromBf16(bits);
}

uint16_t BitsFromFloat(float value, DType dtype, bool& overflowed) {
  const uint16_t bits = dtype == DType::kF16 ? F16FromFloat(value) : Bf16FromFloat(value);
  if (std::isfinite(value) && !std::isfinite(FloatFromBits(bits, dtype))) overflowed = true;
  return bits;
}

// False when a finite element of the panel is too large for `stored`.
bool PackPanelAs(const MatrixView& view, int panel_idx, DType stored, void* panel) {
  bool overflowed = false;
  auto* to_bits = static_cast<uint16_t*>(panel);
  auto* to_float = static_cast<float*>(panel);
  const DType given = view.dtype;
  if (given == stored && stored == DType::kF32) {
    PackPanel<float, float>(view, panel_idx, to_float, [](float value) { return value; });
  } else if (given == stored) {
    PackPanel<uint16_t, uint16_t>(view, panel_idx, to_bits, [](uint16_t bits) { return bits; });
  } else if (stored == DType::kF32) {
    PackPanel<float, uint16_t>(view, panel_idx, to_float,
                               [given](uint16_t bits) { return FloatFromBits(bits, given); });
  } else if (given == DType::kF32) {
    PackPanel<uint16_t, float>(view, panel_idx, to_bits, [stored, &overflowed](float value) {
      return BitsFromFloat(value, stored, overflowed);
    });
  } else {
    PackPanel<uint16_t, uint16_t>(
        view, panel_idx, to_bits, [given, stored, &overflowed](uint16_t bits) {
          return BitsFromFloat(FloatFromBits(bits, given), stored, overflowed);
        });
  }
  return !overflowed;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackForCpu(const MatrixView& view, DType stored,
                                                         ThreadPool& pool) {
  LSSAR_CHECK(view.elements != nullptr && view.num_rows >= 1 && view.num_cols >= 1);
  const size_t num_panels =
      (static_cast<size_t>(view.num_rows) + kPanelRows - 1) / size_t{kPanelRows};
  const size_t panel_bytes =
      size_t{kPanelRows} * static_cast<size_t>(view.num_cols) * BytesOf(stored);
  absl::StatusOr<std::unique_ptr<Buffer>> panels = AllocateHostBuffer(num_panels * panel_bytes);
  if (!panels.ok()) return panels.status();
  std::byte* address = (*panels)->As<std::byte>();
  std::atomic<bool> overflowed{false};
  pool.ParallelFor(static_cast<int64_t>(num_panels), [&](int64_t panel_idx, int) {
    std::byte* panel = address + static_cast<size_t>(panel_idx) * panel_bytes;
    if (!PackPanelAs(view, static_cast<int>(panel_idx), stored, panel)) overflowed = true;
  });
  if (overflowed) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a weight is too large for ", std::string(NameOf(stored)), "; keep it as fp32 or bf16"));
  }
  return std::make_unique<CpuMatrix>(view.num_rows, view.num_cols, stored, *std::move(panels));
}

}  // namespace lssar
