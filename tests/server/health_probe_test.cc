// --check-health with keys, with TLS and without an HTTP port.
#include "server/ops/health_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <string_view>
#include <utility>

#include "base/str_cat.h"
#include "server/net/file_descriptor.h"
#include "tests/server/certificates.h"
#include "tests/server/poll_until.h"
#include "tests/server/tcp_client.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

class HealthProbeTest : public testing::Test {
 protected:
  static ServerOptions With(bool has_http, const std::string& api_keys, const TlsFiles& tls = {}) {
    ServerOptions options;
    if (!has_http) options.http_listen.clear();
    options.api_keys = api_keys;
    options.tls = tls;
    return options;
  }
  // Serves with `told` on free ports and probes with `told` and those ports.
  absl::Status Probe(TestServer& server, ServerOptions told) const {
    if (!told.http_listen.empty()) {
      told.http_listen = StrCat("0.0.0.0:", server.GetServer().HttpPort());
    }
    told.listen = StrCat("0.0.0.0:", server.GetServer().Port());
    return ProbeHealth(told);
  }
  void ExpectHealthyOnceServing(const ServerOptions& told) const {
    TestServer server(TestServer::Loading(), {.max_model_len = 2048}, [&](ServerOptions& options) {
      options.tls = told.tls;
      options.api_keys = told.api_keys;
      if (told.http_listen.empty()) options.http_listen.clear();
    });
    // A probe waits for three seconds: some machines stall for longer.
    EXPECT_TRUE(PollUntil([&] {
      const absl::Status loading = Probe(server, told);
      EXPECT_EQ(loading.code(), absl::StatusCode::kUnavailable);
      return loading.message().find("loading") != std::string_view::npos;
    }));
    server.Serve();
    EXPECT_TRUE(PollUntil([&] { return Probe(server, told).ok(); }));
    server.GetServer().Shutdown(absl::Minutes(2));
    EXPECT_EQ(Probe(server, told).code(), absl::StatusCode::kUnavailable);
  }

  const ScratchDirectory directory_;
  const std::string keys_ =
      directory_.Write("keys.toml", "[alice]\nkey = \"the-key-of-alice-0123456789\"\n");
};

TEST_F(HealthProbeTest, NeedsNoKey) { ExpectHealthyOnceServing(With(true, keys_)); }

TEST_F(HealthProbeTest, UsesTheGrpcPortIfThereIsNoHttpPort) {
  ExpectHealthyOnceServing(With(false, keys_));
}

TEST_F(HealthProbeTest, WorksWithTls) {
  const Certificate authority = MakeAuthority("authority");
  const Certificate own = MakeCertificate("server", authority);
  TlsFiles tls;
  tls.certificate = directory_.Write("cert.pem", own.certificate);
  tls.key = directory_.Write("key.pem", own.key);
  ExpectHealthyOnceServing(With(true, "", tls));
  ExpectHealthyOnceServing(With(false, "", tls));
  tls.client_ca = directory_.Write("ca.pem", authority.certificate);
  ExpectHealthyOnceServing(With(true, keys_, tls));
  ExpectHealthyOnceServing(With(false, keys_, tls));
}

TEST_F(HealthProbeTest, ReportsAnUnreachableAddressAndAnUnknownPort) {
  ServerOptions http, grpc = With(false, "");
  const FileDescriptor one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const FileDescriptor other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  http.http_listen = StrCat("127.0.0.1:", BindToAFreePort(one.Get()));
  grpc.listen = StrCat("127.0.0.1:", BindToAFreePort(other.Get()));
  for (const auto& [options, address] : {std::pair(http, http.http_listen), {grpc, grpc.listen}}) {
    const absl::Status status = ProbeHealth(options);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(StrCat("no answer from a server at ", address)));
  }
  http.http_listen = "127.0.0.1:0";
  const absl::Status unknown = ProbeHealth(http);
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("--http-listen 127.0.0.1:0"));
}

}  // namespace
}  // namespace lssar
