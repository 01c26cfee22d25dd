#include "server/call_gate.h"

#include <algorithm>

namespace lssar {

absl::StatusOr<CallGate::Pass> CallGate::Enter() {
  const std::lock_guard lock(mutex_);
  if (closed_) return absl::UnavailableError("the server is draining; ask another one");
  if (model_ == nullptr)
    return absl::UnavailableError("the server is loading its model; try again");
  ++num_inside_;
  return Pass(this, model_);
}

void CallGate::Open(ServedModel* model) {
  const std::lock_guard lock(mutex_);
  model_ = model;
}

void CallGate::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

bool CallGate::WaitUntilEmpty(absl::Duration limit) {
  std::unique_lock lock(mutex_);
  // Capped: now + limit must not overflow the clock.
  const auto capped = absl::ToChronoMilliseconds(std::min(limit, absl::Hours(24)));
  return emptied_.wait_for(lock, capped, [this] { return num_inside_ == 0; });
}

void CallGate::Leave() {
  // Notified under the lock: the waiter may destroy the gate as soon as it sees zero.
  const std::lock_guard lock(mutex_);
  if (--num_inside_ == 0) emptied_.notify_all();
}

}  // namespace lssar
