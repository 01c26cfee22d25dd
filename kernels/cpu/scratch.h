// Memory that an op needs while it runs, kept from one op to the next.
#ifndef LSSAR_KERNELS_CPU_SCRATCH_H_
#define LSSAR_KERNELS_CPU_SCRATCH_H_

#include <cstddef>
#include <vector>

namespace lssar {

// One area a thread, and one that all share. An area grows to the largest size ever asked for and
// never shrinks, so a warm model step allocates nothing. Memory is 64-byte aligned and holds
// whatever the last op left in it.
class Scratch {
 public:
  explicit Scratch(int num_threads);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // `count` elements of the area of `thread_idx`, valid until that thread's next call.
  // Threads  each thread asks for its own area alone
  template <typename T>
  T* OfThread(int thread_idx, size_t count) {
    return static_cast<T*>(Reserve(areas_[static_cast<size_t>(thread_idx) + 1], count * sizeof(T)));
  }

  // `count` elements of the shared area, valid until the next call.
  // Threads  outside of ParallelFor only
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
