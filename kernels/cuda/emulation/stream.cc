#include "kernels/cuda/emulation/stream.h"

#include <utility>

namespace lssar::emulation {

int LazyStream::Submit(std::function<void()> work) {
  (is_capturing_ ? recorded_ : waiting_).push_back(std::move(work));
  return 0;
}

bool LazyStream::Drain() {
  if (is_capturing_) {
    is_broken_ = true;
    return false;
  }
  for (const std::function<void()>& work : std::exchange(waiting_, {})) work();
  return true;
}

bool LazyStream::BeginCapture() { return !std::exchange(is_capturing_, true); }

bool LazyStream::EndCapture(Graph& graph) {
  const bool is_whole = is_capturing_ && !is_broken_;
  is_capturing_ = is_broken_ = false;
  graph = std::exchange(recorded_, {});
  if (!is_whole) graph.clear();
  return is_whole;
}

}  // namespace lssar::emulation
