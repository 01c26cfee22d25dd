// Refuses what web pages of other origins make a visitor's browser send.
#ifndef LSSAR_SERVER_HTTP_CROSS_ORIGIN_H_
#define LSSAR_SERVER_HTTP_CROSS_ORIGIN_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "server/http/http_message.h"

namespace lssar {

// Checks an entry of --http-cors-origins: "*", or an origin as a browser sends it, such as
// https://chat.example.org, app://obsidian.md or chrome-extension://ID. The host may be * (any) or
// begin with *. (any name below it), and the port may be *.
// Errors  INVALID_ARGUMENT: it would match no origin; says why
absl::Status CheckListedOrigin(std::string_view entry);

// A browser lets any page send a POST to any address that its visitor reaches, 127.0.0.1 included;
// CORS hides only the answer. A page whose name its owner points to 127.0.0.1 after it was loaded
// (DNS rebinding) even reads the answer, but the browser sends that name as Host.
//
// Source  the order of the checks is that of CrossOriginProtection in Go's net/http
class CrossOriginCheck {
 public:
  // `origins`: whose pages may call; each passes CheckListedOrigin.
  // `checks_host`: Host must be an address, localhost or the name of one of `origins`.
  CrossOriginCheck(std::vector<std::string> origins, bool checks_host);

  // No origin is listed.
  bool IsEmpty() const { return origins_.empty(); }
  // Whether pages of `origin` are listed. False where it is empty.
  bool Allows(std::string_view origin) const;

  // Errors  PERMISSION_DENIED: names the header and --http-cors-origins
  absl::Status Check(const HttpRequest& head) const;

 private:
  bool IsOwnName(std::string_view host) const;

  const std::vector<std::string> origins_;
  const bool allows_all_, checks_host_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_CROSS_ORIGIN_H_
