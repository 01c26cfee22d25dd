// Embed over real gRPC on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

struct Embedded {
  grpc::Status status;
  std::map<int, std::vector<float>> values;  // by input
  std::map<int, int> sizes;                  // of a vector, by input
  v1::EmbedFinished finished;
};

Embedded Embed(v1::Inference::Stub& stub, const v1::EmbedRequest& request) {
  Embedded embedded;
  grpc::ClientContext context;
  const auto reader = stub.Embed(&context, request);
  v1::EmbedReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_finished()) {
      embedded.finished = reply.finished();
      continue;
    }
    const v1::EmbeddingVectors& vectors = reply.vectors();
    std::vector<float>& values = embedded.values[vectors.input()];
    EXPECT_GT(vectors.size(), 0);
    EXPECT_EQ(int(values.size()), vectors.first() * vectors.size()) << "in order, without gaps";
    values.insert(values.end(), vectors.values().begin(), vectors.values().end());
    embedded.sizes[vectors.input()] = vectors.size();
  }
  embedded.status = reader->Finish();
  return embedded;
}

v1::EmbedRequest RequestOf(const std::vector<int>& lengths, v1::Pooling pooling) {
  v1::EmbedRequest request;
  request.set_pooling(pooling);
  for (const int length : lengths) {
    v1::TokenIds& tokens = *request.add_inputs()->mutable_tokens();
    for (int i = 0; i < length; ++i) tokens.add_ids(3 + (length + i) % 1000);
  }
  return request;
}

TEST(EmbedTest, EveryInputHasItsVectors) {
  TestServer server;
  std::vector<int> lengths;
  for (int i = 1; i <= 20; ++i) lengths.push_back(7 * i);
  const Embedded token = Embed(server.Stub(), RequestOf(lengths, v1::POOLING_TOKEN));
  ASSERT_TRUE(token.status.ok()) << token.status.error_message();
  const Embedded last = Embed(server.Stub(), RequestOf(lengths, v1::POOLING_LAST));
  ASSERT_TRUE(last.status.ok()) << last.status.error_message();
  ASSERT_EQ(token.values.size(), lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const std::vector<float>& all = token.values.at(int(i));
    const auto size = size_t(token.sizes.at(int(i)));
    EXPECT_EQ(all.size(), size_t(lengths[i]) * size);
    EXPECT_EQ(last.values.at(int(i)),
              std::vector<float>(all.end() - std::ptrdiff_t(size), all.end()));
  }
  EXPECT_EQ(token.finished.checkpoint_hash(), "0123456789abcdef");
  int num_tokens = 0;
  for (const int length : lengths) num_tokens += length;
  EXPECT_EQ(token.finished.usage().num_prompt_tokens(), num_tokens);
}

TEST(EmbedTest, TheDefaultIsTheLastTokenAndTextIsTokenized) {
  TestServer server;
  v1::EmbedRequest request;
  request.add_inputs()->set_text("Hello there");
  const Embedded embedded = Embed(server.Stub(), request);
  ASSERT_TRUE(embedded.status.ok()) << embedded.status.error_message();
  EXPECT_EQ(int(embedded.values.at(0).size()), embedded.sizes.at(0));
}

TEST(EmbedTest, AppliesTheHeadThatTheCheckpointHas) {
  TestServer server;
  v1::EmbedRequest request = RequestOf({9}, v1::POOLING_MEAN);
  request.set_apply_head(true);
  const Embedded embedded = Embed(server.Stub(), request);
  ASSERT_TRUE(embedded.status.ok()) << embedded.status.error_message();
  v1::GetInfoReply facts;
  grpc::ClientContext context;
  ASSERT_TRUE(server.Stub().GetInfo(&context, {}, &facts).ok());
  EXPECT_EQ(facts.num_head_outputs(), 1);
  EXPECT_EQ(embedded.sizes.at(0), 1);
}

TEST(EmbedTest, BadRequestsNameTheField) {
  TestServer server;
  const struct {
    v1::EmbedRequest request;
    std::string field;
  } cases[] = {
      {{}, "inputs"},
      {RequestOf({4, 0}, v1::POOLING_LAST), "inputs[1]"},
      {RequestOf({4}, v1::Pooling(9)), "pooling"},
      {[] {
         v1::EmbedRequest request = RequestOf({2}, v1::POOLING_LAST);
         request.mutable_inputs(0)->mutable_tokens()->set_ids(1, -3);
         return request;
       }(),
       "inputs[0].tokens.ids"},
      {[] {
         v1::EmbedRequest request = RequestOf({2}, v1::POOLING_LAST);
         request.set_priority(11);
         return request;
       }(),
       "priority"},
      {RequestOf({1 << 20}, v1::POOLING_LAST), "max_model_len"},
  };
  for (const auto& [request, field] : cases) {
    const Embedded embedded = Embed(server.Stub(), request);
    EXPECT_EQ(embedded.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_THAT(embedded.status.error_message(), HasSubstr(field));
    EXPECT_TRUE(embedded.values.empty());
  }
}

}  // namespace
}  // namespace lssar
