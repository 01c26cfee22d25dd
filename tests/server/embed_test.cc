// Embed over real gRPC on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "kernels/float_bits.h"
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
    EXPECT_EQ(vectors.num_layers(), request.layers_size());
    EXPECT_EQ(int(values.size()),
              vectors.first() * vectors.size() * std::max(1, vectors.num_layers()))
        << "in order, without gaps";
    values.insert(values.end(), vectors.values().begin(), vectors.values().end());
    EXPECT_EQ(vectors.fp16_values().empty(), request.dtype() != "fp16");
    for (size_t i = 0; i < vectors.fp16_values().size(); i += 2) {
      uint16_t bits = 0;
      std::memcpy(&bits, &vectors.fp16_values()[i], 2);
      values.push_back(FloatFromF16(bits));
    }
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

TEST(EmbedTest, LayersPositionsAndHalfPrecision) {
  TestServer server;
  v1::EmbedRequest request = RequestOf({40}, v1::POOLING_TOKEN);
  for (const int layer : {1, -1, 0}) request.add_layers(layer);
  const Embedded all = Embed(server.Stub(), request);
  ASSERT_TRUE(all.status.ok()) << all.status.error_message();
  const std::vector<float>& values = all.values.at(0);
  const auto size = size_t(all.sizes.at(0));
  ASSERT_EQ(values.size(), 40 * 3 * size);
  const auto token = [&](size_t position) {
    const auto first = values.begin() + std::ptrdiff_t(position * 3 * size);
    return std::vector<float>(first, first + std::ptrdiff_t(3 * size));
  };

  v1::EmbedRequest chosen = request;
  for (const int position : {-1, 7, 39, 0}) chosen.add_positions(position);
  std::vector<float> expected = token(0);
  for (const size_t position : {7, 39}) {
    for (const float value : token(position)) expected.push_back(value);
  }
  EXPECT_EQ(Embed(server.Stub(), chosen).values.at(0), expected);

  chosen.set_dtype("fp16");
  for (float& value : expected) value = FloatFromF16(F16FromFloat(value));
  EXPECT_EQ(Embed(server.Stub(), chosen).values.at(0), expected);
}

TEST(EmbedTest, LayersAndPositionsAreChecked) {
  TestServer server;  // its model has one block
  const auto refused = [&](const auto& change) {
    v1::EmbedRequest request = RequestOf({40, 9}, v1::POOLING_TOKEN);
    change(request);
    const grpc::Status status = Embed(server.Stub(), request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refused([](auto& request) { request.add_layers(2); }),
              HasSubstr("layers[0] is 2; it must be in [-1, 1]"));
  EXPECT_THAT(refused([](auto& request) { request.add_layers(-2); }), HasSubstr("layers[0] is -2"));
  EXPECT_THAT(refused([](auto& request) {
                request.add_layers(0);
                request.add_layers(0);
              }),
              HasSubstr("layers[1] is 0; it must be there once"));
  EXPECT_THAT(refused([](auto& request) {
                request.set_apply_head(true);
                request.add_layers(0);
              }),
              HasSubstr("apply_head"));
  EXPECT_THAT(refused([](auto& request) { request.add_positions(20); }),
              HasSubstr("positions[0] is 20; it must be in [-9, 9): input 1 has 9 tokens"));
  EXPECT_THAT(refused([](auto& request) {
                request.set_pooling(v1::POOLING_LAST);
                request.add_positions(0);
              }),
              HasSubstr("positions is set"));
  EXPECT_THAT(refused([](auto& request) {
                for (int i = 0; i < 5000; ++i) request.add_positions(0);
              }),
              HasSubstr("positions has 5000 entries"));
  EXPECT_THAT(refused([](auto& request) { request.set_dtype("bf16"); }),
              HasSubstr("dtype is \"bf16\"; it must be \"fp32\" or \"fp16\""));
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
