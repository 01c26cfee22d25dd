#include "server/security_warnings.h"

#include "kernels/str_cat.h"

namespace lssar {

namespace {

bool IsOpen(std::string_view listen) { return !listen.empty() && !IsLoopback(listen); }

}  // namespace

bool IsLoopback(std::string_view listen) {
  const std::string_view host = listen.substr(0, listen.rfind(':'));
  return host == "localhost" || host == "[::1]" || host.starts_with("127.");
}

std::vector<std::string> FindExposures(const ServerOptions& options) {
  std::vector<std::string> exposures;
  const auto add = [&](const std::string& flag, std::string_view what) {
    exposures.push_back(StrCat(flag, " without ", std::string(what), ", or listen on 127.0.0.1"));
  };
  constexpr std::string_view kNoTls =
      "TLS: whoever is on the way reads what is sent, keys too; set --tls-cert FILE and --tls-key "
      "FILE";
  if (IsOpen(options.listen)) {
    const std::string flag = StrCat("--listen ", options.listen);
    if (!options.tls.HasTls()) add(flag, kNoTls);
    if (options.api_keys.empty() && options.tls.client_ca.empty()) {
      add(flag,
          "keys: whoever reaches the port may call; set --api-keys FILE, or --tls-client-ca FILE");
    }
  }
  if (IsOpen(options.http_listen)) {
    const std::string flag = StrCat("--http-listen ", options.http_listen);
    if (!options.tls.HasTls()) add(flag, kNoTls);
    if (options.api_keys.empty()) {
      add(flag, "keys: whoever reaches the port reads /metrics; set --api-keys FILE");
    }
  }
  return exposures;
}

}  // namespace lssar
