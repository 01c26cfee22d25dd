#include "server/call_gate.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/str_cat.h"

namespace lssar {

absl::StatusOr<CallGate::Pass> CallGate::Enter(Cut cut) {
  const std::lock_guard lock(mutex_);
  if (absl::Status status = LockedReadiness(); !status.ok()) return status;
  if (std::ssize(inside_) >= max_calls_) {
    return absl::ResourceExhaustedError(
        StrCat("the server has ", inside_.size(), " calls inside (--max-calls ", max_calls_, ")"));
  }
  const uint64_t id = next_id_++;
  inside_.emplace(id, std::move(cut));
  return Pass(this, model_, id);
}

absl::Status CallGate::Readiness() const {
  const std::lock_guard lock(mutex_);
  return LockedReadiness();
}

absl::Status CallGate::LockedReadiness() const {
  if (!closed_.ok()) return closed_;
  if (model_ == nullptr) {
    return absl::UnavailableError("the server is loading its model; try again");
  }
  return absl::OkStatus();
}

ServedModel* CallGate::Model() const {
  const std::lock_guard lock(mutex_);
  return model_;
}

void CallGate::Open(ServedModel* model) {
  const std::lock_guard lock(mutex_);
  model_ = model;
}

void CallGate::Close(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(reason);
}

void CallGate::CutAll(const absl::Status& reason) {
  std::map<uint64_t, Cut> inside;
  {
    const std::lock_guard lock(mutex_);
    inside = inside_;
  }
  // Without the lock: a call that ends leaves.
  for (const auto& [id, cut] : inside) {
    if (cut) cut(reason);
  }
}

bool CallGate::WaitUntilEmpty(absl::Duration limit) {
  std::unique_lock lock(mutex_);
  // Capped: now + limit must not overflow the clock.
  const auto capped = absl::ToChronoMilliseconds(std::min(limit, absl::Hours(24)));
  return emptied_.wait_for(lock, capped, [this] { return inside_.empty(); });
}

void CallGate::Leave(uint64_t id) {
  // Notified under the lock: the waiter may destroy the gate as soon as it sees no one.
  const std::lock_guard lock(mutex_);
  inside_.erase(id);
  if (inside_.empty()) emptied_.notify_all();
}

}  // namespace lssar
