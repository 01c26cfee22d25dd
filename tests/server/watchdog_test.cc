#include "server/ops/watchdog.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>

namespace lssar {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

const Clock::time_point kStart = Clock::time_point(std::chrono::hours(1));

EngineStats InStep(Clock::time_point started_at) {
  EngineStats stats;
  stats.step_started_at = started_at;
  return stats;
}

TEST(StepWatchTest, ALongStepIsStuck) {
  StepWatch watch(seconds(60), seconds(2));
  for (int s = 0; s < 60; ++s) {
    EXPECT_FALSE(watch.Check(InStep(kStart), kStart + seconds(s))) << s;
  }
  const auto failure = watch.Check(InStep(kStart), kStart + seconds(61));
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->stuck_for, seconds(61));
  EXPECT_EQ(failure->status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(failure->status.message()), HasSubstr("61000 ms"));
}

TEST(StepWatchTest, ManyStepsAndIdleTimeAreNotStuck) {
  StepWatch watch(seconds(3), seconds(2));
  for (int s = 0; s < 100; ++s) {
    const Clock::time_point now = kStart + seconds(s);
    const bool is_idle = s % 20 > 10;
    const EngineStats stats = is_idle ? EngineStats() : InStep(kStart + seconds(s / 2 * 2));
    EXPECT_FALSE(watch.Check(stats, now)) << s;
  }
}

// On a machine that others keep busy, or with a large model.
TEST(StepWatchTest, ASlowStepThatGoesOnIsNotStuck) {
  StepWatch watch(seconds(60), seconds(2));
  EngineStats stats = InStep(kStart);
  Clock::time_point now = kStart;
  for (int s = 0; s < 600; ++s, now += seconds(1)) {
    stats.num_layers_begun = s / 59;
    EXPECT_FALSE(watch.Check(stats, now)) << s;
  }
  std::optional<EngineFailure> failure;
  for (int s = 0; s < 61 && !failure; ++s, now += seconds(1)) failure = watch.Check(stats, now);
  ASSERT_TRUE(failure.has_value()) << "the last layer does not end";
  EXPECT_GT(failure->stuck_for, seconds(600));
}

TEST(StepWatchTest, GapsBetweenChecksAreCapped) {
  StepWatch watch(seconds(60), seconds(2));
  EXPECT_FALSE(watch.Check(InStep(kStart), kStart));
  // The machine was suspended for an hour in the middle of a step.
  EXPECT_FALSE(watch.Check(InStep(kStart), kStart + seconds(3600)));
  EXPECT_FALSE(watch.Check(InStep(kStart), kStart + seconds(3601)));
}

// Readiness asks it between the checks.
TEST(StepWatchTest, AStepIsAsOldAsTheTimeInWhichTheProcessRan) {
  StepWatch watch(seconds(60), seconds(2));
  EXPECT_EQ(watch.StepAge(EngineStats(), kStart - seconds(1)), seconds(0));
  EXPECT_EQ(watch.StepAge(InStep(kStart), kStart + milliseconds(500)), milliseconds(500));
  EXPECT_FALSE(watch.Check(InStep(kStart), kStart + seconds(1)));
  // Stopped for an hour.
  EXPECT_EQ(watch.StepAge(InStep(kStart), kStart + seconds(3601)), seconds(3));
  EXPECT_EQ(watch.StepAge(InStep(kStart), kStart + seconds(3602)), seconds(4));
  std::optional<EngineFailure> failure;
  for (int s = 3603; !failure && s < 4000; ++s) {
    failure = watch.Check(InStep(kStart), kStart + seconds(s));
  }
  ASSERT_TRUE(failure.has_value());
  EXPECT_LT(failure->stuck_for, seconds(70));
  // The next step began in another such hour.
  const Clock::time_point next = kStart + seconds(5000);
  EXPECT_EQ(watch.StepAge(InStep(next), next + seconds(3600)), seconds(2));
  EXPECT_EQ(watch.StepAge(EngineStats(), next + seconds(3601)), seconds(0));
}

TEST(StepWatchTest, ZeroMeansNoLimit) {
  StepWatch watch(seconds(0), seconds(2));
  for (int s = 0; s < 1000; ++s) {
    EXPECT_FALSE(watch.Check(InStep(kStart), kStart + seconds(s)));
  }
}

TEST(StepWatchTest, AStoppedEngineIsAFailure) {
  StepWatch watch(seconds(0), seconds(2));
  EngineStats stats;
  stats.is_serving = false;
  const auto failure = watch.Check(stats, kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_FALSE(failure->is_device_lost);
  EXPECT_FALSE(failure->stuck_for.has_value());
  EXPECT_EQ(failure->status.code(), absl::StatusCode::kUnavailable);
}

TEST(StepWatchTest, ALostDeviceIsReported) {
  StepWatch watch(seconds(0), seconds(2));
  EngineStats stats;
  stats.is_serving = false;
  stats.is_device_lost = true;
  const auto failure = watch.Check(stats, kStart);
  ASSERT_TRUE(failure.has_value());
  EXPECT_TRUE(failure->is_device_lost);
  EXPECT_EQ(failure->status.code(), absl::StatusCode::kUnavailable);
}

TEST(WatchdogTest, ReportsTheFirstFailureOnce) {
  std::promise<void> told;
  std::atomic<int> num_told = 0;
  const auto on_failure = [&](const EngineFailure&) {
    if (++num_told == 1) told.set_value();
  };
  {
    Watchdog watchdog(
        absl::Milliseconds(80), [] { return InStep(kStart); }, on_failure);
    told.get_future().wait();
    std::this_thread::sleep_for(milliseconds(50));
  }
  EXPECT_EQ(num_told, 1);
}

TEST(WatchdogTest, AnExpectedShutdownIsNotAFailureButAStuckStepIs) {
  std::atomic<int> num_looks = 0;
  std::atomic<bool> is_serving = true;
  std::atomic<bool> is_stuck = false;
  std::promise<EngineFailure> told;
  Watchdog watchdog(
      absl::Milliseconds(80),
      [&] {
        ++num_looks;
        EngineStats stats = is_stuck ? InStep(kStart) : EngineStats();
        stats.is_serving = is_serving;
        return stats;
      },
      [&](const EngineFailure& failure) { told.set_value(failure); });
  watchdog.ExpectShutdown();
  is_serving = false;
  const int num_before = num_looks;
  while (num_looks < num_before + 3) std::this_thread::sleep_for(milliseconds(1));
  is_stuck = true;
  EXPECT_TRUE(told.get_future().get().stuck_for.has_value());
}

}  // namespace
}  // namespace lssar
