// TLS and mutual TLS: who gets in, and certificates that change under a running server.
#include "server/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/server/certificates.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

class TlsTest : public testing::Test {
 protected:
  TlsTest() {
    std::filesystem::create_directories(directory_);
    Write("ca.pem", authority_.certificate);
    Serve(MakeCertificate("first", authority_));
  }

  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(directory_ + "/next") << text;
    std::filesystem::rename(directory_ + "/next", Path(name));
  }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
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

  // How a call over such a connection ends; a new connection each time.
  static grpc::Status Call(const TestServer& server,
                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = grpc::CreateCustomChannel(
        "localhost:" + std::to_string(const_cast<TestServer&>(server).Server().Port()), credentials,
        arguments);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::GetInfoReply reply;
    return v1::Inference::NewStub(channel)->GetInfo(&context, {}, &reply);
  }
  static std::shared_ptr<grpc::ChannelCredentials> Trusting(const Certificate& authority,
                                                            const Certificate& own = {}) {
    return grpc::SslCredentials({.pem_root_certs = authority.certificate,
                                 .pem_private_key = own.key,
                                 .pem_cert_chain = own.certificate});
  }

  const std::string directory_ =
      testing::TempDir() + "/" + testing::UnitTest::GetInstance()->current_test_info()->name();
  const Certificate authority_ = MakeAuthority("authority");
  const Certificate stranger_ = MakeAuthority("stranger");
};

TEST_F(TlsTest, OnlyThoseThatTrustTheServerAndSpeakTlsGetIn) {
  const TestServer server({.max_context = 2048}, WithTls());
  const grpc::Status status = Call(server, Trusting(authority_));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Call(server, Trusting(stranger_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(server, grpc::InsecureChannelCredentials()).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, AClientCertificateIsAskedForWhereThereIsAClientCa) {
  const TestServer server({.max_context = 2048}, WithTls(/*with_client_ca=*/true));
  const grpc::Status status =
      Call(server, Trusting(authority_, MakeCertificate("client", authority_)));
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Call(server, Trusting(authority_)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Call(server, Trusting(authority_, MakeCertificate("client", stranger_))).error_code(),
            grpc::StatusCode::UNAVAILABLE);
}

TEST_F(TlsTest, ACertificateThatChangesIsServedToTheNextConnections) {
  const TestServer server({.max_context = 2048}, WithTls());
  ASSERT_TRUE(Call(server, Trusting(authority_)).ok());
  Serve(MakeCertificate("second", stranger_));
  bool is_changed = false;
  for (int i = 0; i < 100 && !is_changed; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    is_changed = Call(server, Trusting(stranger_)).ok();
  }
  EXPECT_TRUE(is_changed);
  EXPECT_FALSE(Call(server, Trusting(authority_)).ok());
}

TEST_F(TlsTest, FilesThatAreNoneAreNamed) {
  const auto message = [](const TlsFiles& files) {
    return std::string(MakeCredentials(files).status().message());
  };
  TlsFiles files = Files(/*with_client_ca=*/true);
  EXPECT_TRUE(MakeCredentials(files).ok());
  files.certificate = Path("none.pem");
  EXPECT_EQ(MakeCredentials(files).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(message(files), HasSubstr("--tls-cert " + Path("none.pem") + ": the file cannot be"));
  files.certificate = Path("key.pem");
  EXPECT_THAT(message(files), HasSubstr("key.pem holds no PEM certificate"));
  files = Files(true);
  files.key = Path("ca.pem");
  EXPECT_THAT(message(files), HasSubstr("--tls-key " + Path("ca.pem") + " holds no PEM key"));
  Write("other.pem", MakeCertificate("other", authority_).key);
  files.key = Path("other.pem");
  EXPECT_THAT(message(files), HasSubstr("is not the key of --tls-cert"));
  files = Files(true);
  files.client_ca = Path("key.pem");
  EXPECT_THAT(message(files), HasSubstr("--tls-client-ca"));
}

}  // namespace
}  // namespace lssar
