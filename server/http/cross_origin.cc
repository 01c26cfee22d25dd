#include "server/http/cross_origin.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/quote.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

bool AreEqualIgnoringCase(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, {}, absl::ascii_tolower, absl::ascii_tolower);
}

// "[::1]:8080" -> "[::1]", "localhost:8080" -> "localhost"
std::string_view WithoutPort(std::string_view host) {
  if (host.starts_with('[')) return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool IsAddress(std::string_view name) {
  in6_addr address;
  if (!name.starts_with('[')) return inet_pton(AF_INET, std::string(name).c_str(), &address) == 1;
  if (!name.ends_with(']')) return false;
  return inet_pton(AF_INET6, std::string(name.substr(1, name.size() - 2)).c_str(), &address) == 1;
}

// "https://chat.example.org:8443" -> "chat.example.org:8443". "null" has none.
std::string_view HostOf(std::string_view origin) {
  const size_t scheme = origin.find("://");
  return scheme == origin.npos ? std::string_view() : origin.substr(scheme + 3);
}

}  // namespace

CrossOriginCheck::CrossOriginCheck(std::vector<std::string> origins, bool checks_host)
    : origins_(std::move(origins)),
      allows_all_(std::ranges::find(origins_, "*") != origins_.end()),
      checks_host_(checks_host) {}

bool CrossOriginCheck::Allows(std::string_view origin) const {
  return !origin.empty() && (allows_all_ || std::ranges::find(origins_, origin) != origins_.end());
}

absl::Status CrossOriginCheck::Check(const HttpRequest& head) const {
  if (allows_all_) return absl::OkStatus();
  const std::string_view host = head.Header("host"), origin = head.Header("origin");
  if (checks_host_ && !host.empty() && !IsOwnName(WithoutPort(host))) {
    return absl::PermissionDeniedError(StrCat(
        "Host ", Shorten(host, kMaxQuotedBytes),
        ": only this machine reaches the port, and it asks for no key, so it answers to "
        "addresses and localhost; add http://NAME to --http-cors-origins, set --api-keys, or "
        "behind a proxy --max-connections-per-address 0"));
  }
  // Without an effect. The browser keeps the answer from the page.
  if (head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS") {
    return absl::OkStatus();
  }
  // Browsers send Sec-Fetch-Site to https and to this machine. A proxy may have changed Host.
  const std::string_view site = head.Header("sec-fetch-site"), own = HostOf(origin);
  const bool is_own_page = site.empty()
                               ? origin.empty() || (!own.empty() && AreEqualIgnoringCase(own, host))
                               : site == "same-origin" || site == "none";
  if (is_own_page || Allows(origin)) return absl::OkStatus();
  return absl::PermissionDeniedError(StrCat("Origin ", Shorten(origin, kMaxQuotedBytes),
                                            ": its pages may not call this server; "
                                            "--http-cors-origins lists those that may"));
}

bool CrossOriginCheck::IsOwnName(std::string_view host) const {
  // Also lssar.localhost.
  if (IsAddress(host) || AreEqualIgnoringCase(host.substr(host.rfind('.') + 1), "localhost")) {
    return true;
  }
  return std::ranges::any_of(origins_, [host](const std::string& origin) {
    return AreEqualIgnoringCase(WithoutPort(HostOf(origin)), host);
  });
}

}  // namespace lssar
