// Server::Reload: another model in the served directory.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <string>

#include "tests/server/poll_until.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

constexpr char kFirst[] = "0123456789abcdef", kSecond[] = "1123456789abcdef";

class ReloadTest : public ::testing::Test {
 protected:
  // Makes the directory look as if it had another checkpoint, and reloads it.
  void Reload() {
    directory_.Write("config.json", std::string(++num_changes_, ' '));
    server_.GetServer().Reload();
  }
  bool WaitForHash(const std::string& hash) {
    return server_.WaitFor([&](const auto& info) { return info.checkpoint_hash() == hash; });
  }
  bool WaitForLastReload(double successful) {
    return PollUntil([&] { return server_.Metric("lssar_last_reload_successful") == successful; });
  }

  ScratchDirectory directory_;
  size_t num_changes_ = 0;
  TestServer server_{{.max_model_len = 2048}, [this](ServerOptions& options) {
                       options.model.directory = directory_.Path();
                     }};
};

std::string HashOf(const Generated& generated) {
  return generated.replies.empty() ? "" : generated.replies[0].started().checkpoint_hash();
}

TEST_F(ReloadTest, ARunningCallEndsOnItsModelAndANewOneGetsTheNewModel) {
  server_.Hold();
  grpc::ClientContext context;
  const auto running = server_.Stub().Generate(&context, HelloRequest(1000));
  v1::GenerateReply reply;
  ASSERT_TRUE(running->Read(&reply));
  EXPECT_EQ(reply.started().checkpoint_hash(), kFirst);
  Reload();
  ASSERT_TRUE(WaitForHash(kSecond));
  const Generated beside = Generate(server_.Stub(), HelloRequest(3));
  EXPECT_EQ(HashOf(beside), kSecond);
  server_.Release();
  size_t num_tokens = 0;
  while (running->Read(&reply)) num_tokens += size_t(reply.delta().tokens_size());
  EXPECT_EQ(num_tokens, 1000u);
  EXPECT_TRUE(running->Finish().ok());
  // Streams are written when another engine has taken the place of the first, too.
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(Generate(server_.Stub(), HelloRequest(3)).Tokens().size(), 3u);
  }
  EXPECT_EQ(server_.NumEngineFailures(), 0);
  EXPECT_TRUE(server_.GetServer().Shutdown(absl::Minutes(2)));
}

TEST_F(ReloadTest, AModelThatDoesNotLoadKeepsTheFirst) {
  EXPECT_EQ(server_.Metric("lssar_last_reload_successful"), 1);
  server_.FailLoads(true);
  Reload();
  EXPECT_TRUE(WaitForLastReload(0));
  EXPECT_EQ(HashOf(Generate(server_.Stub(), HelloRequest(1))), kFirst);
  // Another attempt without another change: it may have been for want of memory.
  server_.FailLoads(false);
  server_.GetServer().Reload();
  EXPECT_TRUE(WaitForLastReload(1));
  EXPECT_TRUE(WaitForHash(kSecond));
}

TEST_F(ReloadTest, WithoutAChangeNothingIsLoaded) {
  server_.FailLoads(true);
  Reload();
  ASSERT_TRUE(WaitForLastReload(0));
  std::filesystem::remove(directory_.Path("config.json"));
  server_.GetServer().Reload();
  EXPECT_TRUE(WaitForLastReload(1)) << "a load would have failed";
  EXPECT_EQ(HashOf(Generate(server_.Stub(), HelloRequest(1))), kFirst);
}

TEST_F(ReloadTest, ALoadMeetsNoReloadThatIsLost) {
  TestServer server(TestServer::Loading(), {.max_model_len = 2048}, [this](ServerOptions& options) {
    options.model.directory = directory_.Path();
  });
  // The directory changes while its model is loaded: the first time and in a reload.
  std::atomic<int> num_loads = 0;
  server.on_load = [&] {
    const int number = ++num_loads;
    if (number > 2) return;
    directory_.Write("config.json", std::string(size_t(number), ' '));
    server.GetServer().Reload();
  };
  server.Serve();
  // The second model is refused: its files changed.
  EXPECT_TRUE(server.WaitFor(
      [](const auto& info) { return info.checkpoint_hash() == "2123456789abcdef"; }));
  EXPECT_EQ(num_loads, 3);
}

TEST_F(ReloadTest, AShutdownEndsTheCallsOfBothModels) {
  // Either call would last for minutes.
  server_.SetStepMs(100);
  grpc::ClientContext old_context, new_context;
  const auto old_call = server_.Stub().Generate(&old_context, HelloRequest(2000));
  v1::GenerateReply reply;
  ASSERT_TRUE(old_call->Read(&reply));
  Reload();
  ASSERT_TRUE(WaitForHash(kSecond));
  const auto new_call = server_.Stub().Generate(&new_context, HelloRequest(2000));
  ASSERT_TRUE(new_call->Read(&reply));
  EXPECT_FALSE(server_.GetServer().Shutdown(absl::Milliseconds(20)));
  for (auto* const reader : {old_call.get(), new_call.get()}) {
    while (reader->Read(&reply)) continue;
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_EQ(server_.NumEngineFailures(), 0);
}

}  // namespace
}  // namespace lssar
