// Startup warnings about ports that other machines can reach without TLS or authentication.
#ifndef LSSAR_SERVER_CONFIG_SECURITY_WARNINGS_H_
#define LSSAR_SERVER_CONFIG_SECURITY_WARNINGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/config/options.h"

namespace lssar {

// True if HOST:PORT is a loopback address: localhost, 127.*, [::1].
bool IsLoopback(std::string_view listen);

// One sentence for each problem, with the flags that fix it.
std::vector<std::string> SecurityWarnings(const ServerOptions& options);

}  // namespace lssar

#endif  // LSSAR_SERVER_CONFIG_SECURITY_WARNINGS_H_
