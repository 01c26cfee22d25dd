#include "server/http/cross_origin.h"

#include <arpa/inet.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/ascii.h"
#include "base/quote.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

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

// Views into an origin or an entry of the list.
struct OriginParts {
  std::string_view scheme, host;
  std::string_view port;  // empty: none, or the scheme's own, which browsers leave out
};
OriginParts Split(std::string_view origin) {
  const std::string_view host_and_port = HostOf(origin), host = WithoutPort(host_and_port);
  OriginParts parts{.scheme = origin.substr(0, origin.find("://")), .host = host, .port = {}};
  if (host.size() < host_and_port.size()) parts.port = host_and_port.substr(host.size() + 1);
  const bool is_own = (EqualsIgnoreCase(parts.scheme, "http") && parts.port == "80") ||
                      (EqualsIgnoreCase(parts.scheme, "https") && parts.port == "443");
  if (is_own) parts.port = {};
  return parts;
}

constexpr std::string_view kBelow = "*.";

// `listed`: a host of the list. "*.example.org" matches a.example.org and b.a.example.org.
bool MatchesHost(std::string_view listed, std::string_view host) {
  if (listed == "*") return !host.empty();
  if (!listed.starts_with(kBelow)) return EqualsIgnoreCase(listed, host);
  const std::string_view end = listed.substr(1);
  return host.size() > end.size() && EqualsIgnoreCase(host.substr(host.size() - end.size()), end);
}

bool MatchesOrigin(std::string_view listed, std::string_view origin) {
  if (origin.find("://") == origin.npos) return false;  // null
  const OriginParts a = Split(listed), b = Split(origin);
  return EqualsIgnoreCase(a.scheme, b.scheme) && MatchesHost(a.host, b.host) &&
         (a.port == "*" || a.port == b.port);
}

bool IsScheme(std::string_view text) {
  return !text.empty() && absl::ascii_isalpha(uint8_t(text.front())) &&
         std::ranges::all_of(text, [](unsigned char c) {
           return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.';
         });
}

// A name or an address; IPv6 in brackets.
bool IsHost(std::string_view text) {
  if (text.starts_with('[')) return IsAddress(text);
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '.' || c == '_';
  });
}

// ":8080"
bool IsPort(std::string_view text) {
  if (!text.starts_with(':') || text.size() > 6) return false;
  int port = -1;
  for (const unsigned char c : text.substr(1)) {
    if (!absl::ascii_isdigit(c)) return false;
    port = std::max(port, 0) * 10 + (c - '0');
  }
  return port >= 0 && port <= 65535;
}

}  // namespace

absl::Status CheckListedOrigin(std::string_view entry) {
  if (entry == "*") return absl::OkStatus();
  const auto error = [entry](std::string_view problem) {
    return absl::InvalidArgumentError(StrCat(Quote(entry), " ", problem));
  };
  const std::string_view host_and_port = HostOf(entry);
  if (!IsScheme(entry.substr(0, entry.find("://"))) || host_and_port.empty()) {
    return error("is no origin such as https://chat.example.org or app://obsidian.md");
  }
  if (host_and_port.find_first_of("/?#@") != entry.npos) {
    return error("has more than SCHEME://HOST:PORT, which is all that a browser sends");
  }
  std::string_view host = WithoutPort(host_and_port);
  const std::string_view port = host_and_port.substr(host.size());  // with its colon
  const bool is_any = host == "*";
  if (host.starts_with(kBelow)) host.remove_prefix(kBelow.size());
  if (!is_any && !IsHost(host)) {
    return error(
        "has no host of ASCII letters, digits, dots and hyphens (xn--... of other letters), with "
        "* in its place or *. before it");
  }
  if (!port.empty() && port != ":*" && !IsPort(port)) {
    return error("has a port that is neither a number in [0, 65535] nor *");
  }
  return absl::OkStatus();
}

CrossOriginCheck::CrossOriginCheck(std::vector<std::string> origins, bool checks_host)
    : origins_(std::move(origins)),
      allows_all_(std::ranges::find(origins_, "*") != origins_.end()),
      checks_host_(checks_host) {}

bool CrossOriginCheck::Allows(std::string_view origin) const {
  if (origin.empty() || allows_all_) return !origin.empty();
  return std::ranges::any_of(
      origins_, [origin](const std::string& listed) { return MatchesOrigin(listed, origin); });
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
                               ? origin.empty() || (!own.empty() && EqualsIgnoreCase(own, host))
                               : site == "same-origin" || site == "none";
  if (is_own_page || Allows(origin)) return absl::OkStatus();
  return absl::PermissionDeniedError(StrCat("Origin ", Shorten(origin, kMaxQuotedBytes),
                                            ": its pages may not call this server; "
                                            "--http-cors-origins lists those that may"));
}

bool CrossOriginCheck::IsOwnName(std::string_view host) const {
  // Also lssar.localhost.
  if (IsAddress(host) || EqualsIgnoreCase(host.substr(host.rfind('.') + 1), "localhost")) {
    return true;
  }
  return std::ranges::any_of(origins_, [host](const std::string& origin) {
    const std::string_view listed = WithoutPort(HostOf(origin));
    return listed != "*" && MatchesHost(listed, host);
  });
}

}  // namespace lssar
