// Generate over real gRPC on loopback, against a model whose speed the test sets.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/config/limits.h"
#include "tests/server/poll_until.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

v1::GenerateRequest Request(int max_tokens) {
  v1::GenerateRequest request = HelloRequest(max_tokens);
  request.mutable_sampling()->set_seed(5);
  return request;
}

TEST(GenerateTest, StartedComesFirstThenDeltasThenFinished) {
  TestServer server;
  v1::GenerateRequest request = Request(12);
  request.set_logprobs(2);
  const Generated generated = Generate(server.Stub(), request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  ASSERT_GE(generated.replies.size(), 3u);
  const v1::Started& started = generated.replies.front().started();
  EXPECT_EQ(started.checkpoint_hash(), "0123456789abcdef");
  EXPECT_EQ(started.seed(), 5u);
  EXPECT_GT(started.num_prompt_tokens(), 1);
  EXPECT_FALSE(started.request_id().empty());
  const v1::Finished& finished = generated.replies.back().finished();
  EXPECT_EQ(finished.usage().num_generated_tokens(), 12);
  EXPECT_EQ(finished.usage().num_prompt_tokens(), started.num_prompt_tokens());
  EXPECT_GT(finished.usage().num_value_rows(), 0);
  EXPECT_EQ(generated.Deltas().back().finish_reason(), v1::FINISH_REASON_LENGTH);

  const std::vector<v1::Token> tokens = generated.Tokens();
  ASSERT_EQ(tokens.size(), 12u);
  for (const v1::Token& token : tokens) {
    EXPECT_TRUE(token.token().has_logprob());
    EXPECT_LT(token.token().logprob(), 0.0f);
    ASSERT_EQ(token.top_size(), 2);
    EXPECT_GE(token.top(0).logprob(), token.top(1).logprob());
  }
  // The streamed text equals the text of the tokens.
  v1::DetokenizeRequest detokenize;
  for (const int32_t id : IdsOf(tokens)) detokenize.add_ids(id);
  grpc::ClientContext context;
  v1::DetokenizeReply whole;
  ASSERT_TRUE(server.Stub().Detokenize(&context, detokenize, &whole).ok());
  EXPECT_THAT(generated.Text(), HasSubstr(whole.text()));
}

TEST(GenerateTest, LogprobsAreUnsetUnlessRequested) {
  TestServer server;
  const Generated generated = Generate(server.Stub(), Request(3));
  ASSERT_EQ(generated.Tokens().size(), 3u);
  for (const v1::Token& token : generated.Tokens()) EXPECT_FALSE(token.token().has_logprob());
}

TEST(GenerateTest, TheSameSeedGivesTheSameTextAndTheServerReturnsItsSeed) {
  TestServer server;
  v1::GenerateRequest request = Request(16);
  request.mutable_sampling()->clear_seed();
  const Generated first = Generate(server.Stub(), request);
  ASSERT_TRUE(first.status.ok());
  request.mutable_sampling()->set_seed(first.replies.front().started().seed());
  EXPECT_EQ(IdsOf(Generate(server.Stub(), request).Tokens()), IdsOf(first.Tokens()));
}

TEST(GenerateTest, StreamIntervalMergesStepsIntoOneDelta) {
  TestServer server;
  v1::GenerateRequest request = Request(20);
  const std::vector<int32_t> ids = IdsOf(Generate(server.Stub(), request).Tokens());
  request.set_stream_interval(8);
  server.Hold();
  grpc::ClientContext context;
  const auto reader = server.Stub().Generate(&context, request);
  Generated generated;
  v1::GenerateReply& reply = generated.replies.emplace_back();
  ASSERT_TRUE(reader->Read(&reply));
  EXPECT_TRUE(reply.has_started());
  // The next steps begin when the delta has been read: no write is merged with another.
  for (const int num_tokens : {8, 8, 4}) {
    server.Pass(num_tokens);
    v1::GenerateReply& next = generated.replies.emplace_back();
    ASSERT_TRUE(reader->Read(&next));
    EXPECT_EQ(next.delta().tokens_size(), num_tokens);
  }
  server.Release();
  EXPECT_EQ(IdsOf(generated.Tokens()), ids);
  while (reader->Read(&generated.replies.emplace_back())) continue;
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(GenerateTest, EchoStartsEveryChoiceWithThePrompt) {
  TestServer server;
  v1::GenerateRequest request = Request(4);
  request.set_n(3);
  const Generated plain = Generate(server.Stub(), request);
  request.set_echo(true);
  const Generated echoed = Generate(server.Stub(), request);
  for (int choice = 0; choice < 3; ++choice) {
    EXPECT_EQ(echoed.Text(choice), "Hello" + plain.Text(choice));
    EXPECT_EQ(echoed.Deltas(choice).back().finish_reason(), v1::FINISH_REASON_LENGTH);
  }
  EXPECT_NE(IdsOf(plain.Tokens(0)), IdsOf(plain.Tokens(1)));
  EXPECT_EQ(echoed.replies.back().finished().usage().num_generated_tokens(), 12);
}

TEST(GenerateTest, PromptLogprobsArriveInBlocksBeforeTheFirstDelta) {
  TestServer server;
  v1::GenerateRequest request = Request(2);
  for (int i = 0; i < 1300; ++i) request.mutable_tokens()->add_ids(3 + i);
  request.set_prompt_logprobs(1);
  const Generated generated = Generate(server.Stub(), request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  int next = 1;
  bool has_delta = false;
  for (const v1::GenerateReply& reply : generated.replies) {
    has_delta |= reply.has_delta();
    if (!reply.has_prompt_logprobs()) continue;
    EXPECT_FALSE(has_delta);
    EXPECT_EQ(reply.prompt_logprobs().first(), next);
    EXPECT_LE(reply.prompt_logprobs().tokens_size(), limits::kMaxTokensPerMessage);
    for (const v1::Token& token : reply.prompt_logprobs().tokens()) {
      EXPECT_EQ(token.token().id(), 3 + next);
      EXPECT_TRUE(token.token().has_logprob());
      EXPECT_EQ(token.top_size(), 1);
      ++next;
    }
  }
  EXPECT_EQ(next, 1300);
}

// The engine never waits for a client: unread replies merge into fewer messages.
TEST(GenerateTest, ASlowReaderGetsEverythingInFewerMessages) {
  TestServer server;
  v1::GenerateRequest request = Request(1500);
  request.set_logprobs(20);  // about 400 bytes per token: many times the connection's window
  grpc::ChannelArguments small_window;
  small_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  small_window.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 16 << 10);
  const auto stub = v1::Inference::NewStub(server.NewChannel(small_window));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  // The engine finishes while only the first message is read.
  ASSERT_TRUE(server.WaitUntilIdle());
  int num_deltas = 0;
  int num_tokens = 0;
  while (reader->Read(&reply)) {
    if (!reply.has_delta()) continue;
    ++num_deltas;
    num_tokens += reply.delta().tokens_size();
    EXPECT_LE(reply.delta().tokens_size(), limits::kMaxTokensPerMessage);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(num_tokens, 1500);
  EXPECT_LT(num_deltas, 1400);
}

TEST(GenerateTest, AnInvalidFieldFailsBeforeTheFirstMessage) {
  TestServer server;
  v1::GenerateRequest request = Request(4);
  request.mutable_sampling()->set_top_p(1.5f);
  const Generated generated = Generate(server.Stub(), request);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(generated.status.error_message(), "sampling.top_p is 1.5; it must be in [0, 1]");
  EXPECT_TRUE(generated.replies.empty());
}

TEST(GenerateTest, AFieldThatIsNotUtf8IsNamed) {
  TestServer server;
  RawCall call(server.NewChannel(), "/lssar.v1.Inference/Generate",
               "\x0a\x03"
               "ab\xff");
  EXPECT_FALSE(call.Read().has_value());
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "text is not UTF-8 at byte 2");
  // In a nested message.
  RawCall chat(server.NewChannel(), "/lssar.v1.Inference/Generate", "\x1a\x05\x0a\x03\x12\x01\xfe");
  EXPECT_FALSE(chat.Read().has_value());
  EXPECT_EQ(chat.Finish().error_message(), "chat.messages.content is not UTF-8 at byte 0");
}

TEST(GenerateTest, BytesThatAreNotAMessageAreRejected) {
  TestServer server;
  RawCall call(server.NewChannel(), "/lssar.v1.Inference/Generate", "\x0a\x7f");
  EXPECT_FALSE(call.Read().has_value());
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("not a lssar.v1.GenerateRequest"));
}

TEST(GenerateTest, AMessageOverTheLimitIsRejectedWithBothSizes) {
  TestServer server;
  v1::GenerateRequest request = Request(4);
  request.set_text(std::string(limits::kMaxMessageBytes, 'x'));
  const Generated generated = Generate(server.Stub(), request);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("33554432"));
}

TEST(GenerateTest, ACancelFreesThePages) {
  TestServer server;
  server.SetStepMs(5);
  grpc::ClientContext context;
  const auto reader = server.Stub().Generate(&context, Request(1000));
  v1::GenerateReply reply;
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(reader->Read(&reply));
  server.Hold();
  EXPECT_EQ(server.Describe().num_running(), 1);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server.Release();
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(GenerateTest, ALostConnectionFreesThePages) {
  TestServer server;
  server.SetStepMs(5);
  {
    RawCall call(server.NewChannel(), "/lssar.v1.Inference/Generate",
                 Request(1000).SerializeAsString());
    ASSERT_TRUE(call.Read().has_value());
    // The first reply comes before the request has pages.
    EXPECT_TRUE(server.WaitFor(
        [](const auto& reply) { return reply.num_free_pages() < reply.num_pages(); }));
  }
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(GenerateTest, ADeadlineEndsTheCallAndFreesItsPages) {
  TestServer server;
  server.SetStepMs(5);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(1));
  const Generated generated = Generate(server.Stub(), Request(1000), context);
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(GenerateTest, NanLogitsEndOnlyTheirRequestWithDataLoss) {
  TestServer server;
  v1::GenerateRequest poisoned = Request(4);
  poisoned.mutable_tokens()->add_ids(TestServer::kPoisonId);
  EXPECT_EQ(Generate(server.Stub(), poisoned).status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(Generate(server.Stub(), Request(4)).status.ok());
}

// 200 requests on a queue of 64: those that do not fit get a retry delay, all others finish.
TEST(GenerateTest, AFullQueueRejectsWithRetryInfoAndTheOthersFinish) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 4, .max_queued_requests = 64});
  server.Hold();
  constexpr int kNumCalls = 200;
  constexpr int kNumFinished = 1 + 64;
  std::vector<std::future<Generated>> calls;
  const auto start = [&] {
    calls.push_back(
        std::async(std::launch::async, [&server] { return Generate(server.Stub(), Request(4)); }));
  };
  // The first one runs before the others come, so the engine takes none of them from the queue.
  start();
  EXPECT_TRUE(server.WaitFor([](const auto& reply) { return reply.num_running() == 1; }));
  while (calls.size() < kNumCalls) start();
  // Requests over the limit are rejected at once, while the others are blocked.
  const auto num_ended = [&] {
    return std::ranges::count_if(calls, [](const auto& call) {
      return call.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
    });
  };
  EXPECT_TRUE(PollUntil([&] { return num_ended() == kNumCalls - kNumFinished; })) << num_ended();
  EXPECT_EQ(server.Describe().num_waiting(), 64);
  server.Release();
  int num_finished = 0;
  for (auto& call : calls) {
    const Generated generated = call.get();
    if (generated.status.ok()) {
      ++num_finished;
      EXPECT_EQ(generated.Tokens().size(), 4u);
      continue;
    }
    ASSERT_EQ(generated.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    google::rpc::Status details;
    ASSERT_TRUE(details.ParseFromString(generated.status.error_details()));
    ASSERT_EQ(details.details_size(), 2);
    google::rpc::RetryInfo retry;
    ASSERT_TRUE(details.details(0).UnpackTo(&retry));
    EXPECT_GT(retry.retry_delay().nanos(), 0);
    google::rpc::ErrorInfo info;
    ASSERT_TRUE(details.details(1).UnpackTo(&info));
    EXPECT_EQ(info.reason(), "QUEUED_REQUESTS");
  }
  EXPECT_EQ(num_finished, kNumFinished);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(GenerateTest, ValidRequestIdsAreKeptAndOthersReplaced) {
  TestServer server;
  grpc::ClientContext safe;
  safe.AddMetadata("x-request-id", "trace-17.a_B");
  EXPECT_EQ(Generate(server.Stub(), Request(1), safe).replies.front().started().request_id(),
            "trace-17.a_B");
  for (const std::string& unsafe :
       {std::string("a b"), std::string("\"},"), std::string(65, 'x')}) {
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", unsafe);
    const Generated generated = Generate(server.Stub(), Request(1), context);
    EXPECT_NE(generated.replies.front().started().request_id(), unsafe);
  }
}

}  // namespace
}  // namespace lssar
