// One request of a connection and the answer to it: a whole reply, or a stream of events.
#ifndef LSSAR_SERVER_HTTP_HTTP_EXCHANGE_H_
#define LSSAR_SERVER_HTTP_HTTP_EXCHANGE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "server/api/reply_queue.h"
#include "server/http/http_message.h"

namespace lssar {

// What works for an exchange. The exchange keeps it alive until OnFinished has returned.
class ExchangeListener {
 public:
  virtual ~ExchangeListener() = default;
  // HasSpace is true again.
  virtual void OnSpace() = 0;
  // Nobody reads the answer any more: stop the work. `reason`: CANCELLED, or ABORTED where the
  // client read nothing for too long.
  virtual void OnClientGone(const absl::Status& reason) = 0;
  // Last of all calls: the answer has been written (OK), or the connection has ended before.
  virtual void OnFinished(const absl::Status& status) = 0;
};

// Producers append to a ReplyQueue and never wait; HasSpace is the queue's.
//
// Threads  any, but for the connection's part
class HttpExchange {
 public:
  struct Hooks {
    std::function<void()> wake;  // there is something to write, or the answer has ended
    std::function<void(std::chrono::milliseconds, std::function<void()>)> run_later;
  };
  HttpExchange(HttpRequest request, const StreamOptions& options, Hooks hooks)
      : request_(std::move(request)), hooks_(std::move(hooks)), queue_(options) {}

  HttpRequest& Request() { return request_; }

  // A header of the answer. Call before Reply and BeginStream.
  void AddHeader(std::string name, std::string value);

  // Calls `call` on every event from now on. False: the client has gone, or the answer has been
  // written; `call` is not called.
  bool Attach(std::shared_ptr<ExchangeListener> call);

  // The whole answer. The first Reply or BeginStream counts; later ones are ignored.
  void Reply(HttpReply reply);

  // Status 200, text/event-stream; later calls are ignored. In HTTP/1.0 the end of the connection
  // is the end of the stream.
  void BeginStream();
  // The same for a body of that many bytes, which Send takes. Afterwards the connection ends, so
  // that the client sees where the body does not come whole.
  void BeginBody(std::string_view content_type, int64_t num_bytes);
  // Bytes of the body. Ignored unless the stream is open.
  void Send(std::string_view bytes);
  // Sends a comment, which clients ignore, if `interval` has passed since the last bytes and no
  // bytes wait. Returns when to call again, from `now` on; nullopt: the stream is not open.
  std::optional<std::chrono::milliseconds> SendComment(std::chrono::milliseconds interval,
                                                       Clock::time_point now);
  void EndStream();

  bool HasStarted() const;
  // The status of the answer; 0: there is none yet.
  int SentStatus() const;
  bool HasSpace() const { return !is_paused_ && queue_.HasSpace(); }
  // Paused, the answer has no space: the engine does not work for it.
  void SetPaused(bool is_paused);

  // Runs `work` once on a thread of the connection, unless the server ends first.
  void RunLater(std::chrono::milliseconds delay, std::function<void()> work) {
    hooks_.run_later(delay, std::move(work));
  }

  // The connection's part, on its strand.

  // kNone: nothing waits, and more may follow. kEnd: nothing waits, and nothing follows. It is one
  // question: an answer that ends between two would lose its last part.
  enum class Output : uint8_t { kTaken, kNone, kEnd };
  // Moves a part of what waits to `output`, which is empty.
  Output TakeOutput(std::string* output);
  // That many of the bytes taken have been written.
  void Written(size_t num_bytes);
  // The answer is complete; it may not be written yet.
  bool HasEnded() const;
  // Whether the connection may carry another request after this answer.
  bool KeepsAlive() const { return request_.keep_alive; }
  // For an answer after which the rest of the request's bytes would be read as a request.
  void ForbidKeepAlive() { request_.keep_alive = false; }
  // As of ReplyQueue: when the client must have read something, and whether it has.
  std::optional<Clock::time_point> ReadDeadline() const;
  absl::Status CheckClient() const;
  void ClientGone(const absl::Status& reason);
  // Calls the listener's OnFinished and releases it. Call once, last.
  void Finish(const absl::Status& status);

 private:
  enum class State : uint8_t { kWaiting, kStreaming, kEnded };

  std::string Head(int status, std::string_view content_type,
                   const std::vector<HttpHeader>& headers) const;
  // Under the lock.
  void Append(std::string bytes);
  void AppendToStream(std::string_view bytes);
  // No output follows. Under the lock.
  void End();

  HttpRequest request_;
  const Hooks hooks_;

  mutable std::mutex mutex_;
  State state_ = State::kWaiting;
  int sent_status_ = 0;
  bool is_chunked_ = false;  // of the stream
  std::atomic<bool> is_paused_ = false;
  Clock::time_point sent_at_ = {};  // bytes of the stream, last
  std::vector<HttpHeader> headers_;
  ReplyQueue<std::string> queue_;  // of bytes, in blocks
  std::shared_ptr<ExchangeListener> call_;
};

// "Not Found".
std::string_view ReasonPhrase(int status);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_EXCHANGE_H_
