// Connects a command to its service: a server, or the same server inside this process.
#ifndef LSSAR_CLIENTS_CLI_CONNECTION_H_
#define LSSAR_CLIENTS_CLI_CONNECTION_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "server/config/options.h"
#include "server/server.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace lssar::cli {

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";

struct ConnectionFlags {
  std::string server;  // HOST:PORT; empty: kDefaultServer unless model.directory is set
  bool tls = false;    // TLS is also on when one of the next three is set
  std::string ca;      // PEM files
  std::string cert;
  std::string key;
  std::string api_key;
  ModelOptions model;

  // Set by AddConnectionFlags: flags that apply to a server only, to --model only, and --model.
  std::vector<const CLI::Option*> server_options = {};
  std::vector<const CLI::Option*> model_options = {};
  const CLI::Option* model_option = nullptr;

  bool HasTls() const { return tls || !ca.empty() || !cert.empty() || !key.empty(); }
};

// `flags` must outlive `app`, and `app` must outlive Connection::Open.
void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags);

class Connection {
 public:
  // Loads the model, or waits until the server answers.
  // Errors  INVALID_ARGUMENT: both a server and a model are named, a flag does not apply to the
  //         chosen one, --server is not HOST:PORT, --cert without --key or the reverse, an API key
  //         that a header cannot carry; NOT_FOUND: a file cannot be read; UNAVAILABLE: no gRPC
  //         server answers there, or TLS failed; those of Server::Start
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionFlags& flags);

  v1::Inference::StubInterface* Stub() const { return stub_.get(); }

 private:
  Connection() = default;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::StubInterface> stub_;
};

// Errors  INVALID_ARGUMENT: a URL, or no port; says what to give instead
absl::Status CheckServerAddress(absl::string_view server);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_CONNECTION_H_
