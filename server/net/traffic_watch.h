// Finds violations in what can be seen of one gRPC connection from outside gRPC.
#ifndef LSSAR_SERVER_NET_TRAFFIC_WATCH_H_
#define LSSAR_SERVER_NET_TRAFFIC_WATCH_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "server/net/port_metrics.h"

namespace lssar {

// Streams of a connection since it was opened.
struct StreamCounts {
  int64_t num_started = 0;
  int64_t num_answered = 0;  // ended with the server's status
  int64_t num_reset = 0;     // ended without it

  int64_t NumOpen() const { return num_started - num_answered - num_reset; }
};

struct TrafficSample {
  int64_t bytes_received = 0;  // by the kernel, since the connection was opened
  int64_t bytes_sent = 0;
  int64_t message_bytes = 0;  // of the requests that have reached a handler
  StreamCounts streams;
};

// The limits are above what gRPC's flow control lets a client do, and above what a client does that
// cancels every call it has.
class TrafficWatch {
 public:
  // A reset is free for each answered call; of others a connection may have this many, and this
  // many more a second. Streams beyond those that may be open count as resets: gRPC has not cleaned
  // them up yet.
  static constexpr double kMaxResets = 1000;
  static constexpr double kResetsPerSecond = 200;
  // Flow control allows DATA that the server has to allow anew, 64 KiB and a megabyte a stream at
  // most. Bytes beyond that, with no byte from the server in between, are header blocks or control
  // frames.
  static constexpr int64_t kMaxSilentBytes = int64_t{512} << 10;
  static constexpr int64_t kMaxSilentBytesPerStream = int64_t{1152} << 10;
  static constexpr int64_t kMaxCountedStreams = 14;
  // A request that is unfinished and of which nothing has arrived for this long.
  static constexpr int64_t kStalledBytes = int64_t{1} << 20;
  static constexpr auto kStalledTime = std::chrono::seconds(20);

  // `max_streams`: that the client may have open at a time (MAX_CONCURRENT_STREAMS)
  TrafficWatch(int max_streams, Clock::time_point now)
      : max_streams_(max_streams), last_check_at_(now), last_received_at_(now) {}

  // The violation that the connection's traffic shows; nullopt: none.
  std::optional<Violation> Check(const TrafficSample& sample, Clock::time_point now);

  // An estimate of what gRPC holds of requests that have not reached a handler.
  int64_t NumUnfinishedBytes() const { return num_unfinished_bytes_; }

 private:
  const int max_streams_;
  Clock::time_point last_check_at_, last_received_at_;
  TrafficSample last_;
  int64_t num_resets_ = 0;  // with the streams beyond max_streams_
  double resets_left_ = kMaxResets;
  int64_t received_at_last_sent_ = 0;
  TrafficSample base_;  // when the connection last held no unfinished request
  int64_t num_unfinished_bytes_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_TRAFFIC_WATCH_H_
