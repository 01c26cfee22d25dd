#include "server/exposure.h"

#include "absl/strings/str_cat.h"

namespace lssar {

bool IsLoopback(std::string_view listen) {
  const std::string_view host = listen.substr(0, listen.rfind(':'));
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

std::vector<std::string> FindExposures(const ServerOptions& options) {
  std::vector<std::string> exposures;
  if (!options.listen.empty() && !IsLoopback(options.listen)) {
    const std::string flag = absl::StrCat("--listen ", options.listen);
    if (!options.tls.HasTls()) {
      exposures.push_back(absl::StrCat(
          flag,
          " without TLS: whoever is on the way reads what is sent, keys too; set --tls-cert "
          "FILE and --tls-key FILE, or listen on 127.0.0.1"));
    }
    if (options.api_keys.empty() && options.tls.client_ca.empty()) {
      exposures.push_back(
          absl::StrCat(flag,
                       " without keys: whoever reaches the port may call; set --api-keys FILE, or "
                       "--tls-client-ca FILE, or listen on 127.0.0.1"));
    }
  }
  if (!options.http_listen.empty() && !IsLoopback(options.http_listen) &&
      options.api_keys.empty()) {
    exposures.push_back(absl::StrCat("--http-listen ", options.http_listen,
                                     " without keys: whoever reaches the port reads /metrics; set "
                                     "--api-keys FILE, or listen on 127.0.0.1"));
  }
  return exposures;
}

}  // namespace lssar
