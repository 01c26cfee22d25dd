#include "kernels/cuda/device_memory.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "kernels/pack_check.h"
#include "kernels/quantize.h"

namespace lssar {
namespace {

static_assert(kCudaGroupCols == kGroupCols);

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(CudaDriver& driver, void* address, size_t num_bytes)
      : driver_(driver), address_(address), num_bytes_(num_bytes) {}
  ~DeviceBuffer() override { driver_.Free(address_); }
  void* Address() override { return address_; }
  size_t NumBytes() const override { return num_bytes_; }

 private:
  CudaDriver& driver_;
  void* address_;
  size_t num_bytes_;
};

// A matrix packed for the device.
struct HostMatrix {
  std::vector<uint8_t> elements;
  std::vector<float> scales;
};

// False: a weight does not fit in the type.
bool PackRow(std::span<const float> row, DType stored, uint8_t* to, float* scales) {
  for (size_t i = 0; i < row.size(); ++i) {
    if (stored == DType::kI8) break;
    StoreElement(row[i], to, stored, i);
    const bool overflows = stored == DType::kF16 && std::isfinite(row[i]) &&
                           !std::isfinite(LoadElement(to, stored, i));
    if (overflows) return false;
  }
  if (stored != DType::kI8) return true;
  for (size_t first = 0; first < row.size(); first += kGroupCols) {
    const size_t count = std::min(row.size() - first, size_t{kGroupCols});
    const std::optional<float> scale =
        QuantizeGroup(row.subspan(first, count), reinterpret_cast<int8_t*>(to) + first);
    if (!scale) return false;
    scales[first / kGroupCols] = *scale;
  }
  return true;
}

// A row that is int8 already keeps its bits.
void CopyInt8Row(const MatrixView& view, size_t row, uint8_t* to, float* scales) {
  const size_t num_cols = size_t(view.num_cols);
  const size_t num_groups = (num_cols + kGroupCols - 1) / kGroupCols;
  std::memcpy(to, static_cast<const uint8_t*>(view.elements) + row * num_cols, num_cols);
  for (size_t group = 0; group < num_groups; ++group) {
    scales[group] = FloatFromBf16(view.scales[row * num_groups + group]);
  }
}

absl::Status Upload(CudaDriver& driver, const void* from, size_t num_bytes, Buffer* to) {
  return CudaStatus(driver, driver.CopyIn(to->Address(), from, num_bytes), "copying weights");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateOnDevice(CudaDriver& driver, size_t num_bytes) {
  void* address = nullptr;
  int failed = driver.Allocate(num_bytes == 0 ? 1 : num_bytes, address);
  if (failed == kCudaOutOfMemory) {
    size_t num_free = 0;
    driver.FreeMemory(num_free);
    return absl::ResourceExhaustedError(StrCat(
        "cannot allocate ", num_bytes, " bytes on the device: ", num_free, " bytes are free"));
  }
  if (failed != kCudaSuccess) return CudaStatus(driver, failed, "allocating device memory");
  auto buffer = std::make_unique<DeviceBuffer>(driver, address, num_bytes);
  failed = driver.Clear(address, num_bytes);
  if (failed != kCudaSuccess) return CudaStatus(driver, failed, "clearing device memory");
  return buffer;
}

absl::StatusOr<void*> Workspace::Reserve(size_t num_bytes) {
  if (buffers_.empty() || NumBytes() < num_bytes) {
    ASSIGN_OR_RETURN(std::unique_ptr<Buffer> larger,
                     AllocateOnDevice(driver_, std::max(num_bytes, 2 * NumBytes())));
    buffers_.push_back(std::move(larger));
  }
  return Address();
}

PinnedMemory::~PinnedMemory() {
  if (address_ != nullptr) driver_.FreeHost(address_);
}

absl::StatusOr<void*> PinnedMemory::Reserve(size_t num_bytes) {
  if (num_bytes_ >= num_bytes && address_ != nullptr) return address_;
  if (address_ != nullptr) driver_.FreeHost(std::exchange(address_, nullptr));
  num_bytes = std::max({num_bytes, 2 * std::exchange(num_bytes_, 0), size_t{1}});
  if (const int failed = driver_.AllocateHost(num_bytes, address_); failed != kCudaSuccess) {
    address_ = nullptr;
    return CudaStatus(driver_, failed,
                      StrCat("allocating ", num_bytes, " bytes of pinned host memory"));
  }
  num_bytes_ = num_bytes;
  return address_;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackOnDevice(CudaDriver& driver,
                                                           const MatrixView& view, DType stored) {
  RETURN_IF_ERROR(CheckPack(view));
  if (!IsFloat(stored) && stored != DType::kI8) {
    return absl::UnimplementedError(StrCat("cuda does not compute ", NameOf(stored),
                                           " weights; use int8 (--dtype int8), or the cpu device"));
  }
  const size_t num_rows = size_t(view.num_rows);
  const size_t num_cols = size_t(view.num_cols);
  const size_t padded = size_t(PaddedCols(view.num_cols));
  const size_t groups = padded / kCudaGroupCols;
  HostMatrix host;
  host.elements.resize(num_rows * padded * BytesOf(stored));
  if (stored == DType::kI8) host.scales.resize(num_rows * groups);
  std::vector<float> row(num_cols);
  for (size_t r = 0; r < num_rows; ++r) {
    uint8_t* const elements = &host.elements[r * padded * BytesOf(stored)];
    float* const scales = stored == DType::kI8 ? &host.scales[r * groups] : nullptr;
    if (view.dtype == DType::kI8 && stored == DType::kI8) {
      CopyInt8Row(view, r, elements, scales);
      continue;
    }
    LoadRow(view, int(r), row.data());
    if (!PackRow(row, stored, elements, scales)) {
      return WeightDoesNotFit(stored);
    }
  }

  CudaMatrix matrix{.dtype = stored,
                    .num_rows = view.num_rows,
                    .num_cols = view.num_cols,
                    .padded_cols = int(padded)};
  ASSIGN_OR_RETURN(std::unique_ptr<Buffer> elements,
                   AllocateOnDevice(driver, host.elements.size()));
  RETURN_IF_ERROR(Upload(driver, host.elements.data(), host.elements.size(), elements.get()));
  matrix.elements = elements->Address();
  std::unique_ptr<Buffer> scales;
  if (!host.scales.empty()) {
    const size_t num_bytes = host.scales.size() * sizeof(float);
    ASSIGN_OR_RETURN(scales, AllocateOnDevice(driver, num_bytes));
    RETURN_IF_ERROR(Upload(driver, host.scales.data(), num_bytes, scales.get()));
    matrix.scales = scales->As<float>();
  }
  return std::make_unique<DeviceMatrix>(matrix, std::move(elements), std::move(scales));
}

}  // namespace lssar
