// Counters of one port's connections.
#ifndef LSSAR_SERVER_NET_PORT_METRICS_H_
#define LSSAR_SERVER_NET_PORT_METRICS_H_

#include <array>
#include <cstdint>
#include <string_view>

namespace lssar {

// Why a connection was not accepted.
enum class Rejection : uint8_t {
  kMaxConnections,            // --max-connections
  kMaxConnectionsPerAddress,  // --max-connections-per-address
  kBlocked,                   // its address is blocked after violations
  kNoDescriptors,             // the process or the machine is out of file descriptors or buffers
};
inline constexpr std::array<std::string_view, 4> kRejectionNames = {
    "max_connections", "max_connections_per_address", "blocked", "no_descriptors"};

// Why the server closed an open connection.
enum class Violation : uint8_t {
  kResets,         // calls are begun and reset, again and again
  kHeaderFlood,    // bytes arrive that no flow control has allowed: header blocks without end
  kStalledUpload,  // a part of a request was sent, and nothing since
  kUploadMemory,   // the unfinished requests of one address take too much memory
  kIdleStreams,    // one address has too many calls that were begun and have sent no request
};
inline constexpr std::array<std::string_view, 5> kViolationNames = {
    "resets", "header_flood", "stalled_upload", "upload_memory", "idle_streams"};

// Threads  any
class PortMetrics {
 public:
  virtual ~PortMetrics() = default;
  virtual void OnOpened() = 0;
  virtual void OnEnded() = 0;
  virtual void OnRejected(Rejection reason) = 0;
  virtual void OnViolation(Violation reason) = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_NET_PORT_METRICS_H_
