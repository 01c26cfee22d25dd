#include "tests/bench/timed_backend.h"

#include <chrono>

namespace lssar::bench {
namespace {

// Adds the time until its end to an op's.
class Timer {
 public:
  Timer(OpSeconds& seconds, Op op)
      : seconds_(seconds[size_t(op)]), start_(std::chrono::steady_clock::now()) {}
  ~Timer() {
    seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

void TimedBackend::Embed(const EmbedArgs& args) {
  const Timer timer(seconds_, Op::kEmbed);
  inner_->Embed(args);
}

void TimedBackend::Linear(const LinearArgs& args) {
  const Timer timer(seconds_, Op::kLinear);
  inner_->Linear(args);
}

void TimedBackend::RopeWrite(const RopeWriteArgs& args) {
  const Timer timer(seconds_, Op::kRopeWrite);
  inner_->RopeWrite(args);
}

void TimedBackend::Attention(const AttentionArgs& args) {
  const Timer timer(seconds_, Op::kAttention);
  inner_->Attention(args);
}

void TimedBackend::Logits(const LogitsArgs& args) {
  const Timer timer(seconds_, Op::kLogits);
  inner_->Logits(args);
}

}  // namespace lssar::bench
