// The way to a server: plain or TLS, with or without a key.
#ifndef LSSAR_CLIENTS_CLI_CHANNEL_H_
#define LSSAR_CLIENTS_CLI_CHANNEL_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}  // namespace CLI

namespace lssar::cli {

struct ChannelFlags {
  bool tls = false;  // and whenever one of the next three is set
  std::string ca;    // PEM files
  std::string cert;
  std::string key;
  std::string api_key;

  bool HasTls() const { return tls || !ca.empty() || !cert.empty() || !key.empty(); }
};

void AddChannelFlags(CLI::App* app, const std::string& group, ChannelFlags* flags);

// Not connected yet.
// Errors  INVALID_ARGUMENT: --cert without --key or the other way round, a key that no header can
//         hold; NOT_FOUND: a file cannot be read
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                           const ChannelFlags& flags);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_CHANNEL_H_
