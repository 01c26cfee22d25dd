// Reads one HTTP/1.x request from a connection's bytes, with Boost.Beast's parser.
#ifndef LSSAR_SERVER_HTTP_HTTP_PARSER_H_
#define LSSAR_SERVER_HTTP_HTTP_PARSER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "server/http/http_message.h"

namespace lssar {

class HttpParser {
 public:
  enum class Progress : uint8_t { kNeedsMore, kHasHead, kIsDone, kFailed };

  HttpParser(int64_t max_head_bytes, int64_t max_body_bytes);
  ~HttpParser();

  // Consumes bytes from the front of `input`. kHasHead comes once, before any byte of a body is
  // consumed; call again for the body.
  Progress Parse(std::string* input);

  // True: at least one byte of the request has come.
  bool HasBegun() const;
  // Memory that the body takes so far.
  size_t NumBodyBytes() const;

  // From kHasHead on. After kFailed in a head: what has been read of it.
  HttpRequest* Head() { return &request_; }
  bool ExpectsContinue() const { return expects_continue_; }
  // At kHasHead: a body follows.
  bool HasBody() const;

  // After kIsDone: the whole request.
  HttpRequest Take();

  // After kFailed: the status of the answer, and why.
  int ErrorStatus() const { return error_status_; }
  const std::string& ErrorMessage() const { return error_message_; }

 private:
  struct State;

  Progress Fail(int status, std::string message);
  // Copies the head, as far as it has been read, to `request_`.
  void CopyHead();
  // Reads what the head says of the body. False: it is refused.
  bool ReadHead();
  // "http://HOST/PATH", which clients send to proxies: the target becomes /PATH, and HOST replaces
  // that of the header Host (RFC 9112, section 3.2.2). False: it is refused.
  bool ReadAbsoluteForm();

  const int64_t max_head_bytes_;
  size_t num_head_bytes_left_;
  const int64_t max_body_bytes_;
  std::unique_ptr<State> state_;
  HttpRequest request_;
  bool expects_continue_ = false;
  bool has_head_ = false;
  int error_status_ = 0;
  std::string error_message_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_PARSER_H_
