#include "clients/cli/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/client_interceptor.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "clients/cli/read_text.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

// As the server's own limit for requests.
constexpr int kMaxReplyBytes = 32 << 20;

// Puts the key into each call. Credentials of calls would do it over TLS alone, and a server behind
// a proxy that ends TLS has none.
class KeySender final : public Interceptor {
 public:
  explicit KeySender(std::string authorization) : authorization_(std::move(authorization)) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->insert({"authorization", authorization_});
    }
    methods->Proceed();
  }

 private:
  const std::string authorization_;
};

class KeySenderFactory final : public ClientInterceptorFactoryInterface {
 public:
  explicit KeySenderFactory(const std::string& api_key)
      : authorization_(StrCat("Bearer ", api_key)) {}

  Interceptor* CreateClientInterceptor(ClientRpcInfo*) override {
    return new KeySender(authorization_);
  }

 private:
  const std::string authorization_;
};

// Empty without a path.
absl::StatusOr<std::string> ReadPem(const std::string& path) {
  if (path.empty()) return std::string();
  return ReadText(path);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ChannelFlags& flags) {
  if (!flags.HasTls()) return grpc::InsecureChannelCredentials();
  if (flags.cert.empty() != flags.key.empty()) {
    return absl::InvalidArgumentError("--cert and --key go together: give both or none");
  }
  grpc::SslCredentialsOptions options;
  for (const auto& [path, target] : {std::pair(&flags.ca, &options.pem_root_certs),
                                     std::pair(&flags.cert, &options.pem_cert_chain),
                                     std::pair(&flags.key, &options.pem_private_key)}) {
    absl::StatusOr<std::string> pem = ReadPem(*path);
    if (!pem.ok()) return pem.status();
    *target = *std::move(pem);
  }
  return grpc::SslCredentials(options);
}

}  // namespace

void AddChannelFlags(CLI::App* app, const std::string& group, ChannelFlags* flags) {
  const auto add = [&](const char* name, std::string& value, const char* text, const char* about) {
    return app->add_option(name, value, about)->option_text(text)->group(group);
  };
  add("--api-key", flags->api_key, "KEY", "where the server has keys [or LSSAR_API_KEY]")
      ->envname("LSSAR_API_KEY");
  app->add_flag("--tls", flags->tls, "speak TLS with the server; so do --ca, --cert, --key")
      ->group(group);
  add("--ca", flags->ca, "FILE", "PEM roots that the server is known by [default: the system's]");
  add("--cert", flags->cert, "FILE", "PEM certificate, where the server asks for one");
  add("--key", flags->key, "FILE", "its PEM key");
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& server,
                                                           const ChannelFlags& flags) {
  const bool is_printable = std::ranges::all_of(
      flags.api_key, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (!is_printable) {
    return absl::InvalidArgumentError("--api-key must be printable ASCII without spaces");
  }
  auto credentials = MakeCredentials(flags);
  if (!credentials.ok()) return credentials.status();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReplyBytes);
  // A proxy for the web is none for the server next door.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors;
  if (!flags.api_key.empty()) {
    interceptors.push_back(std::make_unique<KeySenderFactory>(flags.api_key));
  }
  return grpc::experimental::CreateCustomChannelWithInterceptors(server, *credentials, arguments,
                                                                 std::move(interceptors));
}

}  // namespace lssar::cli
