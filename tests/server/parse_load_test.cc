// A server that is busy with parsing: health, cancel, deadline, drain, keys, and the neighbours.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "runtime/limits.h"
#include "server/api/worker_pool.h"
#include "server/http/blocking_client.h"
#include "tests/server/poll_until.h"
#include "tests/server/raw_call.h"
#include "tests/server/tcp_client.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// The most that Tokenize takes.
const std::string& LongText() {
  static const std::string text = [] {
    std::string words;
    while (words.size() < limits::kMaxTokenizeBytes - 64) words += "Once upon a time, a cat sat. ";
    return words;
  }();
  return text;
}

// Tokenize calls whose texts the server holds, each on its own connection. The destructor cancels
// them.
class LongCalls {
 public:
  LongCalls(TestServer& server, int count) {
    server.HoldTexts();
    for (int i = 0; i < count; ++i) {
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
      ends_.push_back(std::async(std::launch::async, [&server, context = contexts_.back().get()] {
        v1::TokenizeRequest request;
        request.set_text(LongText());
        v1::TokenizeReply reply;
        const auto stub = v1::Inference::NewStub(server.NewChannel());
        return stub->Tokenize(context, request, &reply);
      }));
    }
  }
  ~LongCalls() {
    for (const auto& context : contexts_) context->TryCancel();
  }
  bool IsRunning(size_t i) {
    return ends_[i].wait_for(milliseconds(0)) == std::future_status::timeout;
  }
  // The index of a call that has ended.
  size_t WaitForOne() {
    size_t i = 0;
    while (IsRunning(i)) {
      i = (i + 1) % ends_.size();
      std::this_thread::sleep_for(milliseconds(1));
    }
    return i;
  }
  void Cancel(size_t i) { contexts_[i]->TryCancel(); }
  grpc::Status Finish(size_t i) { return ends_[i].get(); }

 private:
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::vector<std::future<grpc::Status>> ends_;
};

TEST(ParseLoadTest, HealthAndSmallCallsAnswerWhileLongTextsAreTokenized) {
  TestServer server;
  const auto channel = server.NewChannel();
  EXPECT_EQ(CheckHealth(channel, ""), kServing);
  LongCalls calls(server, 6);
  ASSERT_TRUE(PollUntil([&] { return server.NumHeldTexts() > 0; }));
  // The texts are held all the time: what waits for them gets no answer.
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(CheckHealth(channel, ""), kServing);
    EXPECT_EQ(server.Get("/healthz").status, 200);
    EXPECT_TRUE(Generate(server.Stub(), HelloRequest(1)).status.ok());
  }
  // Both a call that runs and one that waits for a worker end when they are cancelled.
  for (size_t i = 0; i < 6; ++i) calls.Cancel(i);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(calls.Finish(i).error_code(), grpc::StatusCode::CANCELLED);
  }
  // The workers are free again.
  EXPECT_TRUE(PollUntil([&] { return server.NumHeldTexts() == 0; }));
  server.ReleaseTexts();
  v1::TokenizeRequest request;
  request.set_text(LongText().substr(0, 100'000));
  v1::TokenizeReply reply;
  grpc::ClientContext context;
  EXPECT_TRUE(server.Stub().Tokenize(&context, request, &reply).ok());
}

TEST(ParseLoadTest, ADeadlineEndsParsing) {
  TestServer server;
  server.HoldTexts();
  v1::TokenizeRequest request;
  request.set_text(LongText());
  v1::TokenizeReply reply;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  EXPECT_EQ(server.Stub().Tokenize(&context, request, &reply).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  const HttpTarget endpoint = {.host = "127.0.0.1", .port = server.GetServer().HttpPort()};
  const auto late = SendRequest(endpoint, "POST", "/tokenize", {{"X-Request-Timeout", "0.1"}},
                                "{\"prompt\": \"" + LongText() + "\"}");
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->status, 504) << late->body.substr(0, 300);
  EXPECT_THAT(late->body, HasSubstr("deadline_exceeded"));
  for (const char* value : {"soon", "-1", "0", "nan", "1e9"}) {
    const auto bad =
        SendRequest(endpoint, "POST", "/tokenize", {{"X-Request-Timeout", value}}, "{}");
    ASSERT_TRUE(bad.ok()) << bad.status();
    EXPECT_EQ(bad->status, 400) << value;
    EXPECT_THAT(bad->body, HasSubstr("X-Request-Timeout is"));
  }
}

TEST(ParseLoadTest, ACallThatWaitsForAWorkerEndsAtItsDeadline) {
  TestServer server;
  // As many as are parsed at a time: one worker is for short texts.
  const WorkerPool::Options pool = WorkerPool::OptionsFor(/*max_calls=*/1);
  const int num_held =
      std::min(pool.num_threads - 1, int(pool.max_running_bytes / limits::kMaxTokenizeBytes));
  LongCalls calls(server, num_held);
  ASSERT_TRUE(PollUntil([&] { return server.NumHeldTexts() == num_held; }));
  const HttpTarget endpoint = {.host = "127.0.0.1", .port = server.GetServer().HttpPort()};
  const auto late = SendRequest(endpoint, "POST", "/tokenize", {{"X-Request-Timeout", "0.1"}},
                                "{\"prompt\": \"" + LongText() + "\"}");
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->status, 504) << late->body.substr(0, 300);
  EXPECT_THAT(late->body, HasSubstr("before the request was parsed"));
  EXPECT_EQ(server.NumHeldTexts(), num_held);
}

TEST(ParseLoadTest, TheEngineKeepsAnHttpDeadline) {
  TestServer server;
  server.SetStepMs(20);
  const HttpTarget endpoint = {.host = "127.0.0.1", .port = server.GetServer().HttpPort()};
  const auto late =
      SendRequest(endpoint, "POST", "/v1/completions", {{"X-Request-Timeout", "0.2"}},
                  "{\"prompt\": \"Hello\", \"max_tokens\": 1000, \"ignore_eos\": true}");
  ASSERT_TRUE(late.ok()) << late.status();
  EXPECT_EQ(late->status, 504) << late->body;
}

TEST(ParseLoadTest, ADrainEndsWithinItsTimeoutWhileTextsAreTokenized) {
  TestServer server({.max_model_len = 2048}, [](ServerOptions& options) { options.max_calls = 3; });
  LongCalls calls(server, 4);
  // When one is refused, the three others run. One that came during the drain would not count.
  const size_t refused = calls.WaitForOne();
  EXPECT_EQ(calls.Finish(refused).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(server.GetServer().Shutdown(absl::Milliseconds(300)));
  for (size_t i = 0; i < 4; ++i) {
    if (i == refused) continue;
    EXPECT_EQ(calls.Finish(i).error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

// What the server sends before it closes the connection, or `enough` of it.
std::string RawReply(int port, const std::string& request, const std::string& enough) {
  const int client = ConnectTo(port);
  EXPECT_EQ(send(client, request.data(), request.size(), 0), std::ssize(request));
  const timeval limit = {.tv_sec = 120, .tv_usec = 0};
  setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  std::string reply(4096, '\0');
  size_t size = 0;
  while (size < reply.size() && reply.find(enough) == std::string::npos) {
    const ssize_t count = recv(client, reply.data() + size, reply.size() - size, 0);
    if (count < 0 && errno == EINTR) continue;  // a stop of the process interrupts it
    if (count <= 0) break;
    size += size_t(count);
  }
  close(client);
  reply.resize(size);
  return reply;
}

class KeyedParseLoadTest : public testing::Test {
 protected:
  // Prompt tokens that came from the prefix cache.
  static int64_t NumCached(TestServer& server, const std::string& key) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + key);
    v1::GenerateRequest request = HelloRequest(1);
    for (int i = 0; i < 200; ++i) request.mutable_tokens()->add_ids(20 + i % 7);
    const Generated generated = Generate(server.Stub(), request, context);
    EXPECT_TRUE(generated.status.ok()) << generated.status.error_message();
    return generated.replies.empty() ? -1 : generated.replies[0].started().num_cached_tokens();
  }

  const ScratchDirectory directory_;
  const std::string path_ = directory_.Write("keys.toml",
                                             "[alice]\nkey = \"alice-key-of-sixteen\"\n"
                                             "[bob]\nkey = \"bob-key-of-sixteen-too\"\n");
  const std::string alice_ = "alice-key-of-sixteen";
  const std::string bob_ = "bob-key-of-sixteen-too";
};

TEST_F(KeyedParseLoadTest, AKeyIsCheckedBeforeTheBodyIsSent) {
  TestServer server({.max_model_len = 2048},
                    [this](ServerOptions& options) { options.api_keys = path_; });
  const int port = server.GetServer().HttpPort();
  // No byte of the body follows.
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 30000000\r\n";
  const std::string reply = RawReply(port, head + "\r\n", "invalid_api_key");
  EXPECT_THAT(reply, HasSubstr("HTTP/1.1 401"));
  EXPECT_THAT(reply, HasSubstr("invalid_api_key"));
  EXPECT_THAT(reply, HasSubstr("X-Request-Id: "));
  const std::string welcome = RawReply(
      port, head + "Authorization: Bearer " + alice_ + "\r\nExpect: 100-continue\r\n\r\n", "100");
  EXPECT_THAT(welcome, HasSubstr("HTTP/1.1 100 Continue"));
}

TEST_F(KeyedParseLoadTest, ACompressedBodyIsRefusedAndARangeIgnored) {
  TestServer server;
  const int port = server.GetServer().HttpPort();
  for (const std::string coding : {"br", "gzip", "deflate", "zstd", "GZip, br"}) {
    const std::string reply =
        RawReply(port,
                 "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                 "3233\r\nContent-Encoding: " +
                     coding + "\r\n\r\n",
                 "unsupported_media_type");
    EXPECT_THAT(reply, HasSubstr("HTTP/1.1 415")) << coding;
    EXPECT_THAT(reply, HasSubstr("unsupported_media_type")) << coding;
  }
  std::string ranges = "Range: bytes=0-0";
  for (int i = 0; i < 1500; ++i) ranges += ",0-9";
  const std::string reply = RawReply(
      port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + ranges + "\r\n\r\n", "\r\n\r\n");
  EXPECT_THAT(reply, HasSubstr("HTTP/1.1 200 OK"));
  EXPECT_THAT(reply, testing::Not(HasSubstr("Content-Range")));
}

TEST_F(KeyedParseLoadTest, CachedPrefixesAreNotSharedBetweenKeys) {
  TestServer server({.max_model_len = 2048},
                    [this](ServerOptions& options) { options.api_keys = path_; });
  EXPECT_EQ(NumCached(server, alice_), 0);
  EXPECT_GT(NumCached(server, alice_), 0);
  EXPECT_EQ(NumCached(server, bob_), 0) << "the time of a call shows what another key has sent";
  EXPECT_GT(NumCached(server, bob_), 0);
}

TEST_F(KeyedParseLoadTest, AnOperatorMayShareThem) {
  TestServer server({.max_model_len = 2048}, [this](ServerOptions& options) {
    options.api_keys = path_;
    options.share_prefix_cache_between_keys = true;
  });
  EXPECT_EQ(NumCached(server, alice_), 0);
  EXPECT_GT(NumCached(server, bob_), 0);
}

}  // namespace
}  // namespace lssar
