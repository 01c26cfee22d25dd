// How long a server that refuses for now asks its client to wait.
#ifndef LSSAR_CLIENTS_CLI_RETRY_DELAY_H_
#define LSSAR_CLIENTS_CLI_RETRY_DELAY_H_

#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>

namespace lssar::cli {

// The google.rpc.RetryInfo in the status's details; nullopt: there is none.
std::optional<std::chrono::microseconds> RetryDelay(const grpc::Status& status);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_RETRY_DELAY_H_
