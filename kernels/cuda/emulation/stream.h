// A stream of the emulated device. Work runs in order, and only when the host waits for it. So a
// test detects host memory that is reused before its copy has run, and results that are read too
// early.
#ifndef LSSAR_KERNELS_CUDA_EMULATION_STREAM_H_
#define LSSAR_KERNELS_CUDA_EMULATION_STREAM_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "kernels/cuda/emulation/machine.h"

namespace lssar::emulation {

// launch.cuh submits kernels here.
class Stream {
 public:
  virtual ~Stream() = default;
  // Returns a code of cudaError_t.
  virtual int Submit(std::function<void()> work) = 0;
  // Shared memory of a block, at most. A launch that needs more fails.
  virtual size_t MaxSharedBytes() const { return kMaxSharedBytes; }
};

// Recorded work, which can run many times.
using Graph = std::vector<std::function<void()>>;

class LazyStream final : public Stream {
 public:
  explicit LazyStream(size_t max_shared_bytes = kMaxSharedBytes)
      : max_shared_bytes_(max_shared_bytes) {}
  size_t MaxSharedBytes() const override { return max_shared_bytes_; }
  int Submit(std::function<void()> work) override;
  // Runs all pending work. During a capture: returns false and invalidates the capture.
  bool Drain();

  bool BeginCapture();  // false: a capture is active
  // False, with an empty graph: no capture was active, or it is invalid.
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
