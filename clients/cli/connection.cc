#include "clients/cli/connection.h"

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

constexpr std::chrono::seconds kConnectTimeout{5};

absl::Status NoServer(const std::string& server, bool has_tls) {
  if (has_tls) {
    return absl::UnavailableError(StrCat(
        "no TLS with a server at ", server,
        ": nobody listens there, it speaks no TLS, its certificate is not from --ca, or it asks "
        "for one of yours (--cert, --key)"));
  }
  return absl::UnavailableError(StrCat(
      "no server at ", server,
      "; start one with `lssar-server --model DIR`, use --tls for one with TLS, or use --model DIR "
      "to run without one"));
}

// A refused connection ends the wait at once; a silent host ends it at the timeout.
absl::Status WaitUntilConnected(grpc::Channel* channel, const std::string& server, bool has_tls) {
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeout;
  grpc_connectivity_state state = channel->GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN ||
        !channel->WaitForStateChange(state, deadline)) {
      return NoServer(server, has_tls);
    }
    state = channel->GetState(true);
  }
  return absl::OkStatus();
}

bool IsFromEnvironment(const std::string& directory) {
  const char* value = std::getenv("LSSAR_MODEL");
  return value != nullptr && directory == value;
}

}  // namespace

void AddConnectionFlags(CLI::App* app, ConnectionFlags* flags) {
  constexpr char kGroup[] = "Server, or model run here";
  app->add_option("--server", flags->server,
                  StrCat("the server to ask [default ", kDefaultServer, "]"))
      ->option_text("HOST:PORT")
      ->group(kGroup);
  AddChannelFlags(app, kGroup, &flags->channel);
  const size_t num_own = app->get_options().size();
  AddModelFlags(*app, flags->model);
  const std::vector<CLI::Option*> options = app->get_options([](CLI::Option*) { return true; });
  for (size_t i = num_own; i < options.size(); ++i) {
    options[i]->option_text(options[i]->get_type_name())->group("With --model, as lssar-server's");
  }
  app->get_option("--model")->group(kGroup)->description(
      "run the checkpoint in this directory here, without a server");
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionFlags& flags) {
  auto connection = std::unique_ptr<Connection>(new Connection);
  const std::string& directory = flags.model.directory;
  if (!flags.server.empty() && !directory.empty() && !IsFromEnvironment(directory)) {
    return absl::InvalidArgumentError("--server and --model exclude each other: give one");
  }
  if (flags.server.empty() && !directory.empty()) {
    ServerOptions options;
    options.model = flags.model;
    options.listen.clear();
    options.http_listen.clear();
    options.step_timeout = absl::ZeroDuration();           // the user is watchdog enough
    options.stream.client_timeout = absl::ZeroDuration();  // an answer may wait in a pager
    options.log_level = "off";
    auto started = Server::Start(options);
    if (!started.ok()) return started.status();
    connection->server_ = *std::move(started);
    connection->channel_ = connection->server_->InProcessChannel();
  } else {
    const std::string server = flags.server.empty() ? kDefaultServer : flags.server;
    auto channel = MakeChannel(server, flags.channel);
    if (!channel.ok()) return channel.status();
    connection->channel_ = *std::move(channel);
    absl::Status connected =
        WaitUntilConnected(connection->channel_.get(), server, flags.channel.HasTls());
    if (!connected.ok()) return connected;
  }
  connection->stub_ = v1::Inference::NewStub(connection->channel_);
  return connection;
}

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

absl::StatusOr<v1::GetInfoReply> DescribeServer(v1::Inference::StubInterface* stub) {
  grpc::ClientContext context;
  v1::GetInfoReply reply;
  absl::Status status = ToStatus(stub->GetInfo(&context, v1::GetInfoRequest(), &reply));
  if (!status.ok()) return status;
  return reply;
}

}  // namespace lssar::cli
