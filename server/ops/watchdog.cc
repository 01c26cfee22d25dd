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

Clock::duration StepWatch::StepAge(const EngineStats& stats, Clock::time_point now) {
  const Clock::duration gap = time_.Look(now);
  const Clock::time_point started_at = stats.step_started_at.value_or(Clock::time_point());
  const bool is_running = started_at != Clock::time_point();
  const bool is_same_step = is_running && started_at == step_started_at_;
  const bool is_same_layer = is_same_step && stats.num_layers_begun == num_layers_begun_;
  step_started_at_ = started_at;
  num_layers_begun_ = stats.num_layers_begun;
  layer_age_ = is_same_layer ? layer_age_ + gap : Clock::duration();
  if (is_same_step) {
    step_age_ += gap;
  } else {
    step_age_ = is_running ? std::min(now - started_at, gap) : Clock::duration();
  }
  return step_age_;
}

std::optional<EngineFailure> StepWatch::Check(const EngineStats& stats, Clock::time_point now) {
  const Clock::duration age = StepAge(stats, now);
  if (stats.is_device_lost) {
    return EngineFailure{.status = absl::UnavailableError(
                             "the device is lost: it rejects all further calls of this process"),
                         .is_device_lost = true};
  }
  if (!stats.is_serving) {
    return EngineFailure{
        .status = absl::UnavailableError("the engine failed and serves no more requests")};
  }
  if (step_timeout_ == Clock::duration() || layer_age_ < step_timeout_) return std::nullopt;
  const auto milliseconds = [](Clock::duration time) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(time).count();
  };
  return EngineFailure{
      .status = absl::UnavailableError(
          StrCat("the engine is stuck: its current step has run for ", milliseconds(age),
                 " ms, the last ", milliseconds(layer_age_), " of them without a new layer")),
      .stuck_for = age};
}

Watchdog::Watchdog(absl::Duration step_timeout, GetEngineStats stats, OnFailure on_failure)
    : stats_(std::move(stats)),
      on_failure_(std::move(on_failure)),
      watch_(absl::ToChronoNanoseconds(step_timeout),
             absl::ToChronoNanoseconds(2 * IntervalOf(step_timeout))),
      thread_("watchdog", absl::ToChronoNanoseconds(IntervalOf(step_timeout)),
              [this] { return Check(); }) {}

Clock::duration Watchdog::StepAge() {
  const std::lock_guard lock(mutex_);
  const EngineStats stats = stats_();  // before the time
  return watch_.StepAge(stats, Clock::now());
}

void Watchdog::ExpectShutdown() { is_shutdown_expected_ = true; }

bool Watchdog::Check() {
  std::optional<EngineFailure> failure;
  {
    const std::lock_guard lock(mutex_);
    EngineStats stats = stats_();
    // Read after the stats: the engine may have been shut down in between.
    stats.is_serving |= is_shutdown_expected_;
    failure = watch_.Check(stats, Clock::now());
  }
  if (failure) on_failure_(*failure);
  return !failure;
}

}  // namespace lssar
