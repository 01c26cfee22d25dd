// Scratch memory of ops, reused from one op to the next.
#ifndef LSSAR_KERNELS_CPU_SCRATCH_H_
#define LSSAR_KERNELS_CPU_SCRATCH_H_

#include <cstddef>
#include <vector>

namespace lssar {

// One area per thread, and one shared area. An area grows to the largest requested size and never
// shrinks, so later steps allocate nothing. Memory is 64-byte aligned and uninitialised.
class Scratch {
 public:
  explicit Scratch(int num_threads);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` elements of the area of `thread_idx`, valid until that thread's next call.
  // Threads  a thread may use only its own area
  template <typename T>
  T* OfThread(int thread_idx, size_t count) {
    return static_cast<T*>(Reserve(areas_[size_t(thread_idx) + 1], count * sizeof(T)));
  }

  // `count` elements of the shared area, valid until the next call.
  // Threads  only outside of ParallelFor
  template <typename T>
  T* Shared(size_t count) {
    return static_cast<T*>(Reserve(areas_[0], count * sizeof(T)));
  }

 private:
  struct alignas(64) Area {
    void* address = nullptr;
    size_t num_bytes = 0;
  };

  static void* Reserve(Area& area, size_t num_bytes);

  std::vector<Area> areas_;  // [0] is the shared one
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CPU_SCRATCH_H_
