#include "server/ops/port_probe.h"

#include <chrono>
#include <utility>

#include "base/str_cat.h"

namespace lssar {

PortProbe::PortProbe(Probe probe, Clock::duration interval, Clock::duration max_age)
    : probe_(std::move(probe)), max_age_(max_age), thread_("port-probe", interval, [this] {
        Run();
        return true;
      }) {}

absl::Status PortProbe::Check() const {
  const std::lock_guard lock(mutex_);
  const auto age = Clock::now() - succeeded_at_;
  if (age <= max_age_) return absl::OkStatus();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(age).count();
  return absl::UnavailableError(
      StrCat("the gRPC port has not answered for ", seconds, " s: ", last_.message()));
}

void PortProbe::Run() {
  absl::Status status = probe_();
  const std::lock_guard lock(mutex_);
  last_ = std::move(status);
  if (last_.ok()) succeeded_at_ = Clock::now();
}

}  // namespace lssar
