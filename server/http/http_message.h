// An HTTP request and its answer.
#ifndef LSSAR_SERVER_HTTP_HTTP_MESSAGE_H_
#define LSSAR_SERVER_HTTP_HTTP_MESSAGE_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/auth/access_control.h"

namespace lssar {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // "GET"
  std::string target;  // "/v1/models?limit=3"
  bool is_http_1_0 = false;
  bool keep_alive = false;              // the client wants another request on this connection
  std::vector<HttpHeader> headers;      // names in lower case
  std::string body;                     // without chunk framing
  bool has_client_certificate = false;  // of the connection's TLS
  // Set by HttpHandler::CheckHead, for OnRequest: the head has been checked; who sends it.
  bool is_checked = false;
  std::string peer = {};  // the connection's client, PeerAddress::uri
  std::optional<Caller> caller = {};
  bool is_batch_row = false;  // comes from a batch, not from a connection

  // The target up to its query.
  std::string_view Path() const { return std::string_view(target).substr(0, target.find('?')); }
  // The first value of `name`, which is in lower case; empty: there is none.
  std::string_view Header(std::string_view name) const {
    for (const HttpHeader& header : headers) {
      if (header.name == name) return header.value;
    }
    return {};
  }
  // All values of `name`, with commas between them.
  std::string Headers(std::string_view name) const {
    std::string values;
    for (const HttpHeader& header : headers) {
      if (header.name != name) continue;
      if (!values.empty()) values += ',';
      values += header.value;
    }
    return values;
  }
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers = {};
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_MESSAGE_H_
