// The life of the `lssar-server` process: load, serve, drain, and its exit codes.
#ifndef LSSAR_SERVER_RUN_SERVER_H_
#define LSSAR_SERVER_RUN_SERVER_H_

#include "server/options.h"
#include "server/server.h"

namespace lssar {

// Exit codes; 2 is a usage error's.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;        // it could not start, or a drain had to cut calls
inline constexpr int kExitEngineFailure = 3;  // the engine died or hung: worth a restart
inline constexpr int kExitDeviceLost = 4;     // the same, and the device may need a look

// Serves until SIGTERM or SIGINT; returns the exit code. Call once, from main, before any thread
// exists. Where the engine dies or hangs, the process ends here instead.
int RunServer(const ServerOptions& options, const Server::LoadModel& load);

// Parses the command line, then does the same, or asks a running server (--check-health): all of a
// main.
int RunServer(int argc, const char* const* argv, const Server::LoadModel& load);

}  // namespace lssar

#endif  // LSSAR_SERVER_RUN_SERVER_H_
