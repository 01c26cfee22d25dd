// The service that a command talks to: a server, or the same server inside this process.
#ifndef LSSAR_CLIENTS_CLI_CONNECTION_H_
#define LSSAR_CLIENTS_CLI_CONNECTION_H_

#include <grpcpp/channel.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/channel.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "server/options.h"
#include "server/server.h"

namespace lssar::cli {

inline constexpr char kDefaultServer[] = "127.0.0.1:50051";

struct ConnectionFlags {
  std::string server;  // host:port; empty: kDefaultServer unless model.directory is set
  ChannelFlags channel;
  ModelOptions model;
};

void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags);

class Connection {
 public:
  // Loads the model, or waits until the server answers.
  // Errors  INVALID_ARGUMENT: both a server and a model are named; UNAVAILABLE: nobody listens
  //         there, or the two do not trust each other; those of MakeChannel and Server::Start
  static absl::StatusOr<std::unique_ptr<Connection>> Open(const ConnectionFlags& flags);

  v1::Inference::StubInterface* Stub() const { return stub_.get(); }

 private:
  Connection() = default;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::StubInterface> stub_;
};

// The call's result with the same code and sentence.
absl::Status ToStatus(const grpc::Status& status);

// What the server says about itself.
absl::StatusOr<v1::GetInfoReply> DescribeServer(v1::Inference::StubInterface* stub);

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_CONNECTION_H_
