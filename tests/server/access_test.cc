// API keys end to end: roles, rates, reload; no log line contains a key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "server/auth/access_control.h"
#include "server/http/blocking_client.h"
#include "tests/server/poll_until.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kUser[] = "user-key-of-sixteen";
constexpr char kAdmin[] = "admin-key-of-sixteen";

class AccessTest : public testing::Test {
 protected:
  AccessTest() { Write(Section("alice", kUser) + Section("root", kAdmin, "role = \"admin\"\n")); }

  static std::string Section(const std::string& name, const std::string& key,
                             const std::string& more = "") {
    return "[" + name + "]\nkey = \"" + key + "\"\n" + more;
  }

  // Replaces the file, as editors do.
  void Write(const std::string& text) const { directory_.Write("keys.toml", text); }

  TestServer::Adjust WithKeys() const {
    return [this](ServerOptions& options) { options.api_keys = path_; };
  }

  static Generated GenerateAs(TestServer& server, const std::string& key, int max_tokens = 1) {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    v1::GenerateRequest request;
    request.set_text("Hello");
    request.set_max_tokens(max_tokens);
    request.set_ignore_eos(true);
    return Generate(server.Stub(), request, context);
  }

  static grpc::Status StatsAs(TestServer& server, const std::string& key) {
    grpc::ClientContext context;
    if (!key.empty()) context.AddMetadata("authorization", "Bearer " + key);
    v1::GetStatsReply reply;
    return server.Stub().GetStats(&context, {}, &reply);
  }

  const ScratchDirectory directory_;
  const std::string path_ = directory_.Path("keys.toml");
};

TEST_F(AccessTest, CallsRequireAKnownKeyWithTheRequiredRole) {
  TestServer server({.max_model_len = 2048}, WithKeys());
  const Generated none = GenerateAs(server, "");
  EXPECT_EQ(none.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(none.status.error_message(), HasSubstr("authorization: Bearer KEY"));
  const Generated unknown = GenerateAs(server, "some-other-key-than-those");
  EXPECT_EQ(unknown.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(unknown.status.error_message(), Not(HasSubstr("some-other-key")));
  EXPECT_TRUE(GenerateAs(server, kUser).status.ok());
  EXPECT_TRUE(GenerateAs(server, kAdmin).status.ok());

  EXPECT_EQ(StatsAs(server, "").error_code(), grpc::StatusCode::UNAUTHENTICATED);
  const grpc::Status denied = StatsAs(server, kUser);
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(denied.error_message(), HasSubstr("key alice has role user"));
  EXPECT_TRUE(StatsAs(server, kAdmin).ok());
}

TEST_F(AccessTest, OnlyTheBearerSchemeIsAccepted) {
  TestServer server({.max_model_len = 2048}, WithKeys());
  grpc::ClientContext context;
  context.AddMetadata("authorization", std::string("Basic ") + kUser);
  v1::GetInfoReply reply;
  EXPECT_EQ(server.Stub().GetInfo(&context, {}, &reply).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessTest, HealthNeedsNoKeyAndMetricsNeedAnAdminKey) {
  TestServer server({.max_model_len = 2048}, WithKeys());
  EXPECT_EQ(CheckHealth(server.NewChannel(), ""), kServing);
  const auto get = [&server](const std::string& path, const std::string& key) {
    std::vector<HttpHeader> headers;
    if (!key.empty()) headers.push_back({.name = "Authorization", .value = "Bearer " + key});
    return SendRequest({.host = "127.0.0.1", .port = server.GetServer().HttpPort()}, "GET", path,
                       headers)
        .value();
  };
  EXPECT_EQ(get("/healthz", "").status, 200);
  EXPECT_EQ(get("/readyz", "").status, 200);
  const HttpReply none = get("/metrics", "");
  EXPECT_EQ(none.status, 401);
  EXPECT_EQ(HeaderOf(none, "www-authenticate"), "Bearer");
  EXPECT_EQ(get("/metrics", kUser).status, 403);
  const HttpReply page = get("/metrics", kAdmin);
  EXPECT_EQ(page.status, 200);
  EXPECT_THAT(page.body, HasSubstr("lssar_num_requests_running"));
}

TEST_F(AccessTest, AChangedKeyFileAppliesWithoutARestart) {
  TestServer server({.max_model_len = 2048}, WithKeys());
  ASSERT_TRUE(GenerateAs(server, kUser).status.ok());
  const auto wait_until = [&server](const std::string& key, grpc::StatusCode code) {
    return PollUntil([&] { return GenerateAs(server, key).status.error_code() == code; });
  };
  Write(Section("alice", "another-key-of-alice"));
  EXPECT_TRUE(wait_until(kUser, grpc::StatusCode::UNAUTHENTICATED));
  EXPECT_TRUE(GenerateAs(server, "another-key-of-alice").status.ok());
  // An unreadable file changes nothing.
  Write("[alice\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_TRUE(GenerateAs(server, "another-key-of-alice").status.ok());
}

TEST_F(AccessTest, ConcurrentCallsOfAKeyAreBoundedAndReleasedBeforeTheCallEnds) {
  Write(Section("alice", kUser, "max-concurrent = 1\n"));
  TestServer server({.max_model_len = 2048}, WithKeys());
  // In sequence: no call counts the one before it.
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(GenerateAs(server, kUser).status.ok()) << i;
  server.Hold();
  grpc::ClientContext context;
  context.AddMetadata("authorization", std::string("Bearer ") + kUser);
  v1::GenerateRequest request;
  request.set_text("Hello");
  const auto reader = server.Stub().Generate(&context, request);
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  const Generated refused = GenerateAs(server, kUser);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("max-concurrent = 1"));
  server.Release();
  while (reader->Read(&reply)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(GenerateAs(server, kUser).status.ok());
}

TEST_F(AccessTest, KeyRatesCountRequestsAndTokens) {
  Write(Section("few", kUser, "requests-per-minute = 1\n") +
        Section("short", kAdmin, "tokens-per-minute = 100\n"));
  TestServer server({.max_model_len = 2048}, WithKeys());
  // The buckets refill; what follows would need most of a minute of it.
  EXPECT_TRUE(GenerateAs(server, kUser).status.ok());
  const Generated second = GenerateAs(server, kUser);
  EXPECT_EQ(second.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(second.status.error_message(), HasSubstr("requests-per-minute = 1"));
  EXPECT_THAT(second.status.error_details(), HasSubstr("google.rpc.RetryInfo"));

  const Generated large = GenerateAs(server, kAdmin, 200);
  EXPECT_EQ(large.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(large.status.error_message(), HasSubstr("and key short has tokens-per-minute = 100"));
  // What a call has reserved and not used comes back.
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(GenerateAs(server, kAdmin, 14).status.ok()) << i;
  EXPECT_THAT(GenerateAs(server, kAdmin, 95).status.error_message(),
              HasSubstr("more than is left of tokens-per-minute = 100"));
}

TEST_F(AccessTest, SequencesAndPriorityOfAKeyAreBounded) {
  Write(Section("alice", kUser, "max-sequences = 2\nmax-priority = 0\n") +
        Section("root", kAdmin, "role = \"admin\"\n"));
  TestServer server({.max_model_len = 2048}, WithKeys());
  v1::GenerateRequest request;
  request.set_text("Hello");
  request.set_max_tokens(1);
  const auto generate = [&](const std::string& key) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + key);
    return Generate(server.Stub(), request, context).status;
  };
  request.set_n(3);
  EXPECT_EQ(generate(kUser).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(generate(kUser).error_message(), "n = 3 is over max-sequences = 2 of key alice");
  EXPECT_TRUE(generate(kAdmin).ok());
  request.set_n(2);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(generate(kUser).ok()) << "no call counts the one before";
  request.set_priority(1);
  EXPECT_EQ(generate(kUser).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(generate(kUser).error_message(),
            "priority = 1 (over HTTP -1) is over "
            "max-priority = 0 of key alice");
  EXPECT_TRUE(generate(kUser).error_details().empty()) << "no retry can pass";
  EXPECT_TRUE(generate(kAdmin).ok());
}

TEST_F(AccessTest, AKeyDoesNotLearnTheLoadOfOthers) {
  TestServer server({.max_model_len = 2048}, WithKeys());
  const auto info = [&](const std::string& key) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + key);
    v1::GetInfoReply reply;
    EXPECT_TRUE(server.Stub().GetInfo(&context, {}, &reply).ok());
    return reply;
  };
  EXPECT_GT(info(kAdmin).num_free_pages(), 0);
  EXPECT_EQ(info(kUser).num_free_pages(), 0);
  EXPECT_EQ(info(kUser).num_pages(), info(kAdmin).num_pages());
}

TEST_F(AccessTest, AnInvalidKeyFileFailsTheStart) {
  ServerOptions options;
  options.listen = options.http_listen = "";
  options.log_level = "off";
  options.api_keys = "/nowhere.toml";
  EXPECT_EQ(Server::Open(options).status().code(), absl::StatusCode::kNotFound);
  Write("[alice]\nkey = \"short\"\n");
  options.api_keys = path_;
  const absl::Status status = Server::Open(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("[alice]: key must have 16 to 256"));
}

}  // namespace
}  // namespace lssar
