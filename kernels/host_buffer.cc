#include "kernels/host_buffer.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePageBytes = size_t{2} << 20;

constexpr size_t RoundUp(size_t num_bytes, size_t unit) {
  return (num_bytes + unit - 1) / unit * unit;
}

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
    madvise(address_, num_bytes_, MADV_HUGEPAGE);  // a hint: a failure costs speed only
  }
  ~MappedBuffer() override { munmap(address_, num_bytes_); }
  void* Address() override { return address_; }
  size_t NumBytes() const override { return num_bytes_; }

 private:
  void* address_;
  size_t num_bytes_;
};

// A mapping that buffers are sub-allocated from, one after the other.
class Arena {
 public:
  static constexpr size_t kNumBytes = size_t{64} << 20;
  // A larger buffer fills whole huge pages by itself.
  static constexpr size_t kMaxAllocationBytes = kNumBytes / 4;

  // Null: no memory.
  static std::shared_ptr<Arena> Map() {
    // One huge page more, to align the start. A page that is never written costs no memory.
    void* address = mmap(nullptr, kNumBytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    madvise(address, kNumBytes + kHugePageBytes, MADV_HUGEPAGE);
    return std::shared_ptr<Arena>(new Arena(address));
  }
  ~Arena() { munmap(mapping_, kNumBytes + kHugePageBytes); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Null: fewer than num_bytes are left.
  void* Allocate(size_t num_bytes) {
    const size_t rounded = RoundUp(num_bytes, kAlignment);
    if (rounded > kNumBytes - used_bytes_) return nullptr;
    return first_ + std::exchange(used_bytes_, used_bytes_ + rounded);
  }

 private:
  explicit Arena(void* mapping)
      : mapping_(mapping),
        first_(reinterpret_cast<std::byte*>(
            RoundUp(reinterpret_cast<uintptr_t>(mapping), kHugePageBytes))) {}

  void* mapping_;
  std::byte* first_;
  size_t used_bytes_ = 0;
};

class ArenaBuffer final : public Buffer {
 public:
  ArenaBuffer(std::shared_ptr<Arena> arena, void* address, size_t num_bytes)
      : arena_(std::move(arena)), address_(address), num_bytes_(num_bytes) {}
  void* Address() override { return address_; }
  size_t NumBytes() const override { return num_bytes_; }

 private:
  std::shared_ptr<Arena> arena_;
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
    const size_t rounded = RoundUp(num_bytes, kAlignment);
    void* address = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
    if (address != nullptr) return std::make_unique<HeapBuffer>(address, num_bytes);
  }
  return absl::ResourceExhaustedError(
      StrCat("cannot allocate ", num_bytes, " bytes: not enough memory"));
}

absl::StatusOr<std::unique_ptr<Buffer>> AllocateLastingBuffer(size_t num_bytes) {
  static std::mutex mutex;
  static std::weak_ptr<Arena> current;  // weak: the buffers own the arena
  if (num_bytes <= Arena::kMaxAllocationBytes) {
    const std::lock_guard lock(mutex);
    std::shared_ptr<Arena> arena = current.lock();
    void* address = arena == nullptr ? nullptr : arena->Allocate(num_bytes);
    if (address == nullptr) {
      current = arena = Arena::Map();
      if (arena != nullptr) address = arena->Allocate(num_bytes);
    }
    if (address != nullptr) return std::make_unique<ArenaBuffer>(arena, address, num_bytes);
  }
  return AllocateHostBuffer(num_bytes);
}

}  // namespace lssar
