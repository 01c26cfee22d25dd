#include "tests/bench/timed_backend.h"

#include <chrono>

namespace lssar::bench {
namespace {

// Adds its lifetime to the cost of an op.
class Timer {
 public:
  explicit Timer(OpCost& cost) : seconds_(cost.seconds), start_(std::chrono::steady_clock::now()) {}
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
  const Timer timer(costs_[size_t(Op::kEmbed)]);
  inner_->Embed(args);
}

void TimedBackend::Norm(const NormArgs& args) {
  const Timer timer(costs_[size_t(Op::kNorm)]);
  inner_->Norm(args);
}

void TimedBackend::Linear(const LinearArgs& args) {
  OpCost& cost = costs_[size_t(Op::kLinear)];
  cost.weight_bytes += int64_t(args.weight->NumBytes());
  const Timer timer(cost);
  inner_->Linear(args);
}

void TimedBackend::RopeWrite(const RopeWriteArgs& args) {
  const Timer timer(costs_[size_t(Op::kRopeWrite)]);
  inner_->RopeWrite(args);
}

void TimedBackend::Attention(const AttentionArgs& args) {
  const Timer timer(costs_[size_t(Op::kAttention)]);
  inner_->Attention(args);
}

void TimedBackend::Logits(const LogitsArgs& args) {
  OpCost& cost = costs_[size_t(Op::kLogits)];
  cost.weight_bytes += int64_t(args.weight->NumBytes());
  const Timer timer(cost);
  inner_->Logits(args);
}

}  // namespace lssar::bench
