// Runs the `lssar-server` process: load, serve, drain; exit codes.
#ifndef LSSAR_SERVER_RUN_SERVER_H_
#define LSSAR_SERVER_RUN_SERVER_H_

#include "server/config/options.h"
#include "server/server.h"

namespace lssar {

// Exit codes. 2 is a usage error.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure =
    1;  // startup failed, or calls were aborted at the end of a drain
inline constexpr int kExitEngineFailure = 3;  // the engine failed or hung; restart the server
inline constexpr int kExitDeviceLost = 4;     // the same, and the device was lost

// Serves until SIGTERM, SIGINT or SIGQUIT and returns the exit code; SIGHUP reloads keys and
// certificates. Exits the process if the engine fails or hangs. Call once, from main, before any
// thread exists.
int RunServer(const ServerOptions& options, const Server::LoadModel& load);

// Parses the command line, then serves or, with --check-health, probes the running server.
int RunServer(int argc, const char* const* argv, const Server::LoadModel& load);

}  // namespace lssar

#endif  // LSSAR_SERVER_RUN_SERVER_H_
