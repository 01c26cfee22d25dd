// Readiness sees a gRPC port that no longer answers, and one that answers again.
#include "server/ops/port_probe.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "tests/server/poll_until.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Clock::time_point kMade{seconds(1000)};

// A suspended machine, or SIGSTOP: then the port has answered all that was asked.
TEST(PortWatch, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  PortWatch watch(seconds(5), seconds(2), kMade);
  watch.EndProbe(absl::OkStatus(), kMade + seconds(1));
  EXPECT_EQ(watch.Check(kMade + seconds(100)), absl::OkStatus());
  // It is stopped within a probe, which so comes to its limit.
  watch.BeginProbe(kMade + seconds(100));
  watch.EndProbe(absl::UnavailableError("no answer within 3 s"), kMade + seconds(200));
  EXPECT_EQ(watch.Check(kMade + seconds(201)), absl::OkStatus());
  watch.BeginProbe(kMade + seconds(201));
  watch.EndProbe(absl::OkStatus(), kMade + seconds(201));
  EXPECT_EQ(watch.Check(kMade + seconds(202)), absl::OkStatus());
}

TEST(PortWatch, SaysForHowLongAndWhyThePortDoesNotAnswer) {
  PortWatch watch(seconds(5), seconds(2), kMade);
  for (int i = 1; i < 5; ++i) {
    watch.BeginProbe(kMade + seconds(i));
    watch.EndProbe(absl::UnavailableError("connection refused"), kMade + seconds(i));
  }
  EXPECT_EQ(watch.Check(kMade + seconds(5)), absl::OkStatus());
  EXPECT_EQ(watch.Check(kMade + seconds(6)),
            absl::UnavailableError("the gRPC port has not answered for 6 s: connection refused"));
  // The probe that runs hangs, and none has failed.
  watch.EndProbe(absl::OkStatus(), kMade + seconds(7));
  watch.BeginProbe(kMade + seconds(8));
  for (const int i : {10, 12}) EXPECT_EQ(watch.Check(kMade + seconds(i)), absl::OkStatus());
  EXPECT_EQ(
      watch.Check(kMade + seconds(13)),
      absl::UnavailableError("the gRPC port has not answered for 6 s: the probe has not ended"));
}

TEST(PortProbe, SeesAPortThatNoLongerAnswers) {
  std::atomic<bool> answers = true;
  PortProbe probe(
      [&answers] {
        return answers ? absl::OkStatus() : absl::UnavailableError("connection refused");
      },
      milliseconds(1), milliseconds(200));
  EXPECT_TRUE(PollUntil([&] { return probe.Check().ok(); }));
  answers = false;
  absl::Status status;
  EXPECT_TRUE(PollUntil([&] {
    status = probe.Check();
    return status.message().find("connection refused") != std::string_view::npos;
  }));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  answers = true;
  EXPECT_TRUE(PollUntil([&] { return probe.Check().ok(); }));
}

TEST(PortProbe, AProbeThatHangsDelaysNoOne) {
  std::atomic<bool> is_held = true;
  PortProbe probe(
      [&is_held] {
        while (is_held) std::this_thread::sleep_for(milliseconds(1));
        return absl::OkStatus();
      },
      milliseconds(1), milliseconds(50));
  EXPECT_TRUE(PollUntil([&] { return !probe.Check().ok(); }));
  EXPECT_EQ(probe.Check().code(), absl::StatusCode::kUnavailable);
  is_held = false;
}

}  // namespace
}  // namespace lssar
