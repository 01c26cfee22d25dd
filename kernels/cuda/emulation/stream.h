// A stream of the emulated device: work in order, none of it earlier than somebody waits for it. So
// a copy that finds its host memory used for something else by then, or a result that is read
// before it is there, shows in a test.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_STREAM_H_
#define LSSAR_KERNELS_CUDA_EMULATION_STREAM_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/cuda/emulation/machine.h"

namespace lssar::emulation {

// Where launch.cuh puts kernels.
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns a code of cudaError_t.
  virtual int Submit(std::function<void()> work) = 0;
  // Shared memory that the device has for a block: a kernel that asks for more is not started.
  virtual size_t MaxSharedBytes() const { return kMaxSharedBytes; }
};

// Work that was recorded, and can run again and again.
using Graph = std::vector<std::function<void()>>;

class LazyStream final : public Stream {
 public:
  explicit LazyStream(size_t max_shared_bytes = kMaxSharedBytes)
      : max_shared_bytes_(max_shared_bytes) {}
  size_t MaxSharedBytes() const override { return max_shared_bytes_; }
  int Submit(std::function<void()> work) override;
  // Runs what waits. A capture does not allow it: false, and the capture is broken.
  bool Drain();

  bool BeginCapture();  // false: one is under way
  // False, and an empty graph: none was under way, or it is broken.
  bool EndCapture(Graph& graph);

 private:
  const size_t max_shared_bytes_;
  Graph waiting_;
  Graph recorded_;
  bool is_capturing_ = false;
  bool is_broken_ = false;  // the capture
};

}  // namespace lssar::emulation

#endif  // LSSAR_KERNELS_CUDA_EMULATION_STREAM_H_
