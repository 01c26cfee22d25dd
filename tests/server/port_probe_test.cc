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
