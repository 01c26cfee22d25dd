#include "clients/cli/retry.h"

#include <grpcpp/support/status.h>
#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <optional>
#include <string>

#include "clients/cli/rpc_calls.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lssar::cli {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

// RESOURCE_EXHAUSTED as the server sends it.
absl::Status Full(int64_t delay_s, int32_t delay_ns = 0) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(delay_s);
  retry.mutable_retry_delay()->set_nanos(delay_ns);
  google::rpc::Status details;
  details.add_details()->PackFrom(retry);
  return ToStatus(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full",
                               details.SerializeAsString()));
}

TEST(Attempts, WaitAsLongAsTheServerAsksAndAPartOfTheBackoff) {
  Attempts attempts;
  EXPECT_EQ(attempts.WaitAfter(Full(3, 500000000), 0), milliseconds(3500));
  EXPECT_EQ(attempts.WaitAfter(Full(0, 1000), 0.5), microseconds(200001));  // backoff 400 ms
  EXPECT_EQ(attempts.WaitAfter(Full(60), 1), milliseconds(60800));
}

TEST(Attempts, ALongerWaitThanAMinuteIsAnError) {
  EXPECT_EQ(Attempts().WaitAfter(Full(60, 1000), 0), std::nullopt);
  EXPECT_EQ(Attempts().WaitAfter(Full(std::numeric_limits<int64_t>::max(), 999999999), 0),
            std::nullopt);
}

TEST(Attempts, ATimeInThePastIsNoWait) {
  EXPECT_EQ(Attempts().WaitAfter(Full(-5), 0), microseconds(0));
  EXPECT_EQ(Attempts().WaitAfter(Full(std::numeric_limits<int64_t>::min(), -999999999), 0),
            microseconds(0));
}

TEST(Attempts, ARefusalWithoutAWaitIsFinal) {
  // gRPC's own, for a reply that is too large.
  EXPECT_EQ(Attempts().WaitAfter(absl::ResourceExhaustedError("larger than max"), 0), std::nullopt);
  EXPECT_EQ(Attempts().WaitAfter(absl::InvalidArgumentError("n is 0"), 0), std::nullopt);
  EXPECT_EQ(Attempts().WaitAfter(absl::OkStatus(), 0), std::nullopt);
}

TEST(Attempts, EndAfterTenMinutesOfWaits) {
  Attempts attempts;
  for (int i = 0; i < 10; ++i) ASSERT_EQ(attempts.WaitAfter(Full(60), 0), seconds(60));
  EXPECT_EQ(attempts.WaitAfter(Full(60), 0), std::nullopt);
}

TEST(Attempts, FiveAfterAServerThatIsAway) {
  Attempts attempts;
  const absl::Status away = absl::UnavailableError("draining");
  for (const int backoff_ms : {200, 400, 800, 1600, 3200}) {
    EXPECT_EQ(attempts.WaitAfter(away, 1), milliseconds(backoff_ms));
  }
  EXPECT_EQ(attempts.WaitAfter(away, 1), std::nullopt);
}

TEST(Attempts, TheBackoffEndsAtTenSeconds) {
  Attempts attempts;
  for (int i = 0; i < 6; ++i) attempts.WaitAfter(Full(0), 0);
  EXPECT_EQ(attempts.WaitAfter(Full(0), 1), seconds(10));
  EXPECT_EQ(attempts.WaitAfter(Full(0), 1), seconds(10));
}

TEST(ToStatus, AStreamThatAProxyEndsIsUnavailable) {
  for (const auto code : {grpc::StatusCode::UNKNOWN, grpc::StatusCode::INTERNAL}) {
    for (const char* message : {"Stream removed", "RST_STREAM with error code 2",
                                "stream closed without grpc-status", "closed without status"}) {
      EXPECT_TRUE(absl::IsUnavailable(ToStatus(grpc::Status(code, message)))) << message;
    }
    EXPECT_FALSE(absl::IsUnavailable(ToStatus(grpc::Status(code, "a fault of the server"))));
  }
}

}  // namespace
}  // namespace lssar::cli
