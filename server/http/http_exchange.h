// One request of a connection and the answer to it: a whole reply, or a stream of events.
#ifndef LSSAR_SERVER_HTTP_HTTP_EXCHANGE_H_
#define LSSAR_SERVER_HTTP_HTTP_EXCHANGE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/http/http_message.h"

namespace lssar {

// What works for an exchange. The exchange keeps it alive until OnFinished has returned.
class HttpCall {
 public:
  virtual ~HttpCall() = default;
  // HasSpace is true again.
  virtual void OnSpace() = 0;
  // Nobody reads the answer any more: stop the work. `reason`: CANCELLED, or ABORTED where the
  // client read nothing for too long.
  virtual void OnClientGone(const absl::Status& reason) = 0;
  // Last of all calls: the answer has been written (OK), or the connection has ended before.
  virtual void OnFinished(const absl::Status& status) = 0;
};

// Producers append and never wait. More than `buffer_bytes` unread bytes turn HasSpace false until
// half of them are written; a producer that heeds it adds no more than one engine step's output.
//
// Threads  any, but for the connection's part
class HttpExchange {
 public:
  struct Hooks {
    std::function<void()> wake;  // there is something to write, or the answer has ended
    std::function<void(std::chrono::milliseconds, std::function<void()>)> run_later;
  };
  HttpExchange(HttpRequest request, int64_t buffer_bytes, Hooks hooks)
      : request_(std::move(request)), buffer_bytes_(buffer_bytes), hooks_(std::move(hooks)) {}

  HttpRequest& Request() { return request_; }

  // Goes out with whatever answer follows.
  void AddHeader(std::string name, std::string value);

  // `call` hears of the exchange from now on. False: the client has gone, or the answer has been
  // written; `call` hears nothing.
  bool Attach(std::shared_ptr<HttpCall> call);

  // The whole answer. The first Reply or BeginStream counts; later ones are ignored.
  void Reply(HttpReply reply);

  // Status 200, text/event-stream. Requires  not HTTP/1.0, whose answers have no end mark
  void BeginStream();
  // Bytes of the body. Ignored unless the stream is open.
  void Send(std::string_view bytes);
  void EndStream();

  bool HasStarted() const;
  bool HasSpace() const { return has_space_.load(std::memory_order_relaxed); }

  // Runs `work` once on a thread of the connection, unless the server ends first.
  void RunLater(std::chrono::milliseconds delay, std::function<void()> work) {
    hooks_.run_later(delay, std::move(work));
  }

  // The connection's part, on its strand.

  // Moves a part of what waits to `output`, which is empty. False: nothing waits.
  bool TakeOutput(std::string* output);
  // That many of the bytes taken have been written.
  void Written(size_t num_bytes);
  bool HasOutput() const;
  // The answer is complete: all of it was written, where HasOutput is false.
  bool HasEnded() const;
  // Whether the connection may carry another request after this answer.
  bool KeepsAlive() const { return request_.keep_alive; }
  // For an answer after which the rest of the request's bytes would be read as a request.
  void ForbidKeepAlive() { request_.keep_alive = false; }
  void ClientGone(const absl::Status& reason);
  // Lets the call go. Call once, last.
  void Finish(const absl::Status& status);

 private:
  enum class State : uint8_t { kWaiting, kStreaming, kEnded };

  std::string Head(int status, std::string_view content_type,
                   const std::vector<HttpHeader>& headers) const;
  // Under the lock.
  void Append(std::string_view bytes);

  HttpRequest request_;
  const int64_t buffer_bytes_;
  const Hooks hooks_;
  std::atomic<bool> has_space_ = true;  // written under the lock

  mutable std::mutex mutex_;
  State state_ = State::kWaiting;
  bool has_client_gone_ = false;
  std::vector<HttpHeader> headers_;
  std::string output_, large_body_;  // written in this order
  int64_t num_buffered_ = 0;         // of both, and of what was taken but is not written yet
  std::shared_ptr<HttpCall> call_;
};

// "Not Found".
std::string_view ReasonPhrase(int status);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_EXCHANGE_H_
