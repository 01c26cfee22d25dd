#include "server/http/http_exchange.h"

#include <charconv>
#include <ctime>
#include <utility>

#include "base/str_cat.h"

namespace lssar {
namespace {

// Bytes are appended to the block before up to this size. A body of more bytes is not copied.
constexpr size_t kBlockBytes = size_t{64} << 10;

// RFC 9110's form: "Sun, 06 Nov 1994 08:49:37 GMT".
std::string DateNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts = {};
  gmtime_r(&now, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof(text), "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

void AppendHexadecimal(std::string& text, size_t number) {
  char digits[16];
  text.append(digits, std::to_chars(digits, digits + sizeof(digits), number, 16).ptr);
}

}  // namespace

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 307: return "Temporary Redirect";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 499: return "Client Closed Request";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    case 505: return "HTTP Version Not Supported";
    default: return "Unknown";
  }
}

void HttpExchange::AddHeader(std::string name, std::string value) {
  const std::lock_guard lock(mutex_);
  headers_.push_back({.name = std::move(name), .value = std::move(value)});
}

bool HttpExchange::Attach(std::shared_ptr<ExchangeListener> call) {
  const std::lock_guard lock(mutex_);
  if (!queue_.IsClosed()) call_ = std::move(call);
  return !queue_.IsClosed();
}

std::string HttpExchange::Head(int status, std::string_view content_type,
                               const std::vector<HttpHeader>& headers) const {
  std::string head = StrCat("HTTP/1.1 ", status, " ", ReasonPhrase(status), "\r\nDate: ", DateNow(),
                            "\r\nServer: lssar\r\n");
  if (!content_type.empty()) head += StrCat("Content-Type: ", content_type, "\r\n");
  for (const auto* list : {&headers_, &headers}) {
    for (const HttpHeader& header : *list) head += StrCat(header.name, ": ", header.value, "\r\n");
  }
  head += request_.keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
  return head;
}

void HttpExchange::Append(std::string bytes) {
  const int64_t num_bytes = std::ssize(bytes);
  queue_.Push(std::move(bytes), num_bytes,
              [](auto& blocks, const std::string& more) -> ReplyQueue<std::string>::Entry* {
                if (blocks.empty() || blocks.back().reply.size() + more.size() > kBlockBytes) {
                  return nullptr;
                }
                blocks.back().reply += more;
                return &blocks.back();
              });
}

void HttpExchange::AppendToStream(std::string_view bytes) {
  if (!is_chunked_) {
    Append(std::string(bytes));
    return;
  }
  std::string chunk;
  chunk.reserve(bytes.size() + 16);
  AppendHexadecimal(chunk, bytes.size());
  chunk += "\r\n";
  chunk += bytes;
  chunk += "\r\n";
  Append(std::move(chunk));
}

void HttpExchange::End() {
  state_ = State::kEnded;
  queue_.End(absl::OkStatus());
}

void HttpExchange::Reply(HttpReply reply) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kWaiting) return;
    sent_status_ = reply.status;
    std::string head =
        Head(reply.status, reply.body.empty() ? "" : reply.content_type, reply.headers);
    if (reply.status != 204) head += StrCat("Content-Length: ", reply.body.size(), "\r\n");
    Append(head + "\r\n");
    if (request_.method != "HEAD") Append(std::move(reply.body));
    End();
  }
  hooks_.wake();
}

void HttpExchange::BeginStream() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kWaiting) return;
    state_ = State::kStreaming;
    sent_status_ = 200;
    sent_at_ = Clock::now();
    is_chunked_ = !request_.is_http_1_0;
    if (!is_chunked_) request_.keep_alive = false;
    // X-Accel-Buffering: nginx would keep events back until its buffer is full.
    Append(Head(200, "text/event-stream; charset=utf-8",
                {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}) +
           (is_chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
  }
  hooks_.wake();
}

void HttpExchange::BeginBody(std::string_view content_type, int64_t num_bytes) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kWaiting) return;
    state_ = State::kStreaming;
    sent_status_ = 200;
    sent_at_ = Clock::now();
    request_.keep_alive = false;
    Append(StrCat(Head(200, content_type, {}), "Content-Length: ", num_bytes, "\r\n\r\n"));
    if (request_.method == "HEAD") End();
  }
  hooks_.wake();
}

void HttpExchange::Send(std::string_view bytes) {
  if (bytes.empty()) return;  // an empty chunk would end the body
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming) return;
    AppendToStream(bytes);
    sent_at_ = Clock::now();
  }
  hooks_.wake();
}

std::optional<std::chrono::milliseconds> HttpExchange::SendComment(
    std::chrono::milliseconds interval, Clock::time_point now) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming || queue_.IsClosed()) return std::nullopt;
    if (now - sent_at_ < interval) {
      return std::chrono::ceil<std::chrono::milliseconds>(sent_at_ + interval - now);
    }
    // Where bytes wait, it is the client that does not read.
    if (queue_.NumBytes() > 0) return interval;
    AppendToStream(": nothing yet\n\n");
    sent_at_ = now;
  }
  hooks_.wake();
  return interval;
}

void HttpExchange::SetPaused(bool is_paused) {
  if (is_paused_.exchange(is_paused) == is_paused || is_paused) return;
  std::shared_ptr<ExchangeListener> call;
  {
    const std::lock_guard lock(mutex_);
    call = call_;
  }
  if (call != nullptr) call->OnSpace();
}

void HttpExchange::EndStream() {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStreaming) return;
    if (is_chunked_) Append("0\r\n\r\n");
    End();
  }
  hooks_.wake();
}

bool HttpExchange::HasStarted() const {
  const std::lock_guard lock(mutex_);
  return state_ != State::kWaiting;
}

int HttpExchange::SentStatus() const {
  const std::lock_guard lock(mutex_);
  return sent_status_;
}

HttpExchange::Output HttpExchange::TakeOutput(std::string* output) {
  const std::lock_guard lock(mutex_);
  auto block = queue_.Take();
  if (!block) return state_ == State::kEnded ? Output::kEnd : Output::kNone;
  *output = std::move(block->reply);
  return Output::kTaken;
}

void HttpExchange::Written(size_t num_bytes) {
  std::shared_ptr<ExchangeListener> call;
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.Written(int64_t(num_bytes))) return;
    call = call_;
  }
  if (call != nullptr) call->OnSpace();
}

std::optional<Clock::time_point> HttpExchange::ReadDeadline() const {
  const std::lock_guard lock(mutex_);
  return queue_.Deadline();
}

absl::Status HttpExchange::CheckClient() const {
  const std::lock_guard lock(mutex_);
  return queue_.CheckClient();
}

bool HttpExchange::HasEnded() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::kEnded;
}

void HttpExchange::ClientGone(const absl::Status& reason) {
  std::shared_ptr<ExchangeListener> call;
  {
    const std::lock_guard lock(mutex_);
    if (queue_.IsClosed()) return;
    queue_.Close();
    call = call_;
  }
  if (call != nullptr) call->OnClientGone(reason);
}

void HttpExchange::Finish(const absl::Status& status) {
  std::shared_ptr<ExchangeListener> call;
  {
    const std::lock_guard lock(mutex_);
    queue_.Close();
    call = std::exchange(call_, nullptr);
  }
  if (call != nullptr) call->OnFinished(status);
}

}  // namespace lssar
