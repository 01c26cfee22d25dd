// Readiness sees a gRPC port that no longer answers, and one that answers again.
#include "server/ops/port_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

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
  EXPECT_TRUE(probe.Check().ok());
  answers = false;
  while (probe.Check().ok()) std::this_thread::sleep_for(milliseconds(5));
  const absl::Status status = probe.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("connection refused"));
  answers = true;
  while (!probe.Check().ok()) std::this_thread::sleep_for(milliseconds(5));
}

TEST(PortProbe, AProbeThatHangsDelaysNoOne) {
  std::atomic<bool> is_held = true;
  PortProbe probe(
      [&is_held] {
        while (is_held) std::this_thread::sleep_for(milliseconds(1));
        return absl::OkStatus();
      },
      milliseconds(1), milliseconds(50));
  while (probe.Check().ok()) std::this_thread::sleep_for(milliseconds(5));
  EXPECT_EQ(probe.Check().code(), absl::StatusCode::kUnavailable);
  is_held = false;
}

}  // namespace
}  // namespace lssar
