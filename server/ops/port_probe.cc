#include "server/ops/port_probe.h"

#include <chrono>
#include <string>
#include <utility>

#include "base/str_cat.h"

namespace lssar {

void PortWatch::EndProbe(absl::Status status, Clock::time_point now) {
  silent_for_ += time_.Look(now);
  last_ = std::move(status);
  if (last_.ok()) silent_for_ = {};
}

absl::Status PortWatch::Check(Clock::time_point now) {
  silent_for_ += time_.Look(now);
  if (silent_for_ <= max_age_) return absl::OkStatus();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(silent_for_).count();
  const std::string reason(last_.ok() ? "the probe has not ended" : last_.message());
  return absl::UnavailableError(
      StrCat("the gRPC port has not answered for ", seconds, " s: ", reason));
}

PortProbe::PortProbe(Probe probe, Clock::duration interval, Clock::duration max_age)
    : probe_(std::move(probe)),
      watch_(max_age, 2 * interval, Clock::now()),
      thread_("port-probe", interval, [this] {
        Run();
        return true;
      }) {}

absl::Status PortProbe::Check() {
  const std::lock_guard lock(mutex_);
  return watch_.Check(Clock::now());
}

void PortProbe::Run() {
  {
    const std::lock_guard lock(mutex_);
    watch_.BeginProbe(Clock::now());
  }
  absl::Status status = probe_();
  const std::lock_guard lock(mutex_);
  watch_.EndProbe(std::move(status), Clock::now());
}

}  // namespace lssar
