// CaptureAttention over real gRPC on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "server/config/limits.h"
#include "tests/server/poll_until.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

struct Captured {
  grpc::Status status;
  std::vector<v1::CaptureAttentionReply> replies;

  std::vector<v1::RowWeights> Rows() const {
    std::vector<v1::RowWeights> rows;
    for (const auto& reply : replies) {
      rows.insert(rows.end(), reply.weights().rows().begin(), reply.weights().rows().end());
    }
    return rows;
  }
};

Captured Capture(v1::Inference::Stub& stub, const v1::CaptureAttentionRequest& request) {
  Captured captured;
  grpc::ClientContext context;
  const auto reader = stub.CaptureAttention(&context, request);
  v1::CaptureAttentionReply reply;
  while (reader->Read(&reply)) captured.replies.push_back(reply);
  captured.status = reader->Finish();
  return captured;
}

v1::CaptureAttentionRequest RequestOf(int num_tokens, std::vector<int> rows = {}) {
  v1::CaptureAttentionRequest request;
  for (int i = 0; i < num_tokens; ++i) request.mutable_tokens()->add_ids(3 + i % 1000);
  for (const int row : rows) request.add_rows(row);
  return request;
}

v1::CaptureAttentionRequest AllRowsOf(int num_tokens) {
  v1::CaptureAttentionRequest request = RequestOf(num_tokens);
  for (int row = 0; row < num_tokens; ++row) request.add_rows(row);
  return request;
}

TEST(CaptureAttentionTest, SendsPromptThenWeightsThenFinished) {
  TestServer server;
  v1::CaptureAttentionRequest request;
  request.set_text("Hello there, how are you?");
  request.add_rows(-1);
  request.add_rows(2);
  const Captured captured = Capture(server.Stub(), request);
  ASSERT_TRUE(captured.status.ok()) << captured.status.error_message();
  ASSERT_GE(captured.replies.size(), 4u);
  const v1::CaptureStarted& started = captured.replies[0].started();
  EXPECT_FALSE(started.request_id().empty());
  EXPECT_EQ(started.checkpoint_hash(), "0123456789abcdef");
  const int num_tokens = started.num_prompt_tokens();
  const v1::PromptTokens& prompt = captured.replies[1].prompt();
  ASSERT_EQ(prompt.tokens_size(), num_tokens);
  std::string text;
  for (int i = 1; i < num_tokens; ++i) text += prompt.tokens(i).piece();  // BOS first
  EXPECT_EQ(text, " Hello there, how are you?");
  const auto rows = captured.Rows();
  ASSERT_EQ(rows.size(), 2u);  // the fake model has one layer of one head
  EXPECT_EQ(rows[0].row(), 2);
  EXPECT_EQ(rows[1].row(), num_tokens - 1);
  for (const v1::RowWeights& row : rows) {
    ASSERT_EQ(row.keys_size(), row.weights_size());
    EXPECT_EQ(row.keys_size(), row.num_nonzero());
    double sum = 0;
    for (int i = 0; i < row.keys_size(); ++i) {
      sum += double{row.weights(i)};
      EXPECT_GT(row.weights(i), 0);
      EXPECT_LE(row.keys(i), row.row());
    }
    EXPECT_TRUE(std::ranges::is_sorted(row.keys()));
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_EQ(row.dropped_mass(), 0);
    EXPECT_GT(row.entropy(), 0);
  }
  const v1::Usage& usage = captured.replies.back().finished().usage();
  EXPECT_EQ(usage.num_prompt_tokens(), num_tokens);
  EXPECT_EQ(usage.num_generated_tokens(), 0);
}

TEST(CaptureAttentionTest, TopKReportsTheOmittedMass) {
  TestServer server;
  v1::CaptureAttentionRequest request = RequestOf(200);
  request.set_top_k(4);
  const auto rows = Capture(server.Stub(), request).Rows();
  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows[0].keys_size(), 4);
  EXPECT_GT(rows[0].num_nonzero(), 40);
  double sum = rows[0].dropped_mass();
  for (const float weight : rows[0].weights()) sum += double{weight};
  EXPECT_NEAR(sum, 1, 1e-6);
}

TEST(CaptureAttentionTest, LargeRepliesArriveInBlocksInOrder) {
  TestServer server;
  const Captured captured = Capture(server.Stub(), AllRowsOf(1100));
  ASSERT_TRUE(captured.status.ok()) << captured.status.error_message();
  int next_token = 0, next_row = 0;
  for (const v1::CaptureAttentionReply& reply : captured.replies) {
    if (reply.has_prompt()) {
      EXPECT_EQ(reply.prompt().first(), next_token);
      EXPECT_LE(reply.prompt().tokens_size(), limits::kMaxTokensPerMessage);
      next_token += reply.prompt().tokens_size();
    }
    size_t num_keys = 0;
    for (const v1::RowWeights& row : reply.weights().rows()) {
      EXPECT_EQ(row.row(), next_row++);
      EXPECT_LT(num_keys, limits::kMaxKeysPerMessage) << "another row in a full block";
      num_keys += size_t(row.keys_size());
    }
  }
  EXPECT_EQ(next_token, 1100);
  EXPECT_EQ(next_row, 1100);
}

TEST(CaptureAttentionTest, PrefixCacheAndBatchDoNotChangeTheBits) {
  TestServer server;
  const auto as_text = [](const Captured& captured) {
    std::string text;
    for (const v1::RowWeights& row : captured.Rows()) text += row.SerializeAsString();
    return text;
  };
  const v1::CaptureAttentionRequest request = RequestOf(500, {300, 444});
  const Captured cold = Capture(server.Stub(), request);
  EXPECT_EQ(cold.replies[0].started().num_cached_tokens(), 0);
  ASSERT_TRUE(Generate(server.Stub(), HelloRequest(20)).status.ok());
  const Captured warm = Capture(server.Stub(), request);
  ASSERT_TRUE(warm.status.ok()) << warm.status.error_message();
  EXPECT_EQ(warm.replies[0].started().num_cached_tokens(), 300);
  EXPECT_EQ(as_text(warm), as_text(cold));
}

TEST(CaptureAttentionTest, InvalidRequestsFailBeforeTheFirstMessage) {
  TestServer server;
  const Captured captured = Capture(server.Stub(), RequestOf(10, {10}));
  EXPECT_EQ(captured.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(captured.status.error_message(), HasSubstr("rows[0] is 10;"));
  EXPECT_TRUE(captured.replies.empty());
}

TEST(CaptureAttentionTest, ACancelledCallIsRemovedFromTheEngine) {
  TestServer server;
  server.SetStepMs(20);
  grpc::ClientContext context;
  const auto reader = server.Stub().CaptureAttention(&context, AllRowsOf(2000));
  v1::CaptureAttentionReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(CaptureAttentionTest, NanEndsTheCallWithDataLoss) {
  TestServer server;
  v1::CaptureAttentionRequest request = AllRowsOf(30);
  request.mutable_tokens()->set_ids(20, TestServer::kPoisonId);
  EXPECT_EQ(Capture(server.Stub(), request).status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(CaptureAttentionTest, MetricsCountItAsCapture) {
  TestServer server;
  ASSERT_TRUE(Capture(server.Stub(), RequestOf(30)).status.ok());
  ASSERT_TRUE(server.WaitUntilIdle());
  const std::string series = "lssar_request_success_total{finished_reason=\"CAPTURE\"}";
  // What is counted last of a call.
  EXPECT_TRUE(PollUntil([&] { return server.Metric("lssar_request_prompt_tokens_sum") == 30; }));
  EXPECT_EQ(server.Metric(series), 1);
  EXPECT_EQ(server.Metric("lssar_request_generation_tokens_count"), 0);
}

}  // namespace
}  // namespace lssar
