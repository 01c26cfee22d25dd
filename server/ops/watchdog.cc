#include "server/ops/watchdog.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/str_cat.h"

namespace lssar {
namespace {

absl::Duration IntervalOf(absl::Duration step_timeout) {
  if (step_timeout == absl::ZeroDuration()) return absl::Seconds(1);
  return std::clamp(step_timeout / 8, absl::Milliseconds(10), absl::Seconds(1));
}

}  // namespace

std::optional<EngineFailure> StepWatch::Check(const EngineStats& stats, Clock::time_point now) {
  const Clock::duration gap = std::min(now - last_check_at_, max_gap_);
  last_check_at_ = now;
  if (stats.is_device_lost) {
    return EngineFailure{.status = absl::UnavailableError(
                             "the device is lost: it rejects all further calls of this process"),
                         .is_device_lost = true};
  }
  if (!stats.is_serving) {
    return EngineFailure{
        .status = absl::UnavailableError("the engine failed and serves no more requests")};
  }
  const Clock::time_point started_at = stats.step_started_at.value_or(Clock::time_point());
  if (started_at == Clock::time_point() || started_at != step_started_at_ ||
      stats.num_layers_begun != num_layers_begun_) {
    step_started_at_ = started_at;
    num_layers_begun_ = stats.num_layers_begun;
    watched_ = {};
    return std::nullopt;
  }
  watched_ += gap;
  if (step_timeout_ == Clock::duration() || watched_ < step_timeout_) return std::nullopt;
  const Clock::duration age = now - started_at;
  const auto milliseconds = [](Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  return EngineFailure{
      .status = absl::UnavailableError(
          StrCat("the engine is stuck: its current step has run for ", milliseconds(age),
                 " ms, the last ", milliseconds(watched_), " of them without a new layer")),
      .stuck_for = age};
}

Watchdog::Watchdog(absl::Duration step_timeout, GetEngineStats stats, OnFailure on_failure)
    : stats_(std::move(stats)),
      on_failure_(std::move(on_failure)),
      watch_(absl::ToChronoNanoseconds(step_timeout),
             absl::ToChronoNanoseconds(2 * IntervalOf(step_timeout))),
      thread_("watchdog", absl::ToChronoNanoseconds(IntervalOf(step_timeout)),
              [this] { return Check(); }) {}

void Watchdog::ExpectShutdown() { is_shutdown_expected_ = true; }

bool Watchdog::Check() {
  EngineStats stats = stats_();
  // Read after the stats: the engine may have been shut down in between.
  stats.is_serving |= is_shutdown_expected_;
  const auto failure = watch_.Check(stats, Clock::now());
  if (failure) on_failure_(*failure);
  return !failure;
}

}  // namespace lssar
