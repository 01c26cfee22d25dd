#include "server/ops/port_probe.h"

#include <chrono>
#include <utility>

#include "base/str_cat.h"
#include "base/thread_name.h"

namespace lssar {
PortProbe::PortProbe(Probe probe, Clock::duration interval, Clock::duration max_age)
    : probe_(std::move(probe)),
      interval_(interval),
      max_age_(max_age),
      thread_([this] { Run(); }) {}

PortProbe::~PortProbe() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  stopped_.notify_all();
  thread_.join();
}

absl::Status PortProbe::Check() const {
  const std::lock_guard lock(mutex_);
  const auto age = Clock::now() - succeeded_at_;
  if (age <= max_age_) return absl::OkStatus();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  return absl::UnavailableError(
      StrCat("the gRPC port has not answered for ", seconds, " s: ", last_.message()));
}

void PortProbe::Run() {
  NameThisThread("port-probe");
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, interval_, [this] { return is_stopping_; })) {
    lock.unlock();
    absl::Status status = probe_();
    lock.lock();
    last_ = std::move(status);
    if (last_.ok()) succeeded_at_ = Clock::now();
  }
}

}  // namespace lssar
