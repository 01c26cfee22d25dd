#include "server/http/http_transport.h"

#include <sys/socket.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "server/config/limits.h"
#include "server/http/body_memory.h"
#include "server/http/http_error.h"
#include "server/http/http_parser.h"
#include "server/http/socket_stream.h"
#include "server/net/acceptor.h"

namespace lssar {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;

constexpr int kNumThreads = 2;
constexpr size_t kReadBytes = 4 << 10;
constexpr size_t kBodyReadBytes = 64 << 10;
// A client may send its next requests while one is answered; beyond this the server reads on only
// after the answer.
constexpr size_t kMaxPipelinedBytes = 64 << 10;
// How much of a refused request, and how long, is read so that the client gets to see the answer:
// closing a socket with unread bytes discards what was sent.
constexpr auto kLingerTime = std::chrono::seconds(2);
constexpr size_t kMaxLingerBytes = size_t{64} << 20;
constexpr auto kFlushTime = std::chrono::milliseconds(200);

class Connection;

// What the connections of one port share.
struct ServedPort {
  ServedPort(const TransportOptions& transport_options, HttpHandler* http_handler)
      : options(transport_options),
        handler(http_handler),
        bodies(options.max_total_body_bytes, options.limits.max_connections_per_address > 0
                                                 ? options.max_total_body_bytes / 2
                                                 : 0) {}

  const TransportOptions options;
  HttpHandler* const handler;
  BodyMemory bodies;
  std::atomic<bool> is_stopping = false;

  std::mutex mutex;
  std::condition_variable emptied;
  std::unordered_set<Connection*> connections;
};

// One client. All members are used on the connection's strand. Handlers that wait own the
// connection; when none is left it is gone.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(ServedPort& port, std::unique_ptr<SocketStream> stream, std::string peer,
             ConnectionSlot slot)
      : port_(port),
        stream_(std::move(stream)),
        peer_(std::move(peer)),
        slot_(std::move(slot)),
        timer_(stream_->Socket().get_executor()) {}

  ~Connection() { FreeBody(); }

  void Start() {
    SetDeadline(port_.options.handshake_timeout);
    stream_->Handshake([self = shared_from_this()](const ErrorCode& error) {
      if (error) {
        self->Close(absl::CancelledError("the TLS handshake failed"));
      } else {
        self->NextRequest();
      }
    });
  }

  // From any thread. `now` false: an answer that has ended is written first.
  void Stop(bool now) {
    asio::post(stream_->Socket().get_executor(), [self = shared_from_this(), now] {
      self->is_stopping_ = true;
      if (now || self->exchange_ == nullptr || !self->exchange_->HasEnded()) {
        self->Close(absl::UnavailableError("the server has stopped"));
      }
    });
  }

 private:
  enum class Phase : uint8_t { kIdle, kHead, kBody, kAnswer, kLinger, kClosed };

  // Begins to wait for a request.
  void NextRequest() {
    if (is_stopping_ || port_.is_stopping) {
      Close(absl::UnavailableError("the server has stopped"));
      return;
    }
    parser_ = std::make_unique<HttpParser>(limits::kMaxMetadataBytes, limits::kMaxMessageBytes);
    phase_ = Phase::kIdle;
    SetDeadline(port_.options.idle_timeout);
    ParseOn();
  }

  // Goes through what has been read; reads on where that is not enough.
  void ParseOn() {
    while (true) {
      const HttpParser::Progress progress = parser_->Parse(&input_);
      switch (progress) {
        case HttpParser::Progress::kFailed:
          Reject(MakeError(parser_->ErrorStatus(), parser_->ErrorMessage()));
          return;
        case HttpParser::Progress::kHasHead:
          phase_ = Phase::kBody;
          parser_->Head()->has_client_certificate = stream_->HasClientCertificate();
          SetDeadline(port_.options.body_timeout);
          parser_->Head()->peer = peer_;
          if (!parser_->HasBody()) continue;
          if (auto reply = port_.handler->CheckHead(parser_->Head())) {
            Reject(*std::move(reply));
            return;
          }
          if (parser_->ExpectsContinue() && input_.empty()) {
            Continue();
            return;
          }
          continue;
        case HttpParser::Progress::kIsDone: Answer(); return;
        case HttpParser::Progress::kNeedsMore: break;
      }
      if (parser_->HasBegun() && phase_ == Phase::kIdle) {
        phase_ = Phase::kHead;
        SetDeadline(port_.options.head_timeout);
      }
      const absl::Status counted = CountBody(parser_->NumBodyBytes());
      if (!counted.ok()) {
        HttpReply reply = MakeError(absl::IsResourceExhausted(counted) ? 429 : 503,
                                    std::string(counted.message()));
        reply.headers.push_back({"Retry-After", "1"});
        Reject(std::move(reply));
        return;
      }
      Read();
      return;
    }
  }

  // This connection's share of the bodies in memory. Errors: those of BodyMemory::Add.
  absl::Status CountBody(size_t num_bytes) {
    const int64_t change = int64_t(num_bytes) - num_body_bytes_;
    num_body_bytes_ = int64_t(num_bytes);
    return port_.bodies.Add(slot_.Address(), change);
  }
  void FreeBody() { CountBody(0).IgnoreError(); }

  void Continue() {
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    output_ = kContinue;
    num_written_ = 0;
    is_writing_ = true;
    is_writing_answer_ = false;
    WriteOn();
    Read();
  }

  void Read() {
    if (is_reading_ || phase_ == Phase::kClosed) return;
    is_reading_ = true;
    const bool is_large = phase_ == Phase::kBody || phase_ == Phase::kLinger;
    const size_t num_wanted = is_large ? kBodyReadBytes : kReadBytes;
    // An idle connection holds no large buffer.
    if (read_buffer_.size() != num_wanted) read_buffer_ = std::string(num_wanted, '\0');
    stream_->ReadSome(asio::buffer(read_buffer_),
                      [self = shared_from_this()](const ErrorCode& error, size_t num_bytes) {
                        self->OnRead(error, num_bytes);
                      });
  }

  void OnRead(const ErrorCode& error, size_t num_bytes) {
    is_reading_ = false;
    if (phase_ == Phase::kClosed) return;
    if (error) {
      // A client that only listens from now on gets what there is for it.
      if (error == asio::error::eof && exchange_ != nullptr && exchange_->HasEnded()) {
        exchange_->ForbidKeepAlive();
        return;
      }
      Close(absl::CancelledError("the client has closed the connection"));
      return;
    }
    if (phase_ == Phase::kLinger) {
      num_lingered_ += num_bytes;
      if (num_lingered_ > kMaxLingerBytes) {
        Close(absl::OkStatus());
      } else {
        Read();
      }
      return;
    }
    input_.append(read_buffer_, 0, num_bytes);
    if (phase_ == Phase::kAnswer) {
      ReadWhileAnswering();
      return;
    }
    ParseOn();
  }

  std::shared_ptr<HttpExchange> MakeExchange(HttpRequest request) {
    // Weak: an engine that still refers to an answer may outlive the port.
    const std::weak_ptr<Connection> weak = weak_from_this();
    HttpExchange::Hooks hooks;
    hooks.wake = [weak] {
      const auto self = weak.lock();
      if (self == nullptr || self->is_woken_.exchange(true)) return;  // one is on its way
      asio::post(self->stream_->Socket().get_executor(), [self] {
        self->is_woken_ = false;
        self->Flush();
      });
    };
    hooks.run_later = [weak](std::chrono::milliseconds delay, std::function<void()> work) {
      const auto self = weak.lock();
      if (self == nullptr) return;
      auto timer =
          std::make_shared<asio::steady_timer>(self->stream_->Socket().get_executor(), delay);
      timer->async_wait([timer, work = std::move(work)](const ErrorCode& error) {
        if (!error) work();
      });
    };
    return std::make_shared<HttpExchange>(std::move(request), port_.options.stream,
                                          std::move(hooks));
  }

  void Answer() {
    CountBody(parser_->NumBodyBytes()).IgnoreError();  // it is here: refusing it saves nothing
    phase_ = Phase::kAnswer;
    deadline_ = Clock::time_point::max();
    exchange_ = MakeExchange(parser_->Take());
    self_ = shared_from_this();
    parser_.reset();
    if (input_.empty()) input_.shrink_to_fit();
    port_.handler->OnRequest(exchange_);
    if (phase_ == Phase::kAnswer) ReadWhileAnswering();
  }

  // So that the end of the connection is seen.
  void ReadWhileAnswering() {
    if (input_.size() < kMaxPipelinedBytes) Read();
  }

  HttpReply MakeError(int status, std::string message) {
    return port_.handler->ErrorReply(*parser_->Head(), status, std::move(message));
  }

  // Answers a request whose rest is not read as one.
  void Reject(HttpReply reply) {
    HttpRequest head = *parser_->Head();
    head.keep_alive = false;
    FreeBody();
    phase_ = Phase::kLinger;
    SetDeadline(kLingerTime);
    exchange_ = MakeExchange(std::move(head));
    self_ = shared_from_this();
    exchange_->Reply(std::move(reply));
    input_.clear();
    Read();
  }

  void Flush() {
    if (phase_ == Phase::kClosed || exchange_ == nullptr) return;
    SetAnswerDeadline();
    if (is_writing_) return;
    output_.clear();
    switch (exchange_->TakeOutput(&output_)) {
      case HttpExchange::Output::kTaken:
        num_written_ = 0;
        is_writing_ = true;
        is_writing_answer_ = true;
        WriteOn();
        break;
      case HttpExchange::Output::kNone: break;  // woken again when there is more
      case HttpExchange::Output::kEnd: EndAnswer(); break;
    }
  }

  void WriteOn() {
    stream_->WriteSome(
        asio::const_buffer(output_.data() + num_written_, output_.size() - num_written_),
        [self = shared_from_this()](const ErrorCode& error, size_t num_bytes) {
          self->OnWritten(error, num_bytes);
        });
  }

  void OnWritten(const ErrorCode& error, size_t num_bytes) {
    if (phase_ == Phase::kClosed) return;
    if (error) {
      Close(absl::CancelledError("the client has closed the connection"));
      return;
    }
    num_written_ += num_bytes;
    if (exchange_ != nullptr && is_writing_answer_) exchange_->Written(num_bytes);
    if (num_written_ < output_.size()) {
      SetAnswerDeadline();
      WriteOn();
      return;
    }
    is_writing_ = false;
    if (output_.capacity() > kBodyReadBytes) output_ = {};
    Flush();
  }

  // The answer has been written.
  void EndAnswer() {
    const bool keeps_alive = exchange_->KeepsAlive() && phase_ == Phase::kAnswer;
    FreeBody();
    std::exchange(exchange_, nullptr)->Finish(absl::OkStatus());
    const auto self = std::move(self_);
    if (keeps_alive) {
      NextRequest();
      return;
    }
    phase_ = Phase::kLinger;
    SetDeadline(kLingerTime);
    stream_->ShutdownWrite([self = shared_from_this()] {
      if (self->phase_ != Phase::kClosed) self->Read();
    });
  }

  void Close(const absl::Status& reason) {
    if (phase_ == Phase::kClosed) return;
    phase_ = Phase::kClosed;
    timer_.cancel();
    ErrorCode ignored;
    stream_->Socket().close(ignored);
    if (exchange_ == nullptr) return;
    const auto self = std::move(self_);
    const auto exchange = std::exchange(exchange_, nullptr);
    exchange->ClientGone(reason);
    exchange->Finish(reason);
  }

  // When a client that does not read loses its connection.
  void SetAnswerDeadline() {
    if (phase_ == Phase::kAnswer && exchange_ != nullptr) {
      SetDeadlineAt(exchange_->ReadDeadline().value_or(Clock::time_point::max()));
    }
  }

  void SetDeadline(std::chrono::milliseconds from_now) { SetDeadlineAt(Clock::now() + from_now); }

  // One timer is enough: it looks at the deadline in force when it fires.
  void SetDeadlineAt(Clock::time_point at) {
    deadline_ = at;
    if (timer_at_ <= deadline_) return;
    timer_at_ = deadline_;
    timer_.expires_at(deadline_);
    // Weak: a timer keeps no connection alive.
    timer_.async_wait([weak = weak_from_this()](const ErrorCode& error) {
      const auto self = weak.lock();
      if (!error && self != nullptr) self->OnTimer();
    });
  }

  void OnTimer() {
    timer_at_ = Clock::time_point::max();
    if (phase_ == Phase::kClosed || deadline_ == Clock::time_point::max()) return;
    if (deadline_ > Clock::now()) {
      SetDeadlineAt(deadline_);
      return;
    }
    switch (phase_) {
      case Phase::kHead:
      case Phase::kBody:
        Reject(MakeError(408, phase_ == Phase::kHead ? "the request's head did not come in time"
                                                     : "the request's body did not come in time"));
        return;
      case Phase::kAnswer:
        if (const absl::Status status = exchange_->CheckClient(); !status.ok()) {
          Close(status);
        } else {
          SetAnswerDeadline();
        }
        return;
      default: Close(absl::CancelledError("the connection was idle for too long"));
    }
  }

  // Its place among the port's connections. Destroyed after the members that use the port's
  // sockets and timers: the waiter destroys these as soon as it sees no connection.
  struct Registration {
    Registration(ServedPort& served_port, Connection* registered)
        : port(served_port), connection(registered) {
      const std::lock_guard lock(port.mutex);
      port.connections.insert(connection);
    }
    ~Registration() {
      // Notified under the lock: the waiter may destroy the port, too.
      const std::lock_guard lock(port.mutex);
      port.connections.erase(connection);
      port.emptied.notify_all();
    }
    Registration(const Registration&) = delete;
    Registration& operator=(const Registration&) = delete;

    ServedPort& port;
    Connection* const connection;
  };

  ServedPort& port_;
  const Registration registration_{port_, this};
  const std::unique_ptr<SocketStream> stream_;
  const std::string peer_;  // PeerAddress::uri
  const ConnectionSlot slot_;
  asio::steady_timer timer_;
  Clock::time_point deadline_ = Clock::time_point::max();
  Clock::time_point timer_at_ = Clock::time_point::max();
  Phase phase_ = Phase::kIdle;
  bool is_stopping_ = false;

  bool is_reading_ = false;
  std::string read_buffer_;
  std::string input_;  // read, not parsed yet
  std::unique_ptr<HttpParser> parser_;
  int64_t num_body_bytes_ = 0;  // counted in port_.bodies
  size_t num_lingered_ = 0;

  std::shared_ptr<HttpExchange> exchange_;
  std::shared_ptr<Connection> self_;  // set while there is an exchange: it needs the connection
  std::atomic<bool> is_woken_ = false;
  bool is_writing_ = false;
  bool is_writing_answer_ = false;  // not a 100 Continue
  std::string output_;
  size_t num_written_ = 0;
};

// The answer to a connection that is one too many.
std::string RejectionResponse(Rejection reason) {
  int status = 503;
  std::string_view message;
  switch (reason) {
    case Rejection::kMaxConnections:
      message = "the server has too many connections (--max-connections)";
      break;
    case Rejection::kMaxConnectionsPerAddress:
      status = 429;
      message = "this address has too many connections (--max-connections-per-address)";
      break;
    case Rejection::kNoDescriptors: message = "the server is out of file descriptors"; break;
    case Rejection::kBlocked: message = "this address is blocked"; break;
  }
  const HttpReply reply = ErrorReply(status, message, "too_many_connections");
  return StrCat("HTTP/1.1 ", status, " ", ReasonPhrase(status),
                "\r\nContent-Type: ", reply.content_type,
                "\r\nRetry-After: 1\r\nConnection: close\r\n\r\n", reply.body);
}

}  // namespace

struct HttpTransport::State {
  State(const TransportOptions& options, HttpHandler* handler) : shared(options, handler) {}

  std::optional<Rejection> OnAccepted(AcceptedConnection accepted);

  ServedPort shared;  // outlives the connections that the context's handlers own
  asio::io_context context{kNumThreads};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(context);
  TlsCertificates* certificates = nullptr;
  std::unique_ptr<Acceptor> acceptor;
  std::vector<std::thread> threads;
};

// The acceptor's thread.
std::optional<Rejection> HttpTransport::State::OnAccepted(AcceptedConnection accepted) {
  tcp::socket socket(asio::make_strand(context));
  ErrorCode error;
  socket.assign(accepted.family == AF_INET6 ? tcp::v6() : tcp::v4(), accepted.socket.Get(), error);
  if (error) return Rejection::kNoDescriptors;
  accepted.socket.Release();
  const std::shared_ptr<SSL_CTX> tls =
      certificates == nullptr ? nullptr : certificates->Current()->context;
  const auto executor = socket.get_executor();
  auto connection =
      std::make_shared<Connection>(shared, MakeSocketStream(std::move(socket), tls.get()),
                                   std::move(accepted.peer.uri), std::move(accepted.slot));
  asio::post(executor, [connection = std::move(connection)] { connection->Start(); });
  return std::nullopt;
}

absl::StatusOr<std::unique_ptr<HttpTransport>> HttpTransport::Open(const TransportOptions& options,
                                                                   TlsCertificates* certificates,
                                                                   HttpHandler* handler) {
  auto state = std::make_unique<State>(options, handler);
  state->certificates = certificates;
  ASSIGN_OR_RETURN(state->acceptor, Acceptor::Listen({.flag = "--http-listen",
                                                      .listen = options.listen,
                                                      .name = "http",
                                                      .limits = options.limits,
                                                      .log = options.log}));
  State* const raw = state.get();
  for (int i = 0; i < kNumThreads; ++i) {
    raw->threads.emplace_back([raw] {
      NameThisThread("http");
      raw->context.run();
    });
  }
  const auto reject = [has_tls = certificates != nullptr](int fd, Rejection reason) {
    if (has_tls) return;
    // One try that does not wait: the answer is shorter than any socket's buffer.
    const std::string reply = RejectionResponse(reason);
    if (send(fd, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
      shutdown(fd, SHUT_WR);
    }
  };
  raw->acceptor->Start(
      {.on_accepted =
           [raw](AcceptedConnection accepted) { return raw->OnAccepted(std::move(accepted)); },
       .on_rejected = reject});
  return std::unique_ptr<HttpTransport>(new HttpTransport(std::move(state)));
}

HttpTransport::HttpTransport(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpTransport::~HttpTransport() {
  State& state = *state_;
  state.shared.is_stopping = true;
  state.acceptor->Stop();
  const auto stop_all = [&state](bool now) {
    std::vector<std::shared_ptr<Connection>> connections;
    const std::lock_guard lock(state.shared.mutex);
    for (Connection* connection : state.shared.connections) {
      if (auto shared = connection->weak_from_this().lock()) connections.push_back(shared);
    }
    for (const auto& connection : connections) connection->Stop(now);
    return connections;  // released without the lock
  };
  const auto wait_until_empty = [&state](std::chrono::milliseconds limit) {
    std::unique_lock lock(state.shared.mutex);
    return state.shared.emptied.wait_for(lock, limit,
                                         [&state] { return state.shared.connections.empty(); });
  };
  stop_all(/*now=*/false);
  if (!wait_until_empty(kFlushTime)) {
    stop_all(/*now=*/true);
    wait_until_empty(std::chrono::seconds(10));
  }
  state.work.reset();
  state.context.stop();
  for (std::thread& thread : state.threads) thread.join();
}

int HttpTransport::Port() const { return state_->acceptor->Port(); }

}  // namespace lssar
