// Limits of connections: slots, addresses, blocks; open files; what a watched connection may do.
#include "server/net/connection_limiter.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <chrono>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "server/net/open_files.h"
#include "server/net/peer_address.h"
#include "server/net/traffic_watch.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class CountedPort final : public PortMetrics {
 public:
  void OnOpened() override { ++num_open; }
  void OnEnded() override { --num_open; }
  void OnRejected(Rejection) override {}
  void OnViolation(Violation) override {}

  int num_open = 0;
};

constexpr Clock::time_point kNow = Clock::time_point(seconds(1000));

TEST(ConnectionLimiter, CountsInTotalAndPerAddress) {
  CountedPort port;
  const auto limiter = std::make_shared<ConnectionLimiter>(ConnectionLimiter::Options{
      .max_connections = 32, .max_connections_per_address = 20, .metrics = &port});
  std::vector<ConnectionSlot> slots;
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(limiter->Check("a", kNow), std::nullopt) << i;
    slots.push_back(limiter->Add("a"));
  }
  EXPECT_EQ(limiter->Check("a", kNow), Rejection::kMaxConnectionsPerAddress);
  // The last two of 32 are kept for addresses without a connection.
  for (int i = 0; i < 10; ++i) slots.push_back(limiter->Add("b"));
  EXPECT_EQ(limiter->Check("b", kNow), Rejection::kMaxConnections);
  EXPECT_EQ(limiter->Check("c", kNow), std::nullopt);
  slots.push_back(limiter->Add("c"));
  slots.push_back(limiter->Add("d"));
  EXPECT_EQ(limiter->Check("e", kNow), Rejection::kMaxConnections);
  EXPECT_EQ(port.num_open, 32);
  slots.clear();
  EXPECT_EQ(port.num_open, 0);
  EXPECT_EQ(limiter->Check("a", kNow), std::nullopt);
}

TEST(ConnectionLimiter, BehindAProxyOneAddressMayHaveAllButThePlacesForOthers) {
  const auto limiter =
      std::make_shared<ConnectionLimiter>(ConnectionLimiter::Options{.max_connections = 32});
  std::vector<ConnectionSlot> slots;
  for (int i = 0; i < 30; ++i) {
    ASSERT_EQ(limiter->Check("proxy", kNow), std::nullopt) << i;
    slots.push_back(limiter->Add("proxy"));
  }
  EXPECT_EQ(limiter->Check("proxy", kNow), Rejection::kMaxConnections);
  EXPECT_EQ(limiter->Check("probe", kNow), std::nullopt);
  slots.clear();
  for (int i = 0; i < 100; ++i) limiter->OnViolation("proxy", kNow);
  EXPECT_EQ(limiter->Check("proxy", kNow), std::nullopt);
}

TEST(ConnectionLimiter, ThirdViolationBlocksTheAddressForTenSeconds) {
  const auto limiter = std::make_shared<ConnectionLimiter>(
      ConnectionLimiter::Options{.max_connections = 32, .max_connections_per_address = 20});
  limiter->OnViolation("a", kNow);
  limiter->OnViolation("a", kNow);
  EXPECT_EQ(limiter->Check("a", kNow), std::nullopt);
  limiter->OnViolation("a", kNow + seconds(9));
  EXPECT_EQ(limiter->Check("a", kNow + seconds(18)), Rejection::kBlocked);
  EXPECT_EQ(limiter->Check("b", kNow + seconds(18)), std::nullopt);
  EXPECT_EQ(limiter->Check("a", kNow + seconds(20)), std::nullopt);
  // Forgotten after ten seconds without abuse.
  limiter->OnViolation("a", kNow + seconds(30));
  limiter->OnViolation("a", kNow + seconds(41));
  limiter->OnViolation("a", kNow + seconds(52));
  EXPECT_EQ(limiter->Check("a", kNow + seconds(52)), std::nullopt);
}

PeerAddress Ipv6Peer(const char* address, uint16_t port) {
  sockaddr_in6 ipv6 = {};
  ipv6.sin6_family = AF_INET6;
  ipv6.sin6_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET6, address, &ipv6.sin6_addr), 1);
  sockaddr_storage storage = {};
  std::memcpy(&storage, &ipv6, sizeof(ipv6));
  return ToPeerAddress(storage);
}

TEST(PeerAddress, CountsNetworksOfIpv6) {
  const PeerAddress peer = Ipv6Peer("2001:db8:1:2:3:4:5:6", 50000);
  EXPECT_EQ(peer.limited, "2001:db8:1:2::/64");
  EXPECT_EQ(peer.uri, "ipv6:%5B2001:db8:1:2:3:4:5:6%5D:50000");
  const PeerAddress mapped = Ipv6Peer("::ffff:192.0.2.1", 7);
  EXPECT_EQ(mapped.limited, "192.0.2.1");
  EXPECT_EQ(mapped.uri, "ipv4:192.0.2.1:7");
}

TEST(OpenFiles, ConnectionsFitUnderTheLimit) {
  EXPECT_EQ(FitConnections(4096, true, true, false, 1024), (1024 - 256) / 3);
  EXPECT_EQ(FitConnections(4096, true, false, false, 1024), (1024 - 256) / 2);
  EXPECT_EQ(FitConnections(4096, false, true, false, 1024), 1024 - 256);
  EXPECT_EQ(FitConnections(4096, true, true, true, 1024), (1024 - 256) / 4)
      << "each HTTP connection may have a file open";
  EXPECT_EQ(FitConnections(100, true, true, false, 1024), 100);
  EXPECT_EQ(FitConnections(100, true, true, false, 64), 1);
  EXPECT_EQ(FitConnections(4096, true, true, false, std::numeric_limits<int64_t>::max()), 4096);
}

class TrafficWatchTest : public testing::Test {
 protected:
  std::optional<Violation> After(Clock::duration time) {
    now_ += time;
    return watch_.Check(sample_, now_);
  }

  Clock::time_point now_ = kNow;
  TrafficSample sample_ = {.bytes_received = 100, .bytes_sent = 100, .streams = {}};
  TrafficWatch watch_{/*max_streams=*/256, now_};
};

TEST_F(TrafficWatchTest, ResetsAreBounded) {
  sample_.streams = {.num_started = 1000, .num_reset = 1000};
  EXPECT_EQ(After(milliseconds(0)), std::nullopt);
  sample_.streams = {.num_started = 1200, .num_reset = 1200};
  EXPECT_EQ(After(seconds(1)), std::nullopt);
  sample_.streams = {.num_started = 1302, .num_reset = 1302};
  EXPECT_EQ(After(milliseconds(500)), Violation::kResets);
}

TEST_F(TrafficWatchTest, StreamsThatGrpcHasNotCleanedUpAreResets) {
  sample_.streams = {.num_started = 1256};
  EXPECT_EQ(After(milliseconds(0)), std::nullopt);
  // They are counted once.
  sample_.streams = {.num_started = 1256, .num_reset = 1000};
  EXPECT_EQ(After(milliseconds(0)), std::nullopt);
  sample_.streams = {.num_started = 1256, .num_reset = 1001};
  EXPECT_EQ(After(milliseconds(0)), Violation::kResets);
}

TEST_F(TrafficWatchTest, StreamsBeyondTheLimitAreResets) {
  sample_.streams = {.num_started = 1257};
  EXPECT_EQ(After(milliseconds(0)), Violation::kResets);
}

TEST_F(TrafficWatchTest, AnsweredCallsMayBeFollowedByAsManyResets) {
  for (int i = 1; i <= 100; ++i) {
    sample_.streams = {.num_started = 2000 * i, .num_answered = 1000 * i, .num_reset = 1000 * i};
    ASSERT_EQ(After(milliseconds(100)), std::nullopt) << i;
  }
}

TEST_F(TrafficWatchTest, BytesThatNothingAnswersAreHeaders) {
  sample_.streams = {.num_started = 1};
  EXPECT_EQ(After(milliseconds(100)), std::nullopt);
  sample_.bytes_received += TrafficWatch::kMaxSilentBytes + TrafficWatch::kMaxSilentBytesPerStream;
  EXPECT_EQ(After(milliseconds(100)), std::nullopt);
  sample_.bytes_received += 200;
  EXPECT_EQ(After(milliseconds(100)), Violation::kHeaderFlood);
}

TEST_F(TrafficWatchTest, AFloodIsSeenBeforeTheServersFirstByte) {
  sample_ = {.bytes_received = 9, .bytes_sent = 0, .streams = {}};
  EXPECT_EQ(After(milliseconds(100)), std::nullopt);
  sample_.bytes_received += TrafficWatch::kMaxSilentBytes;
  EXPECT_EQ(After(milliseconds(100)), Violation::kHeaderFlood);
}

TEST_F(TrafficWatchTest, UploadsWithinFlowControlAreNotClosed) {
  sample_.streams = {.num_started = 1};
  for (int i = 0; i < 320; ++i) {  // 32 MiB, with a window update for each 100 KiB
    sample_.bytes_received += 100 << 10;
    sample_.bytes_sent += 13;
    ASSERT_EQ(After(milliseconds(500)), std::nullopt) << i;
  }
  EXPECT_GT(watch_.NumUnfinishedBytes(), int64_t{30} << 20);
  sample_.message_bytes += int64_t{320} * (100 << 10) - 5;
  EXPECT_EQ(After(seconds(600)), std::nullopt);  // its handler works on it
  EXPECT_EQ(watch_.NumUnfinishedBytes(), 0);
}

TEST_F(TrafficWatchTest, StalledUploadIsClosedAfterTwentySeconds) {
  sample_.streams = {.num_started = 1};
  sample_.bytes_received += int64_t{3} << 19;
  EXPECT_EQ(After(seconds(1)), std::nullopt);
  EXPECT_EQ(After(seconds(20)), std::nullopt);
  EXPECT_EQ(After(seconds(1)), Violation::kStalledUpload);
}

TEST_F(TrafficWatchTest, CancelledUploadHoldsNothing) {
  sample_.streams = {.num_started = 2};
  sample_.bytes_received += int64_t{3} << 19;
  EXPECT_EQ(After(seconds(1)), std::nullopt);
  EXPECT_GT(watch_.NumUnfinishedBytes(), 0);
  sample_.streams.num_reset = 1;
  EXPECT_EQ(After(seconds(1)), std::nullopt);
  EXPECT_EQ(watch_.NumUnfinishedBytes(), 0);
  EXPECT_EQ(After(seconds(100)), std::nullopt);
}

}  // namespace
}  // namespace lssar
