// What the server opens to other machines without protection.
#ifndef LSSAR_SERVER_SECURITY_WARNINGS_H_
#define LSSAR_SERVER_SECURITY_WARNINGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "server/options.h"

namespace lssar {

// HOST:PORT whose host is this machine's loopback: localhost, 127.*, [::1].
bool IsLoopback(std::string_view listen);

// A sentence for each thing that lies open, with the flags that close it.
std::vector<std::string> FindExposures(const ServerOptions& options);

}  // namespace lssar

#endif  // LSSAR_SERVER_SECURITY_WARNINGS_H_
