#include "clients/cli/connection.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/error_details.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/rpc_calls.h"
#include "clients/cli/service.h"
#include "clients/cli/terminal.h"
#include "server/config/limits.h"
#include "server/http/blocking_client.h"
#include "server/net/host_port.h"
#include "server/net/unix_socket.h"
#include "server/ops/health_probe.h"
#include "server/server.h"

namespace lssar::cli {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

constexpr std::chrono::seconds kConnectTimeout{5};
constexpr std::chrono::seconds kProbeTimeout{2};
// Large models are read from the disk for minutes.
constexpr std::chrono::minutes kLoadTimeout{10};

// gRPC itself repeats a call that is refused before it has begun: no connection, loading, draining.
// Every rpc only reads, so all of them may be repeated. deploy/cluster/README.md shows the same
// lines for other clients.
constexpr char kServiceConfig[] = R"({"methodConfig": [{
  "name": [{"service": "lssar.v1.Inference"}],
  "retryPolicy": {
    "maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "2s", "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"]}}]})";

using Metadata = std::multimap<std::string, std::string>;

// Adds metadata to each call. gRPC's call credentials, which could carry an API key, work over TLS
// only, and a server behind a proxy that terminates TLS has none.
class MetadataInterceptor final : public Interceptor {
 public:
  explicit MetadataInterceptor(Metadata metadata) : metadata_(std::move(metadata)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert(metadata_.begin(), metadata_.end());
    }
    methods->Proceed();
  }

 private:
  const Metadata metadata_;
};

class MetadataInterceptorFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit MetadataInterceptorFactory(Metadata metadata) : metadata_(std::move(metadata)) {}

  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override {
    return new MetadataInterceptor(metadata_);
  }

 private:
  const Metadata metadata_;
};

// What a header cannot carry, gRPC would end the process for.
absl::Status CheckHeader(const char* flag, const std::string& value) {
  if (std::ranges::all_of(value, [](char c) { return absl::ascii_isgraph(uint8_t(c)); })) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat(flag, " must be printable ASCII without spaces"));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ConnectionFlags& flags) {
  if (!flags.HasTls()) return grpc::InsecureChannelCredentials();
  if (flags.cert.empty() != flags.key.empty()) {
    return absl::InvalidArgumentError("--cert and --key go together: give both or none");
  }
  grpc::SslCredentialsOptions options;
  for (const auto& [path, pem] : {std::pair(&flags.ca, &options.pem_root_certs),
                                  std::pair(&flags.cert, &options.pem_cert_chain),
                                  std::pair(&flags.key, &options.pem_private_key)}) {
    if (path->empty()) continue;
    ASSIGN_OR_RETURN(*pem, ReadWholeFile(*path, kMaxPemFileBytes));
  }
  return grpc::SslCredentials(options);
}

// A channel that is not connected yet.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                           const ConnectionFlags& flags) {
  RETURN_IF_ERROR(CheckServerAddress(server));
  RETURN_IF_ERROR(CheckHeader("--api-key", flags.api_key));
  RETURN_IF_ERROR(CheckHeader("--served-model-name", flags.served_model_name));
  ASSIGN_OR_RETURN(auto credentials, MakeCredentials(flags));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(limits::kMaxMessageBytes);
  // http_proxy is set for web traffic; this server is usually on the local network.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetServiceConfigJSON(kServiceConfig);
  Metadata metadata;
  if (!flags.api_key.empty()) {
    metadata.emplace("authorization", StrCat("Bearer ", flags.api_key));
  }
  if (!flags.served_model_name.empty()) metadata.emplace("x-lssar-model", flags.served_model_name);
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors;
  if (!metadata.empty()) {
    interceptors.push_back(std::make_unique<MetadataInterceptorFactory>(std::move(metadata)));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(server, credentials, arguments,
                                                                 std::move(interceptors));
}

// True if a request in HTTP/1.1 gets an answer in HTTP/1.x: gRPC needs HTTP/2.
bool AnswersHttp1(const std::string& server) {
  const auto address = SplitHostPort(server);
  return address &&
         SendRequest({.host = address->host, .port = address->port, .timeout = kProbeTimeout},
                     "GET", "/healthz")
             .ok();
}

absl::Status ExplainNoConnection(const std::string& server, bool has_tls) {
  if (has_tls) {
    return absl::UnavailableError(
        StrCat("no TLS connection to ", server,
               ": no server listens there, it does not use TLS, its certificate is not from --ca, "
               "or it requires a client certificate (--cert, --key)"));
  }
  if (AnswersHttp1(server)) {
    return absl::UnavailableError(StrCat(
        server, " is an HTTP port, not a gRPC port; give the port of lssar-server --listen (",
        kDefaultServer, " by default), not that of --http-listen"));
  }
  return absl::UnavailableError(StrCat(
      "no server at ", server,
      "; start one with `lssar-server --model DIR`, use --tls for one with TLS, or use --model DIR "
      "to run without one"));
}

// Returns at once if the connection is refused, and after kConnectTimeout if the host is silent.
absl::Status WaitUntilConnected(const std::string& server, bool has_tls, grpc::Channel* channel) {
  const auto deadline = std::chrono::system_clock::now() + kConnectTimeout;
  grpc_connectivity_state state = channel->GetState(true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN ||
        !channel->WaitForStateChange(state, deadline)) {
      return ExplainNoConnection(server, has_tls);
    }
    state = channel->GetState(true);
  }
  return absl::OkStatus();
}

// A server listens before it has loaded its model. Until then it refuses calls, for longer than
// gRPC repeats them. Whatever else it answers is for the command's own calls.
absl::Status WaitUntilLoaded(const std::string& server, Service* stub) {
  const auto deadline = std::chrono::steady_clock::now() + kLoadTimeout;
  for (bool is_told = false;; is_told = true) {
    const absl::Status status = DescribeServer(stub).status();  // repeated by gRPC, with pauses
    if (ErrorReason(status) != error_reason::kModelLoading) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::UnavailableError(
          StrCat(server, " is still loading its model after ", kLoadTimeout.count(), " minutes"));
    }
    if (is_told) continue;
    const std::string note = StrCat("waiting for ", server, ", which is loading its model");
    std::fprintf(stderr, "%s\n", Dim(StderrTerminal(), note).c_str());
  }
}

absl::Status CheckFlagsApply(const ConnectionFlags& flags) {
  const bool is_in_process = flags.IsInProcess();
  for (const Argument& argument : is_in_process ? flags.server_options : flags.model_options) {
    if (!argument.IsOnCommandLine()) continue;
    return absl::InvalidArgumentError(
        StrCat(argument.Name(),
               is_in_process
                   ? " applies to a server; --model DIR runs the model in this process without one"
                   : " applies with --model DIR only; a server takes it when it starts "
                     "(lssar-server --help)"));
  }
  if (!is_in_process) return absl::OkStatus();
  return CheckModelFlags(flags.model, [&flags](const std::string& name) {
    return std::ranges::any_of(flags.model_options, [&name](const Argument& argument) {
      return argument.Name() == StrCat("--", name) && argument.IsOnCommandLine();
    });
  });
}

}  // namespace

void AddConnectionFlags(ArgumentParser* parser, ConnectionFlags* flags) {
  constexpr char kGroup[] = "Server, or model in this process";
  const auto add = [&](const char* name, std::string& value, const char* text,
                       const std::string& about) {
    return parser->Add(name, value, about).ValueName(text).Group(kGroup);
  };
  add("--server", flags->server, "HOST:PORT",
      StrCat("gRPC address of the server [default ", kDefaultServer, "]"));
  const Argument api_key = add("--api-key", flags->api_key, "KEY",
                               "API key, if the server requires one [or LSSAR_API_KEY]")
                               .Environment("LSSAR_API_KEY");
  const Argument tls =
      parser->AddSwitch("--tls", flags->tls, "use TLS; implied by --ca, --cert, --key")
          .Group(kGroup);
  flags->server_options = {
      api_key,
      tls,
      add("--served-model-name", flags->served_model_name, "NAME",
          "the model, by a name that its server gives it, where --server has several"),
      add("--ca", flags->ca, "FILE",
          "PEM root certificates to verify the server [default: the system's]"),
      add("--cert", flags->cert, "FILE", "PEM client certificate, if the server requires one"),
      add("--key", flags->key, "FILE", "PEM key of --cert")};
  const size_t num_own = parser->Arguments().size();
  AddModelFlags(*parser->App(), flags->model);
  const std::vector<Argument> arguments = parser->Arguments();
  for (size_t i = num_own; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    argument.ValueName(argument.TypeName());
    if (argument.Name() == "--model") {
      // In a server's shell or container, LSSAR_MODEL is the server's: the command asks that one.
      argument.Group(kGroup).Environment("").Help(
          "run the checkpoint in this directory, without a server");
    } else {
      argument.Group("Only with --model (or LSSAR_MAX_MODEL_LEN, and so on, in the environment)");
      flags->model_options.push_back(argument);
    }
  }
}

Connection::Connection() = default;

Connection::~Connection() = default;

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionFlags& flags) {
  auto connection = std::unique_ptr<Connection>(new Connection);
  if (!flags.server.empty() && flags.IsInProcess()) {
    return absl::InvalidArgumentError("--server and --model exclude each other: give one");
  }
  RETURN_IF_ERROR(CheckFlagsApply(flags));
  if (flags.IsInProcess()) {
    ServerOptions options;
    options.model = flags.model;
    // The user's own process.
    options.model.allow_attention_override = true;
    options.model.allow_steering = true;
    options.listen.clear();
    options.http_listen.clear();
    options.step_timeout = absl::ZeroDuration();           // the user can press Ctrl-C
    options.stream.client_timeout = absl::ZeroDuration();  // output may wait in a pager
    options.log_level = "off";
    ASSIGN_OR_RETURN(connection->server_, Server::Start(options));
    connection->stub_ =
        std::make_unique<Service>(v1::Inference::NewStub(connection->server_->InProcessChannel()));
    return connection;
  }
  const std::string server = flags.server.empty() ? kDefaultServer : flags.server;
  ASSIGN_OR_RETURN(const auto channel, MakeChannel(server, flags));
  RETURN_IF_ERROR(WaitUntilConnected(server, flags.HasTls(), channel.get()));
  connection->stub_ = std::make_unique<Service>(v1::Inference::NewStub(channel));
  // A call of the service would count against the key's limits.
  const bool is_serving = IsServing(channel).value_or(true);
  if (!is_serving) RETURN_IF_ERROR(WaitUntilLoaded(server, connection->stub_.get()));
  return connection;
}

absl::Status CheckServerAddress(absl::string_view server) {
  absl::string_view rest = server;
  const bool is_https = absl::StartsWithIgnoreCase(rest, "https://");
  if (is_https || absl::StartsWithIgnoreCase(rest, "http://")) {
    rest.remove_prefix(rest.find("://") + 3);
    rest = rest.substr(0, rest.find('/'));
    rest = rest.substr(0, rest.rfind(':'));
    return absl::InvalidArgumentError(
        StrCat("--server: '", server, "' is a URL; give HOST:PORT of the gRPC port, such as ",
               rest.empty() ? absl::string_view("127.0.0.1") : rest, ":50051",
               is_https ? ", and --tls" : ""));
  }
  // With '/' or a scheme it is a name for gRPC's resolvers, such as unix:/run/lssar.sock.
  if (!absl::StrContains(rest, ':') && !absl::StrContains(rest, '/')) {
    return absl::InvalidArgumentError(
        StrCat("--server: '", server, "' has no port; give HOST:PORT, such as ", server, ":50051"));
  }
  // gRPC takes larger ones modulo 65536.
  const absl::string_view port = rest.substr(rest.rfind(':') + 1);
  const bool is_number = !port.empty() && std::ranges::all_of(port, absl::ascii_isdigit);
  int number = 0;
  if (is_number && !IsUnixSocket({rest.data(), rest.size()}) &&
      (!absl::SimpleAtoi(port, &number) || number < 1 || number > 65535)) {
    return absl::InvalidArgumentError(
        StrCat("--server: the port of '", server, "' must be in [1, 65535]"));
  }
  return absl::OkStatus();
}

}  // namespace lssar::cli
