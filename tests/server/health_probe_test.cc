// --check-health against servers of every kind: with keys, with TLS, without an HTTP port.
#include "server/health_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/server/certificates.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

class HealthProbeTest : public testing::Test {
 protected:
  HealthProbeTest() { std::filesystem::create_directories(directory_); }

  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ + "/" + name) << text;
    return directory_ + "/" + name;
  }

  // Serves with `told`, but on free ports, and asks with `told` and these.
  absl::Status Probe(TestServer& server, ServerOptions told) const {
    if (!told.http_listen.empty()) {
      told.http_listen = absl::StrCat("0.0.0.0:", server.Server().HttpPort());
    }
    told.listen = absl::StrCat("0.0.0.0:", server.Server().Port());
    return ProbeHealth(told);
  }
  void ExpectHealthyOnceServing(const ServerOptions& told) const {
    TestServer server(TestServer::Loading(), {.max_context = 2048}, [&](ServerOptions& options) {
      options.tls = told.tls;
      options.api_keys = told.api_keys;
      if (told.http_listen.empty()) options.http_listen.clear();
    });
    const absl::Status loading = Probe(server, told);
    EXPECT_EQ(loading.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(loading.message()), HasSubstr("loading"));
    server.Serve();
    EXPECT_EQ(Probe(server, told), absl::OkStatus());
    server.Server().Shutdown(absl::Seconds(10));
    EXPECT_EQ(Probe(server, told).code(), absl::StatusCode::kUnavailable);
  }

  const std::string directory_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const std::string keys_ = Write("keys.toml", "[alice]\nkey = \"the-key-of-alice-0123456789\"\n");
};

TEST_F(HealthProbeTest, NeedsNoKey) { ExpectHealthyOnceServing({.api_keys = keys_}); }

TEST_F(HealthProbeTest, TakesTheGrpcPortWhereThereIsNoOther) {
  ExpectHealthyOnceServing({.http_listen = "", .api_keys = keys_});
}

TEST_F(HealthProbeTest, PassesThroughTls) {
  const Certificate authority = MakeAuthority("authority");
  const Certificate own = MakeCertificate("server", authority);
  TlsFiles tls{.certificate = Write("cert.pem", own.certificate), .key = Write("key.pem", own.key)};
  ExpectHealthyOnceServing({.tls = tls});
  ExpectHealthyOnceServing({.http_listen = "", .tls = tls});
  tls.client_ca = Write("ca.pem", authority.certificate);
  ExpectHealthyOnceServing({.tls = tls, .api_keys = keys_});
  ExpectHealthyOnceServing({.http_listen = "", .tls = tls, .api_keys = keys_});
}

TEST_F(HealthProbeTest, SaysWhereNobodyAnswersAndThatAPortIsNotKnown) {
  std::string http_listen, listen;
  {
    TestServer gone;
    http_listen = absl::StrCat("127.0.0.1:", gone.Server().HttpPort());
    listen = absl::StrCat("127.0.0.1:", gone.Server().Port());
  }
  const absl::Status http = ProbeHealth({.http_listen = http_listen});
  EXPECT_EQ(http.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(http.message()),
              HasSubstr(absl::StrCat("no answer from a server at ", http_listen)));
  const absl::Status grpc = ProbeHealth({.listen = listen, .http_listen = ""});
  EXPECT_EQ(grpc.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(grpc.message()),
              HasSubstr(absl::StrCat("no answer from a server at ", listen)));
  const absl::Status unknown = ProbeHealth({.http_listen = "127.0.0.1:0"});
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("--http-listen 127.0.0.1:0"));
}

}  // namespace
}  // namespace lssar
