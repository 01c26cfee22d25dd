#include "kernels/host_buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

class HeapBuffer final : public Buffer {
 public:
  HeapBuffer(void* address, size_t num_bytes) : address_(address), num_bytes_(num_bytes) {
    std::memset(address_, 0, num_bytes_);
  }
  ~HeapBuffer() override { std::free(address_); }
  void* Address() override { return address_; }
  size_t NumBytes() const override { return num_bytes_; }

 private:
  void* address_;
  size_t num_bytes_;
};

class MappedBuffer final : public Buffer {
 public:
  MappedBuffer(void* address, size_t num_bytes) : address_(address), num_bytes_(num_bytes) {
    madvise(address_, num_bytes_, MADV_HUGEPAGE);  // a wish: without it only speed is lost
  }
  ~MappedBuffer() override { munmap(address_, num_bytes_); }
  void* Address() override { return address_; }
  size_t NumBytes() const override { return num_bytes_; }

 private:
  void* address_;
  size_t num_bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(size_t num_bytes) {
  if (num_bytes >= 2 * kHugePageBytes) {
    void* address =
        mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (address != MAP_FAILED) return std::make_unique<MappedBuffer>(address, num_bytes);
  } else {
    const size_t rounded = (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* address = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
    if (address != nullptr) return std::make_unique<HeapBuffer>(address, num_bytes);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("cannot allocate ", num_bytes, " bytes: this machine has not that much memory"));
}

}  // namespace lssar
