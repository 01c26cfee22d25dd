#include "server/net/traffic_watch.h"

#include <algorithm>
#include <utility>

namespace lssar {
namespace {

// What a connection receives besides messages: headers, control frames, frame and TLS overhead.
constexpr int64_t kOtherBytes = int64_t{64} << 10;
constexpr int64_t kOtherBytesPerCall = 1024;
constexpr int64_t kOverheadDivisor = 64;

}  // namespace

std::optional<Violation> TrafficWatch::Check(const TrafficSample& sample, Clock::time_point now) {
  const double seconds = std::chrono::duration<double>(now - last_check_at_).count();
  const int64_t num_resets =
      std::max(num_resets_, sample.streams.num_reset +
                                std::max(int64_t{0}, sample.streams.NumOpen() - max_streams_));
  const int64_t num_new_resets = num_resets - std::exchange(num_resets_, num_resets);
  const int64_t num_new_answers = sample.streams.num_answered - last_.streams.num_answered;
  resets_left_ =
      std::min(kMaxResets, resets_left_ + seconds * kResetsPerSecond + double(num_new_answers)) -
      double(num_new_resets);
  if (sample.bytes_sent != last_.bytes_sent) received_at_last_sent_ = sample.bytes_received;
  if (sample.bytes_received != last_.bytes_received) last_received_at_ = now;
  // How much of its message a reset call had sent is not known: assume that it was all.
  if (sample.streams.NumOpen() <= 0 || num_new_resets > 0) base_ = sample;
  last_check_at_ = now;
  last_ = sample;

  const int64_t num_received = sample.bytes_received - base_.bytes_received;
  const int64_t num_calls = sample.streams.num_started - base_.streams.num_started;
  const int64_t num_other_bytes =
      kOtherBytes + kOtherBytesPerCall * num_calls + num_received / kOverheadDivisor;
  num_unfinished_bytes_ = std::max(
      int64_t{0}, num_received - (sample.message_bytes - base_.message_bytes) - num_other_bytes);

  if (resets_left_ < 0) return Violation::kResets;
  const int64_t num_counted_streams =
      std::clamp<int64_t>(sample.streams.NumOpen(), 0, kMaxCountedStreams);
  // A server that is kept busy enough has not even sent its settings.
  if (sample.bytes_received - received_at_last_sent_ >
      kMaxSilentBytes + num_counted_streams * kMaxSilentBytesPerStream) {
    return Violation::kHeaderFlood;
  }
  if (num_unfinished_bytes_ > kStalledBytes && now - last_received_at_ > kStalledTime) {
    return Violation::kStalledUpload;
  }
  return std::nullopt;
}

}  // namespace lssar
