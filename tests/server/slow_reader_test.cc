// Clients that do not read: only their own request pauses, and finally it is aborted.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/poll_until.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

constexpr char kGenerate[] = "/lssar.v1.Inference/Generate";
constexpr char kScore[] = "/lssar.v1.Inference/Score";
constexpr char kTokenize[] = "/lssar.v1.Inference/Tokenize";
constexpr char kCapture[] = "/lssar.v1.Inference/CaptureAttention";
constexpr int kNumTokens = 2000;

TestServer::Adjust WithTimeout(absl::Duration timeout) {
  return [timeout](ServerOptions& options) {
    options.stream.buffer_bytes = 16 << 10;
    options.stream.client_timeout = timeout;
  };
}

// With log-probabilities these tokens are about 600 KB: far more than HTTP/2's windows
// and the stream buffer hold.
v1::GenerateRequest LargeRequest() {
  v1::GenerateRequest request;
  request.set_text("Hello");
  request.set_max_tokens(kNumTokens);
  request.set_ignore_eos(true);
  request.set_logprobs(20);
  request.mutable_sampling()->set_seed(5);
  return request;
}

v1::ScoreRequest LargeScore() {
  v1::ScoreRequest request;
  request.set_per_token(true);
  request.set_top_logprobs(20);
  for (int i = 0; i < 8; ++i) {
    v1::ScoreItem& item = *request.add_items();
    item.mutable_context()->mutable_tokens()->add_ids(i + 1);
    for (int j = 0; j < 2; ++j) {
      auto& ids = *item.add_continuations()->mutable_tokens()->mutable_ids();
      for (int k = 0; k < 256; ++k) ids.Add((i * 1000 + j * 100 + k) % 3000);
    }
  }
  return request;
}

// Fixed windows, so that the server detects unread data early.
std::shared_ptr<grpc::Channel> Channel(const TestServer& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return server.NewChannel(arguments);
}

// Waits until the engine idles although a request is running.
bool WaitUntilPaused(TestServer& server) {
  for (int i = 0; i < 2400; ++i) {
    const EngineStats before = server.GetEngine().Stats();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    const EngineStats after = server.GetEngine().Stats();
    if (before.num_running == 1 && after.num_batched_tokens == before.num_batched_tokens)
      return true;
  }
  return false;
}

TEST(SlowReaderTest, OnlyTheSlowRequestPausesAndItResumesWithTheSameTokens) {
  TestServer server({.max_model_len = 8192}, WithTimeout(absl::ZeroDuration()));
  const Generated expected = Generate(server.Stub(), LargeRequest());
  ASSERT_TRUE(expected.status.ok());
  RawCall slow(Channel(server), kGenerate, LargeRequest().SerializeAsString());
  ASSERT_TRUE(WaitUntilPaused(server));
  EXPECT_LT(server.GetEngine().Stats().num_generated_tokens, 2 * kNumTokens);

  v1::GenerateRequest other = LargeRequest();
  other.set_max_tokens(100);
  const Generated others = Generate(server.Stub(), other);
  ASSERT_TRUE(others.status.ok()) << others.status.error_message();
  EXPECT_EQ(others.Tokens().size(), 100u);
  EXPECT_EQ(server.GetEngine().Stats().num_running, 1);

  Generated read;
  while (const auto bytes = slow.Read()) {
    read.replies.emplace_back();
    ASSERT_TRUE(read.replies.back().ParseFromString(*bytes));
  }
  const grpc::Status status = slow.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(IdsOf(read.Tokens()), IdsOf(expected.Tokens()));
  EXPECT_EQ(read.Text(), expected.Text());
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(SlowReaderTest, AScoreCallPauses) {
  TestServer server({.max_model_len = 2048}, WithTimeout(absl::ZeroDuration()));
  const Scored expected = Score(server.Stub(), LargeScore());
  ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
  RawCall slow(Channel(server), kScore, LargeScore().SerializeAsString());
  const int64_t num_rows = server.GetEngine().Stats().num_batched_tokens;
  ASSERT_TRUE(server.WaitFor([](const auto& reply) { return reply.num_running() > 0; }));
  for (int i = 0; i < 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_LT(server.GetEngine().Stats().num_batched_tokens, 2 * num_rows);
  EXPECT_GT(server.GetEngine().Stats().num_running, 0);
  int num_scores = 0;
  v1::ScoreReply reply;
  while (const auto bytes = slow.Read()) {
    ASSERT_TRUE(reply.ParseFromString(*bytes));
    num_scores += reply.has_score();
  }
  EXPECT_TRUE(slow.Finish().ok());
  EXPECT_EQ(num_scores, 16);
  EXPECT_TRUE(server.WaitUntilIdle());
}

// All rows of this prompt have two million keys, a third of them with non-zero weight.
TEST(SlowReaderTest, ACapturePausesAndResumes) {
  TestServer server({.max_model_len = 2048}, WithTimeout(absl::ZeroDuration()));
  v1::CaptureAttentionRequest request;
  for (int row = 0; row < kNumTokens; ++row) {
    request.mutable_tokens()->add_ids(3 + row % 1000);
    request.add_rows(row);
  }
  RawCall slow(Channel(server), kCapture, request.SerializeAsString());
  ASSERT_TRUE(WaitUntilPaused(server));
  EXPECT_LT(server.GetEngine().Stats().num_batched_tokens, kNumTokens);
  int next_row = 0;
  v1::CaptureAttentionReply reply;
  while (const auto bytes = slow.Read()) {
    ASSERT_TRUE(reply.ParseFromString(*bytes));
    for (const v1::RowWeights& row : reply.weights().rows()) EXPECT_EQ(row.row(), next_row++);
  }
  const grpc::Status status = slow.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(next_row, kNumTokens);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(SlowReaderTest, AClientThatStopsReadingIsAbortedAndItsPagesFreed) {
  TestServer server({.max_model_len = 8192}, WithTimeout(absl::Milliseconds(300)));
  RawCall slow(Channel(server), kGenerate, LargeRequest().SerializeAsString());
  slow.Read();
  EXPECT_TRUE(server.WaitUntilIdle());
  // Those that have come; gRPC drops them when it sees the reset.
  while (slow.Read()) continue;
  const grpc::Status status = slow.Finish();
  // Depends on whether the client reads before the reset.
  if (status.error_code() == grpc::StatusCode::ABORTED) {
    EXPECT_THAT(status.error_message(),
                HasSubstr("the client has read nothing for 300ms (--slow-client-timeout)"));
  } else {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST(SlowReaderTest, AClientThatNeverReadsIsResetWithoutLeaks) {
  for (const char* method : {kGenerate, kScore}) {
    TestServer server({.max_model_len = 8192}, WithTimeout(absl::Milliseconds(300)));
    const std::string request =
        method == kGenerate ? LargeRequest().SerializeAsString() : LargeScore().SerializeAsString();
    RawCall slow(Channel(server), method, request);
    EXPECT_TRUE(server.WaitUntilIdle());
    // Waits for all running calls.
    EXPECT_TRUE(server.GetServer().Shutdown(absl::Minutes(2)));
  }
}

TEST(SlowReaderTest, AUnaryReplyThatNobodyReadsIsNotKept) {
  TestServer server({.max_model_len = 8192}, [](ServerOptions& options) {
    options.max_calls = 1;
    options.stream = {.buffer_bytes = 256 << 10, .client_timeout = absl::Milliseconds(600)};
  });
  const auto has_room_for_calls = [&server] {
    v1::TokenizeRequest request;
    request.set_text("a");
    v1::TokenizeReply reply;
    grpc::ClientContext context;
    return server.Stub().Tokenize(&context, request, &reply).ok();
  };
  v1::TokenizeRequest request;
  for (int i = 0; i < 50'000; ++i) *request.mutable_text() += "a b ";
  server.HoldTexts();
  RawCall slow(Channel(server), kTokenize, request.SerializeAsString());
  ASSERT_TRUE(PollUntil([&] { return server.NumHeldTexts() == 1; }));
  EXPECT_FALSE(has_room_for_calls());
  server.ReleaseTexts();
  EXPECT_TRUE(PollUntil(has_room_for_calls)) << "the call is still there";
  EXPECT_FALSE(slow.Read());
  const grpc::Status status = slow.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(status.error_message(), HasSubstr("--slow-client-timeout"));
}

// Reads for about three times `timeout`.
grpc::Status ReadSlowly(std::chrono::seconds timeout, Generated* read) {
  TestServer server({.max_model_len = 8192}, WithTimeout(absl::FromChrono(timeout)));
  RawCall slow(Channel(server), kGenerate, LargeRequest().SerializeAsString());
  EXPECT_TRUE(WaitUntilPaused(server));
  // The server sees reading in units of 64 KiB.
  for (int num_read = 1; const auto bytes = slow.Read(); ++num_read) {
    read->replies.emplace_back();
    EXPECT_TRUE(read->replies.back().ParseFromString(*bytes));
    if (num_read % 10 == 0) std::this_thread::sleep_for(timeout / 50);
  }
  return slow.Finish();
}

TEST(SlowReaderTest, ASlowButReadingClientIsNotAborted) {
  grpc::Status status;
  // To the server a machine that stalls is a client that has stopped: then with more time.
  for (const int seconds : {1, 5, 25}) {
    Generated read;
    status = ReadSlowly(std::chrono::seconds(seconds), &read);
    if (!status.ok()) continue;
    EXPECT_EQ(read.Tokens().size(), size_t(kNumTokens));
    break;
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

}  // namespace
}  // namespace lssar
