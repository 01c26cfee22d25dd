#include "server/config/security_warnings.h"

#include <utility>

#include "base/str_cat.h"
#include "server/net/host_port.h"
#include "server/net/unix_socket.h"

namespace lssar {
namespace {

bool IsReachable(std::string_view listen) { return !listen.empty() && !IsLoopback(listen); }

}  // namespace

bool IsLoopback(std::string_view listen) {
  if (IsUnixSocket(listen)) return true;
  const auto address = SplitHostPort(listen);
  return address && (address->host == "localhost" || address->host == "::1" ||
                     address->host.starts_with("127."));
}

std::vector<std::string> SecurityWarnings(const ServerOptions& options) {
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& flag, std::string_view problem, std::string_view fix) {
    warnings.push_back(StrCat(flag, " ", problem, "; set ", fix, ", or listen on 127.0.0.1"));
  };
  constexpr std::string_view kNoTls =
      "without TLS: traffic is unencrypted, and anyone on the network path can read it, API keys "
      "included";
  constexpr std::string_view kSetTls = "--tls-cert FILE and --tls-key FILE";
  for (const auto& [name, listen] :
       {std::pair("--listen ", options.listen), {"--http-listen ", options.http_listen}}) {
    if (!IsReachable(listen)) continue;
    const std::string flag = StrCat(name, listen);
    if (!options.tls.HasTls()) warn(flag, kNoTls, kSetTls);
    if (options.api_keys.empty() && options.tls.client_ca.empty()) {
      warn(flag, "without API keys: anyone who can reach the port can use it",
           "--api-keys FILE or --tls-client-ca FILE");
    }
  }
  return warnings;
}

}  // namespace lssar
