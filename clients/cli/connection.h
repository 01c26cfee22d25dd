// Connects a command to its service: a server, or the same server inside this process.
#ifndef LSSAR_CLIENTS_CLI_CONNECTION_H_
#define LSSAR_CLIENTS_CLI_CONNECTION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cli/argument_parser.h"
#include "server/config/options.h"

namespace lssar {
class Server;
}  // namespace lssar

namespace lssar::cli {

class Service;

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";

struct ConnectionFlags {
  std::string server;  // HOST:PORT; empty: kDefaultServer unless model.directory is set
  bool tls = false;    // TLS is also on when one of the next three is set
  std::string ca;      // PEM files
  std::string cert;
  std::string key;
  std::string api_key;
  std::string served_model_name;  // empty: the server's only one
  ModelOptions model;

  // Set by AddConnectionFlags: flags that apply to a server only, and with --model only.
  std::vector<Argument> server_options = {};
  std::vector<Argument> model_options = {};

  bool IsInProcess() const { return !model.directory.empty(); }  // the model runs in this process
  bool HasTls() const { return tls || !ca.empty() || !cert.empty() || !key.empty(); }
};

// `flags` must outlive `parser`, and the parser's app must outlive Connection::Open.
void AddConnectionFlags(ArgumentParser* parser, ConnectionFlags* flags);

class Connection {
 public:
  // Loads the model, or waits until the server answers and has loaded its model.
  // Errors  INVALID_ARGUMENT: both a server and a model are named, a flag does not apply to the
  //         chosen one, --server is not HOST:PORT, --cert without --key or the reverse, an API key
  //         or a name of a model that a header cannot carry; NOT_FOUND: a file cannot be read;
  //         UNAVAILABLE: no gRPC server answers there, TLS failed, or it has not loaded its model
  //         within minutes; those of Server::Start
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionFlags& flags);

  ~Connection();

  Service* Stub() const { return stub_.get(); }

 private:
  Connection();
  std::unique_ptr<Server> server_;
  std::unique_ptr<Service> stub_;
};

// Errors  INVALID_ARGUMENT: a URL, or no port; says what to give instead
absl::Status CheckServerAddress(absl::string_view server);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_CONNECTION_H_
