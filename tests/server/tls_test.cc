// TLS and mutual TLS: which clients connect, and certificates that change at run time.
#include "server/net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "server/ops/log.h"
#include "tests/server/captured_log.h"
#include "tests/server/certificates.h"
#include "tests/server/poll_until.h"
#include "tests/server/tcp_client.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    Write("ca.pem", authority_.certificate);
    Serve(MakeCertificate("first", authority_));
  }

  void Write(const std::string& name, const std::string& text) const {
    directory_.Write(name, text);
  }
  std::string Path(const std::string& name) const { return directory_.Path(name); }
  void Serve(const Certificate& certificate) const {
    Write("key.pem", certificate.key);
    Write("cert.pem", certificate.certificate);
  }

  TlsFiles Files(bool with_client_ca) const {
    return {.certificate = Path("cert.pem"),
            .key = Path("key.pem"),
            .client_ca = with_client_ca ? Path("ca.pem") : ""};
  }
  TestServer::Adjust WithTls(bool with_client_ca = false) const {
    return [files = Files(with_client_ca)](ServerOptions& options) { options.tls = files; };
  }

  // The status of a call over a new connection with these credentials.
  static grpc::Status Call(const TestServer& server,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        "localhost:" + std::to_string(const_cast<TestServer&>(server).GetServer().Port()),
        credentials, arguments);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
    v1::GetInfoReply reply;
    return v1::Inference::NewStub(channel)->GetInfo(&context, {}, &reply);
  }
  static std::shared_ptr<grpc::ChannelCredentials> Trusting(const Certificate& authority,
                                                            const Certificate& own = {}) {
    return grpc::SslCredentials({.pem_root_certs = authority.certificate,
                                 .pem_private_key = own.key,
                                 .pem_cert_chain = own.certificate});
  }

  // The HTTP status of `path` for a client that trusts `authority` and shows `own`; 0: no
  // connection.
  static int StatusOf(const TestServer& server, const Certificate& authority, const char* path,
                      const Certificate& own = {}) {
    const ScratchDirectory directory;
    HttpTarget target{.host = "localhost", .port = HttpPort(server), .has_tls = true};
    target.ca_file = directory.Write("roots.pem", authority.certificate);
    if (!own.certificate.empty()) {
      target.certificate_file = directory.Write("own.pem", own.certificate);
      target.key_file = directory.Write("own-key.pem", own.key);
    }
    const auto reply = SendRequest(target, "GET", path);
    return reply.ok() ? reply->status : 0;
  }
  static int StatusOfHealth(const TestServer& server, const Certificate& authority) {
    return StatusOf(server, authority, "/healthz");
  }
  static int HttpPort(const TestServer& server) {
    return const_cast<TestServer&>(server).GetServer().HttpPort();
  }

  const ScratchDirectory directory_;
  const Certificate authority_ = MakeAuthority("authority");
  const Certificate stranger_ = MakeAuthority("stranger");
};

TEST_F(TlsTest, OnlyTlsClientsThatTrustTheServerConnect) {
  const TestServer server({.max_model_len = 2048}, WithTls());
  const grpc::Status status = Call(server, Trusting(authority_));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Call(server, Trusting(stranger_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(server, grpc::InsecureChannelCredentials()).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, AClientCaRequiresClientCertificates) {
  const TestServer server({.max_model_len = 2048}, WithTls(/*with_client_ca=*/true));
  const grpc::Status status =
      Call(server, Trusting(authority_, MakeCertificate("client", authority_)));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Call(server, Trusting(authority_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(server, Trusting(authority_, MakeCertificate("client", stranger_))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, AChangedCertificateAppliesToNewConnections) {
  const TestServer server({.max_model_len = 2048}, WithTls());
  ASSERT_TRUE(Call(server, Trusting(authority_)).ok());
  Serve(MakeCertificate("second", stranger_));
  EXPECT_TRUE(PollUntil([&] { return Call(server, Trusting(stranger_)).ok(); }));
  EXPECT_FALSE(Call(server, Trusting(authority_)).ok());
}

// The result of a handshake with a client that supports only one version: "" on success, else
// OpenSSL's reason.
std::string Handshake(int port, int version, const char* cipher_suites = nullptr) {
  const std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context(SSL_CTX_new(TLS_client_method()),
                                                             SSL_CTX_free);
  SSL_CTX_set_security_level(context.get(), 0);  // otherwise the client itself rejects TLS 1.1
  EXPECT_EQ(SSL_CTX_set_min_proto_version(context.get(), version), 1);
  EXPECT_EQ(SSL_CTX_set_max_proto_version(context.get(), version), 1);
  if (cipher_suites != nullptr) {
    EXPECT_EQ(SSL_CTX_set_cipher_list(context.get(), cipher_suites), 1);
  }
  constexpr unsigned char kHttp2[] = {2, 'h', '2'};
  EXPECT_EQ(SSL_CTX_set_alpn_protos(context.get(), kHttp2, sizeof(kHttp2)), 0);
  const std::unique_ptr<SSL, void (*)(SSL*)> session(SSL_new(context.get()), SSL_free);
  const int client = ConnectTo(port);
  SSL_set_fd(session.get(), client);
  ERR_clear_error();
  const bool is_done = SSL_connect(session.get()) == 1;
  const char* reason = ERR_reason_error_string(ERR_peek_error());
  close(client);
  ERR_clear_error();
  return is_done ? "" : reason == nullptr ? "the connection was closed" : reason;
}

TEST_F(TlsTest, OldVersionsAreRejectedOnBothPorts) {
  TestServer server({.max_model_len = 2048}, WithTls());
  for (const int port : {server.GetServer().Port(), server.GetServer().HttpPort()}) {
    EXPECT_NE(Handshake(port, TLS1_1_VERSION), "") << port;
    EXPECT_EQ(Handshake(port, TLS1_2_VERSION), "") << port;
    EXPECT_EQ(Handshake(port, TLS1_3_VERSION), "") << port;
  }
}

TEST_F(TlsTest, BothPortsRefuseCipherSuitesWithoutAuthenticatedEncryption) {
  TestServer server({.max_model_len = 2048}, WithTls());
  for (const int port : {server.GetServer().Port(), server.GetServer().HttpPort()}) {
    for (const char* cbc : {"ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA384"}) {
      EXPECT_NE(Handshake(port, TLS1_2_VERSION, cbc), "") << port << " " << cbc;
    }
    EXPECT_EQ(Handshake(port, TLS1_2_VERSION, "ECDHE-ECDSA-AES128-GCM-SHA256"), "") << port;
  }
}

TEST_F(TlsTest, AClientCaRequiresClientCertificatesOfHttpToo) {
  const TestServer server({.max_model_len = 2048}, WithTls(/*with_client_ca=*/true));
  const Certificate known = MakeCertificate("client", authority_);
  const Certificate unknown = MakeCertificate("client", stranger_);
  for (const char* path : {"/v1/models", "/metrics", "/openapi.json", "/"}) {
    EXPECT_EQ(StatusOf(server, authority_, path), 403) << path;
    EXPECT_EQ(StatusOf(server, authority_, path, known), 200) << path;
    EXPECT_EQ(StatusOf(server, authority_, path, unknown), 0) << path;
  }
  for (const char* path : {"/healthz", "/readyz"}) {
    EXPECT_EQ(StatusOf(server, authority_, path), 200) << path;
  }
}

TEST_F(TlsTest, ACertificateThatExpiresIsWorthAWarning) {
  const TlsFiles files = Files(/*with_client_ca=*/false);
  const auto material = ReadTlsMaterial(files);
  ASSERT_TRUE(material.ok()) << material.status();
  const absl::Time begin = (*material)->not_before, end = (*material)->not_after;
  EXPECT_GE(end - begin, absl::Hours(25));
  const auto warning = [&](absl::Time now) { return ValidityWarning(files, **material, now); };
  EXPECT_THAT(warning(begin - absl::Seconds(1)), HasSubstr("is not valid before 20"));
  EXPECT_THAT(warning(end - absl::Seconds(1)), HasSubstr("expires soon: it is valid until 20"));
  EXPECT_THAT(warning(end), HasSubstr("has expired"));
  EXPECT_THAT(warning(end), HasSubstr(StrCat("--tls-cert ", files.certificate)));
  Serve(MakeCertificate("long", authority_, 365 * 24 * 3600));
  const auto lasting = ReadTlsMaterial(files);
  ASSERT_TRUE(lasting.ok()) << lasting.status();
  const absl::Time last = (*lasting)->not_after - absl::Hours(30 * 24);
  EXPECT_EQ(ValidityWarning(files, **lasting, last - absl::Seconds(1)), "");
  EXPECT_NE(ValidityWarning(files, **lasting, last), "");
}

TEST_F(TlsTest, AnExpiredCertificateIsServedWithAWarning) {
  Serve(MakeCertificate("old", authority_, -1800));
  const Log log("info");
  CaptureLog();
  EXPECT_TRUE(TlsCertificates::Open(Files(/*with_client_ca=*/false), &log).ok());
  EXPECT_THAT(CapturedLog(), HasSubstr("has expired"));
}

TEST_F(TlsTest, TheHttpPortUsesTheCertificateAndProbesNeedNone) {
  const TestServer server({.max_model_len = 2048}, WithTls(/*with_client_ca=*/true));
  EXPECT_EQ(StatusOfHealth(server, authority_), 200);
  EXPECT_EQ(StatusOfHealth(server, stranger_), 0);
  EXPECT_FALSE(
      SendRequest({.host = "localhost", .port = HttpPort(server)}, "GET", "/healthz").ok());
  // Replacing only one of the two files has no effect.
  const Certificate second = MakeCertificate("second", stranger_);
  Write("key.pem", second.key);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(StatusOfHealth(server, authority_), 200);
  Write("cert.pem", second.certificate);
  EXPECT_TRUE(PollUntil([&] { return StatusOfHealth(server, stranger_) == 200; }));
  EXPECT_EQ(StatusOfHealth(server, authority_), 0);
}

TEST_F(TlsTest, AnUnfinishedHandshakeBlocksNoOtherClient) {
  auto server = std::make_unique<TestServer>(EngineOptions{.max_model_len = 2048}, WithTls());
  std::vector<int> silent;
  for (int i = 0; i < 8; ++i) silent.push_back(ConnectTo(HttpPort(*server)));
  EXPECT_EQ(StatusOfHealth(*server, authority_), 200);
  server.reset();
  for (const int client : silent) {
    char byte = 0;
    EXPECT_LE(recv(client, &byte, 1, 0), 0);
    close(client);
  }
}

// Writes the file in place, as an editor may do.
void WriteInPlace(const std::string& path, const std::string& text) {
  std::filesystem::remove_all(path);
  std::ofstream(path) << text;
}

TEST_F(TlsTest, BothPortsKeepTheCertificateWhileTheFilesAreBad) {
  const TestServer server({.max_model_len = 2048}, WithTls());
  const Certificate first = MakeCertificate("one", authority_);
  Serve(first);
  const Certificate second = MakeCertificate("two", stranger_);
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1100)); };
  const auto expect_first = [&](const char* what) {
    wait();
    // Twice: the connection that finds the bad files, and one after it.
    for (int i = 0; i < 2; ++i) {
      const grpc::Status status = Call(server, Trusting(authority_));
      EXPECT_TRUE(status.ok()) << what << ": " << status.error_message();
      EXPECT_EQ(StatusOfHealth(server, authority_), 200) << what;
    }
  };
  WriteInPlace(Path("key.pem"), "");
  expect_first("an empty key");
  WriteInPlace(Path("cert.pem"), "");
  expect_first("both empty");
  WriteInPlace(Path("key.pem"), second.key);
  WriteInPlace(Path("cert.pem"), second.certificate.substr(0, second.certificate.size() / 2));
  expect_first("half a certificate");
  std::filesystem::remove(Path("cert.pem"));
  std::filesystem::create_directory(Path("cert.pem"));
  expect_first("a directory");
  WriteInPlace(Path("cert.pem"), second.certificate);
  wait();
  EXPECT_TRUE(Call(server, Trusting(stranger_)).ok());
  EXPECT_EQ(StatusOfHealth(server, stranger_), 200);
  EXPECT_FALSE(Call(server, Trusting(authority_)).ok());
}

TEST_F(TlsTest, ABadReloadIsLoggedOnce) {
  const Log log("info");
  const auto certificates = TlsCertificates::Open(Files(/*with_client_ca=*/false), &log);
  ASSERT_TRUE(certificates.ok()) << certificates.status();
  const auto before = (*certificates)->Current();
  const auto lines_after = [&](int num_calls) {
    CaptureLog();
    for (int i = 0; i < num_calls; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1050));
      (*certificates)->Current();
    }
    return CapturedLog();
  };
  const std::string key = MakeCertificate("next", authority_).key;
  WriteInPlace(Path("key.pem"), key);
  const std::string lines = lines_after(2);
  EXPECT_THAT(lines, HasSubstr("does not match --tls-cert"));
  EXPECT_THAT(lines, HasSubstr("the certificate before it stays in force"));
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1) << lines;
  EXPECT_EQ((*certificates)->Current(), before);
  Serve(MakeCertificate("good", authority_));
  EXPECT_THAT(lines_after(1), HasSubstr("the certificate that was read is in force"));
  EXPECT_NE((*certificates)->Current(), before);
}

TEST_F(TlsTest, ReloadReadsAtOnceAndLogsAgain) {
  const Log log("info");
  const auto certificates = TlsCertificates::Open(Files(/*with_client_ca=*/false), &log);
  ASSERT_TRUE(certificates.ok()) << certificates.status();
  const auto before = (*certificates)->Current();
  const auto lines_of_reload = [&] {
    CaptureLog();
    (*certificates)->Reload();
    return CapturedLog();
  };
  WriteInPlace(Path("key.pem"), MakeCertificate("next", authority_).key);
  EXPECT_THAT(lines_of_reload(), HasSubstr("does not match --tls-cert"));
  EXPECT_THAT(lines_of_reload(), HasSubstr("does not match --tls-cert"));
  EXPECT_EQ((*certificates)->Current(), before);
  Serve(MakeCertificate("good", authority_));
  EXPECT_THAT(lines_of_reload(), HasSubstr("the certificate that was read is in force"));
  EXPECT_NE((*certificates)->Current(), before);
}

TEST_F(TlsTest, InvalidFilesAreNamed) {
  const auto message = [](const TlsFiles& files) {
    return std::string(ReadTlsMaterial(files).status().message());
  };
  TlsFiles files = Files(/*with_client_ca=*/true);
  EXPECT_TRUE(ReadTlsMaterial(files).ok());
  files.certificate = Path("none.pem");
  EXPECT_EQ(ReadTlsMaterial(files).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(message(files), "--tls-cert " + Path("none.pem") + ": No such file or directory");
  files.certificate = Path("key.pem");
  EXPECT_THAT(message(files), HasSubstr("key.pem contains no PEM certificate"));
  files.certificate = directory_.Path();
  EXPECT_THAT(message(files), HasSubstr("is a directory, must be a regular file"));
  unlink(Path("fifo").c_str());  // of an earlier run
  ASSERT_EQ(mkfifo(Path("fifo").c_str(), 0600), 0);
  files = Files(true);
  files.key = Path("fifo");
  EXPECT_THAT(message(files), HasSubstr("--tls-key " + Path("fifo") + ": is a FIFO"));
  files.key = Path("ca.pem");
  EXPECT_THAT(message(files), HasSubstr("--tls-key " + Path("ca.pem") + " contains no PEM key"));
  Write("other.pem", MakeCertificate("other", authority_).key);
  files.key = Path("other.pem");
  EXPECT_THAT(message(files), HasSubstr("does not match --tls-cert"));
  files = Files(true);
  files.client_ca = Path("key.pem");
  EXPECT_THAT(message(files), HasSubstr("--tls-client-ca"));
}

TEST_F(TlsTest, AHalfWrittenFileIsNamed) {
  const Certificate good = MakeCertificate("chain", authority_);
  const auto message = [&](const std::string& certificate) {
    Write("key.pem", good.key);
    Write("cert.pem", certificate);
    return std::string(ReadTlsMaterial(Files(false)).status().message());
  };
  const std::string chain = good.certificate + authority_.certificate;
  EXPECT_EQ(message(chain), "");
  const std::string part = good.certificate + authority_.certificate.substr(0, 100);
  EXPECT_THAT(message(part), HasSubstr("ends in the middle of a PEM block"));
  EXPECT_THAT(message(good.certificate + "-----BEGIN CERTI"), HasSubstr("in the middle"));
  std::string damaged = chain;
  damaged[good.certificate.size() + 60] = '!';
  EXPECT_THAT(message(damaged), HasSubstr("has a damaged certificate after 1"));
  EXPECT_THAT(message(good.certificate + '\0'), HasSubstr("NUL byte"));
  EXPECT_THAT(message(""), HasSubstr("contains no PEM certificate"));
  EXPECT_THAT(message(std::string((1 << 20) + 1, 'x')), HasSubstr("must have at most 1048576"));
}

}  // namespace
}  // namespace lssar
