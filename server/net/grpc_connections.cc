#include "server/net/grpc_connections.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "server/net/channelz.h"
#include "server/net/connection_dispatcher.h"
#include "server/net/event_counts.h"
#include "server/net/traffic_watch.h"

namespace lssar {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
// Streams are counted again after this many further bytes, which can begin 17 calls at most.
constexpr int64_t kBytesPerCount = 256;
// And again, each time after twice as long: gRPC may read late what the kernel has received.
constexpr auto kLongestRecount = std::chrono::seconds(30);
// Streams without a handler, each of some 12 to 18 KB. A connection with few of them is not closed
// for those of others.
constexpr int64_t kMaxIdleStreamsPerAddress = 16384;
constexpr int64_t kFewIdleStreams = 16;
// After a violation, once gRPC has cleaned up, the freed memory goes back to the system.
constexpr auto kTrimDelay = std::chrono::seconds(2);
constexpr size_t kMaxEvents = 256;

struct Connection {
  Connection(AcceptedConnection accepted, FileDescriptor second, int max_streams)
      : socket(std::make_shared<SocketCork>(std::move(second))),
        peer(std::move(accepted.peer)),
        slot(std::move(accepted.slot)),
        watch(max_streams, Clock::now()) {}

  // Streams whose request has not arrived, and those of gRPC's health service: the other calls of
  // more than an instant share the socket.
  int64_t NumIdleStreams() const {
    return std::max<int64_t>(0, streams.NumOpen() - (socket.use_count() - 1));
  }

  // gRPC's socket, by a descriptor of our own. The connection's streaming calls share it.
  const std::shared_ptr<SocketCork> socket;
  const PeerAddress peer;
  const ConnectionSlot slot;
  std::atomic<int64_t> message_bytes = 0;
  TrafficWatch watch;
  StreamCounts streams;
  int64_t received_at_count = 0;
  Clock::duration recount_delay = {};
  Clock::time_point recount_at = Clock::time_point::max();
  std::optional<int64_t> channelz_id = {};
  int64_t channelz_after = 0;  // the id is above it
  bool is_aborted = false;
};

struct ByteCounts {
  int64_t received = 0;
  int64_t sent = 0;
};

// Nullopt: the connection has ended, or the kernel does not count (Linux before 4.19).
std::optional<ByteCounts> ReadByteCounts(int fd) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_bytes_sent) + sizeof(info.tcpi_bytes_sent)) {
    return std::nullopt;
  }
  return ByteCounts{.received = int64_t(info.tcpi_bytes_received),
                    .sent = int64_t(info.tcpi_bytes_sent)};
}

// Ends the connection with a reset and discards what has arrived. gRPC sees an error and closes its
// descriptor; shutdown() would leave it everything that has been received to read.
void Abort(int fd) {
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(fd, &nobody, sizeof(nobody)) != 0) shutdown(fd, SHUT_RDWR);
}

}  // namespace

struct GrpcConnections::State {
  explicit State(Options connection_options)
      : options(std::move(connection_options)),
        epoll(epoll_create1(EPOLL_CLOEXEC)),
        violations("connections closed", "grpc", kViolationNames) {}

  std::optional<Rejection> OnAccepted(AcceptedConnection accepted);
  void Sweep();
  void Tick();
  void CountStreams(Connection& connection);
  void CheckTraffic(Connection& connection, Clock::time_point now);
  bool IsOverUploadLimit(const Connection& connection) const;
  void LimitIdleStreams(Clock::time_point now);
  void Close(Connection& connection, Violation violation, Clock::time_point now);
  void Remove(int fd);

  Options options;
  const FileDescriptor epoll;
  EventCounts<kViolationNames.size()> violations;
  std::unordered_map<int, std::unique_ptr<Connection>> connections;  // by their second descriptor
  std::unordered_set<Connection*> uploading;                         // with unfinished requests
  std::optional<ConnectionDispatcher> dispatcher;
  int64_t last_channelz_id = 0;  // the largest that is known
  Clock::time_point trim_at = Clock::time_point::max();

  std::mutex mutex;
  std::unordered_map<std::string, Connection*> by_peer;  // under the mutex
};

std::optional<Rejection> GrpcConnections::State::OnAccepted(AcceptedConnection accepted) {
  FileDescriptor second(fcntl(accepted.socket.Get(), F_DUPFD_CLOEXEC, 0));
  epoll_event event = {};
  event.data.fd = second.Get();  // only EPOLLHUP and EPOLLERR, which are always reported
  // Without either Sweep would never learn of the connection's end.
  if (!second.IsOpen() || epoll_ctl(epoll.Get(), EPOLL_CTL_ADD, second.Get(), &event) != 0) {
    return Rejection::kNoDescriptors;
  }
  FileDescriptor first = std::move(accepted.socket);
  const int fd = second.Get();
  auto connection =
      std::make_unique<Connection>(std::move(accepted), std::move(second), options.max_streams);
  connection->channelz_after = last_channelz_id;
  {
    const std::lock_guard lock(mutex);
    by_peer[connection->peer.uri] = connection.get();
  }
  connections.emplace(fd, std::move(connection));
  dispatcher->Add(std::move(first));
  return std::nullopt;
}

// Removes the connections that have ended: gRPC has shut the socket down, or the client has reset
// it.
void GrpcConnections::State::Sweep() {
  std::array<epoll_event, kMaxEvents> events;
  while (true) {
    const int num_events = epoll_wait(epoll.Get(), events.data(), int(events.size()), 0);
    for (int i = 0; i < num_events; ++i) Remove(events.at(size_t(i)).data.fd);
    if (num_events < int(events.size())) return;
  }
}

void GrpcConnections::State::Tick() {
  Sweep();
  const Clock::time_point now = Clock::now();
  for (const auto& [fd, connection] : connections) CheckTraffic(*connection, now);
  LimitIdleStreams(now);
  if (now >= trim_at) {
    trim_at = Clock::time_point::max();
    malloc_trim(0);
  }
}

void GrpcConnections::State::CountStreams(Connection& connection) {
  if (!connection.channelz_id) {
    connection.channelz_id = FindChannelzSocket(connection.peer.uri, connection.channelz_after);
    if (!connection.channelz_id) return;
    last_channelz_id = std::max(last_channelz_id, *connection.channelz_id);
  }
  if (const auto counts = ReadStreamCounts(*connection.channelz_id)) connection.streams = *counts;
}

void GrpcConnections::State::CheckTraffic(Connection& connection, Clock::time_point now) {
  if (connection.is_aborted) return;
  const std::optional<ByteCounts> bytes = ReadByteCounts(connection.socket->Get());
  if (!bytes) return;
  if (bytes->received - connection.received_at_count >= kBytesPerCount ||
      uploading.contains(&connection)) {
    connection.received_at_count = bytes->received;
    connection.recount_delay = kInterval;
    connection.recount_at = now + kInterval;
    CountStreams(connection);
  } else if (now >= connection.recount_at) {
    connection.recount_delay *= 2;
    connection.recount_at = connection.recount_delay > kLongestRecount
                                ? Clock::time_point::max()
                                : now + connection.recount_delay;
    CountStreams(connection);
  }
  const std::optional<Violation> violation =
      connection.watch.Check({.bytes_received = bytes->received,
                              .bytes_sent = bytes->sent,
                              .message_bytes = connection.message_bytes,
                              .streams = connection.streams},
                             now);
  if (connection.watch.NumUnfinishedBytes() > 0) {
    uploading.insert(&connection);
  } else {
    uploading.erase(&connection);
  }
  if (violation) {
    Close(connection, *violation, now);
  } else if (IsOverUploadLimit(connection)) {
    Close(connection, Violation::kUploadMemory, now);
  }
}

bool GrpcConnections::State::IsOverUploadLimit(const Connection& connection) const {
  if (connection.watch.NumUnfinishedBytes() == 0 ||
      !options.acceptor->Limiter().LimitsAddresses()) {
    return false;
  }
  int64_t num_bytes = 0;
  for (const Connection* other : uploading) {
    if (!other->is_aborted && other->slot.Address() == connection.slot.Address()) {
      num_bytes += other->watch.NumUnfinishedBytes();
    }
  }
  return num_bytes > options.max_upload_bytes_per_address;
}

// An address that has too many loses the connections that are met last.
void GrpcConnections::State::LimitIdleStreams(Clock::time_point now) {
  if (!options.acceptor->Limiter().LimitsAddresses()) return;
  std::unordered_map<std::string_view, int64_t> num_by_address;
  for (const auto& [fd, connection] : connections) {
    const int64_t num_idle = connection->is_aborted ? 0 : connection->NumIdleStreams();
    if (num_idle > 0) num_by_address[connection->slot.Address()] += num_idle;
  }
  std::erase_if(num_by_address,
                [](const auto& entry) { return entry.second <= kMaxIdleStreamsPerAddress; });
  if (num_by_address.empty()) return;
  for (auto& [address, num_idle] : num_by_address) num_idle = 0;
  for (const auto& [fd, connection] : connections) {
    const auto found = num_by_address.find(connection->slot.Address());
    if (found == num_by_address.end() || connection->is_aborted) continue;
    CountStreams(*connection);  // the last count may be of streams that have ended since
    const int64_t num_idle = connection->NumIdleStreams();
    if (num_idle <= kFewIdleStreams || found->second + num_idle <= kMaxIdleStreamsPerAddress) {
      found->second += num_idle;
    } else {
      Close(*connection, Violation::kIdleStreams, now);
    }
  }
}

void GrpcConnections::State::Close(Connection& connection, Violation violation,
                                   Clock::time_point now) {
  connection.is_aborted = true;
  uploading.erase(&connection);
  // Counted before the client can know.
  if (options.metrics != nullptr) options.metrics->OnViolation(violation);
  Abort(connection.socket->Get());
  violations.Add(size_t(violation), connection.slot.Address(), options.log);
  if (violation == Violation::kResets || violation == Violation::kHeaderFlood) {
    options.acceptor->Limiter().OnViolation(connection.slot.Address(), now);
  }
  trim_at = now + kTrimDelay;
}

void GrpcConnections::State::Remove(int fd) {
  const auto found = connections.find(fd);
  if (found == connections.end()) return;
  Connection* const connection = found->second.get();
  uploading.erase(connection);
  {
    const std::lock_guard lock(mutex);
    const auto named = by_peer.find(connection->peer.uri);
    if (named != by_peer.end() && named->second == connection) by_peer.erase(named);
  }
  // A call that has not ended yet may still share the descriptor.
  epoll_ctl(epoll.Get(), EPOLL_CTL_DEL, fd, nullptr);
  connections.erase(found);
}

GrpcConnections::GrpcConnections(Options options)
    : state_(std::make_unique<State>(std::move(options))) {}

void GrpcConnections::Start() {
  State& state = *state_;
  state.dispatcher.emplace(std::move(state.options.grpc_acceptor));
  state.options.acceptor->Start({
      .on_accepted =
          [&state](AcceptedConnection accepted) { return state.OnAccepted(std::move(accepted)); },
      .before_rejection = [&state] { state.Sweep(); },
      .on_tick = [&state] { state.Tick(); },
      .interval = kInterval,
  });
}

GrpcConnections::~GrpcConnections() { state_->options.acceptor->Stop(); }

void GrpcConnections::StopAccepting() {
  state_->options.acceptor->StopAccepting();
  if (state_->dispatcher) state_->dispatcher->Close();
}

void GrpcConnections::ResetAll() {
  const std::lock_guard lock(state_->mutex);
  for (const auto& [peer, connection] : state_->by_peer) Abort(connection->socket->Get());
}

void GrpcConnections::OnMessage(const std::string& peer, size_t num_bytes) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const auto found = state.by_peer.find(peer);
  if (found != state.by_peer.end()) found->second->message_bytes += int64_t(num_bytes);
}

std::shared_ptr<SocketCork> GrpcConnections::FindSocket(const std::string& peer) const {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->by_peer.find(peer);
  return found == state_->by_peer.end() ? nullptr : found->second->socket;
}

}  // namespace lssar
