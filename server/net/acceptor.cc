#include "server/net/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "server/net/event_counts.h"
#include "server/net/host_port.h"

namespace lssar {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

// Accepted in a row before the timers get their turn.
constexpr int kMaxBatch = 64;
constexpr auto kPause = std::chrono::milliseconds(100);

int AcceptFrom(tcp::acceptor& listener, sockaddr_storage* address) {
  socklen_t size = sizeof(*address);
  return accept4(listener.native_handle(), reinterpret_cast<sockaddr*>(address), &size,
                 SOCK_NONBLOCK | SOCK_CLOEXEC);
}

int OpenSpare() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

bool IsOutOfDescriptors(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace

struct Acceptor::State {
  explicit State(const AcceptorOptions& acceptor_options)
      : options(acceptor_options),
        limiter(std::make_shared<ConnectionLimiter>(options.limits)),
        rejections("connections refused", options.name, kRejectionNames) {}

  absl::Status Open();
  ErrorCode OpenListener(const tcp::endpoint& endpoint);
  void Wait(tcp::acceptor& listener);
  void AcceptBatch(tcp::acceptor& listener);
  void OnAccepted(int fd, const sockaddr_storage& address);
  void CountRejection(const PeerAddress& peer, Rejection reason);
  void RejectWithoutDescriptors(tcp::acceptor& listener);
  void Pause(tcp::acceptor& listener);
  void Tick();

  const AcceptorOptions options;
  const std::shared_ptr<ConnectionLimiter> limiter;
  EventCounts<kRejectionNames.size()> rejections;
  Callbacks callbacks;
  asio::io_context context{1};
  std::vector<tcp::acceptor> listeners;
  bool is_accepting = true;  // on the thread, once it runs
  std::optional<asio::steady_timer> tick;
  FileDescriptor spare{OpenSpare()};
  int port = 0;
  std::thread thread;
};

ErrorCode Acceptor::State::OpenListener(const tcp::endpoint& endpoint) {
  ErrorCode error;
  tcp::acceptor listener(context);
  listener.open(endpoint.protocol(), error);
  // No SO_REUSEPORT: a second server would share the port silently.
  if (!error) listener.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error && endpoint.address().is_v6()) {
    ErrorCode ignored;  // "[::]" takes IPv4 as well
    listener.set_option(asio::ip::v6_only(false), ignored);
  }
  if (!error) listener.bind(endpoint, error);
  if (!error) listener.listen(asio::socket_base::max_listen_connections, error);
  if (!error) listener.non_blocking(true, error);
  if (!error && port == 0) port = listener.local_endpoint(error).port();
  if (!error) listeners.push_back(std::move(listener));
  return error;
}

absl::Status Acceptor::State::Open() {
  const auto address = SplitHostPort(options.listen);
  if (!address) {
    return absl::InvalidArgumentError(
        StrCat(options.flag, " ", options.listen, " is not HOST:PORT"));
  }
  ErrorCode error;
  const auto found = tcp::resolver(context).resolve(
      address->host, StrCat(address->port), tcp::resolver::passive | tcp::resolver::numeric_service,
      error);
  if (!error && found.empty()) error = asio::error::host_not_found;
  std::optional<ErrorCode> first_error;
  for (const auto& entry : found) {
    tcp::endpoint endpoint = entry.endpoint();
    if (endpoint.port() == 0) endpoint.port(static_cast<uint16_t>(port));
    const ErrorCode failed = OpenListener(endpoint);
    // A name may stand for addresses of families that this machine lacks; a port that is in use
    // is an error all the same.
    if (failed && (!first_error || failed == asio::error::address_in_use)) first_error = failed;
  }
  if (!error && first_error && (listeners.empty() || *first_error == asio::error::address_in_use)) {
    error = *first_error;
  }
  if (!error) return absl::OkStatus();
  const std::string reason = error == asio::error::address_in_use ? "the port is in use"
                             : error == boost::system::errc::address_not_available
                                 ? "the address does not belong to this machine"
                                 : error.message();
  return absl::UnavailableError(StrCat(options.flag, " ", options.listen, ": ", reason, "; set ",
                                       options.flag,
                                       " to another HOST:PORT, or to port 0 for any free port"));
}

void Acceptor::State::Wait(tcp::acceptor& listener) {
  if (!is_accepting) return;
  listener.async_wait(tcp::acceptor::wait_read, [this, &listener](const ErrorCode& error) {
    if (error == asio::error::operation_aborted || !is_accepting) return;
    AcceptBatch(listener);
  });
}

void Acceptor::State::AcceptBatch(tcp::acceptor& listener) {
  for (int i = 0; i < kMaxBatch; ++i) {
    sockaddr_storage address = {};
    const int fd = AcceptFrom(listener, &address);
    if (fd >= 0) {
      OnAccepted(fd, address);
      continue;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    if (IsOutOfDescriptors(errno)) {
      RejectWithoutDescriptors(listener);
      Pause(listener);
      return;
    }
    // Errors of the one connection, such as ECONNABORTED: the next may be fine.
  }
  Wait(listener);
}

void Acceptor::State::OnAccepted(int fd, const sockaddr_storage& address) {
  FileDescriptor socket(fd);
  const PeerAddress peer = ToPeerAddress(address);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  std::optional<Rejection> rejection = limiter->Check(peer.limited, Clock::now());
  if (rejection && *rejection != Rejection::kBlocked && callbacks.before_rejection) {
    callbacks.before_rejection();
    rejection = limiter->Check(peer.limited, Clock::now());
  }
  if (rejection) {
    if (callbacks.on_rejected) callbacks.on_rejected(fd, *rejection);
  } else {
    rejection = callbacks.on_accepted({.socket = std::move(socket),
                                       .family = address.ss_family,
                                       .peer = peer,
                                       .slot = limiter->Add(peer.limited)});
  }
  if (rejection) CountRejection(peer, *rejection);
}

void Acceptor::State::CountRejection(const PeerAddress& peer, Rejection reason) {
  if (options.limits.metrics != nullptr) options.limits.metrics->OnRejected(reason);
  rejections.Add(size_t(reason), peer.limited, options.log);
}

// Otherwise those connections would stay in the kernel's queue, and their clients would wait.
void Acceptor::State::RejectWithoutDescriptors(tcp::acceptor& listener) {
  spare.Reset();
  for (int i = 0; i < kMaxBatch; ++i) {
    sockaddr_storage address = {};
    const FileDescriptor socket(AcceptFrom(listener, &address));
    if (!socket.IsOpen()) break;
    if (callbacks.on_rejected) callbacks.on_rejected(socket.Get(), Rejection::kNoDescriptors);
    CountRejection(ToPeerAddress(address), Rejection::kNoDescriptors);
  }
  spare.Reset(OpenSpare());
}

void Acceptor::State::Pause(tcp::acceptor& listener) {
  const auto timer = std::make_shared<asio::steady_timer>(context, kPause);
  timer->async_wait([this, timer, &listener](const ErrorCode& error) {
    if (!error) Wait(listener);
  });
}

void Acceptor::State::Tick() {
  tick->expires_after(callbacks.interval);
  tick->async_wait([this](const ErrorCode& error) {
    if (error) return;
    callbacks.on_tick();
    Tick();
  });
}

absl::StatusOr<std::unique_ptr<Acceptor>> Acceptor::Listen(const AcceptorOptions& options) {
  auto state = std::make_unique<State>(options);
  RETURN_IF_ERROR(state->Open());
  return std::unique_ptr<Acceptor>(new Acceptor(std::move(state)));
}

Acceptor::Acceptor(std::unique_ptr<State> state) : state_(std::move(state)) {}

Acceptor::~Acceptor() { Stop(); }

void Acceptor::Start(Callbacks callbacks) {
  State& state = *state_;
  state.callbacks = std::move(callbacks);
  for (tcp::acceptor& listener : state.listeners) state.Wait(listener);
  if (state.callbacks.on_tick) {
    state.tick.emplace(state.context);
    state.Tick();
  }
  state.thread = std::thread([&state] {
    NameThisThread("acceptor");
    state.context.run();
  });
}

void Acceptor::StopAccepting() {
  State& state = *state_;
  if (!state.thread.joinable()) {
    state.listeners.clear();
    return;
  }
  std::promise<void> is_done;
  asio::post(state.context, [&] {
    state.is_accepting = false;
    for (tcp::acceptor& listener : state.listeners) {
      ErrorCode ignored;
      listener.close(ignored);
    }
    is_done.set_value();
  });
  is_done.get_future().wait();
}

void Acceptor::Stop() {
  State& state = *state_;
  state.context.stop();
  if (state.thread.joinable()) state.thread.join();
  state.listeners.clear();
}

int Acceptor::Port() const { return state_->port; }

ConnectionLimiter& Acceptor::Limiter() const { return *state_->limiter; }

}  // namespace lssar
