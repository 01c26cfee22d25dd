#include "server/net/host_port.h"

#include <charconv>
#include <system_error>

#include "base/str_cat.h"

namespace lssar {

std::string HostPort::Text() const {
  return host.find(':') == host.npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
}

std::optional<HostPort> SplitHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos) return std::nullopt;
  std::string_view host = text.substr(0, colon);
  const bool is_in_brackets = host.starts_with('[') && host.ends_with(']');
  if (is_in_brackets) host = host.substr(1, host.size() - 2);
  const std::string_view port = text.substr(colon + 1);
  HostPort address{.host = std::string(host)};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  const bool is_host = !host.empty() && host.find_first_of("[]") == host.npos &&
                       (host.find(':') != host.npos) == is_in_brackets;
  if (!is_host || error != std::errc() || end != port.data() + port.size() || address.port < 0 ||
      address.port > 65535) {
    return std::nullopt;
  }
  return address;
}

}  // namespace lssar
