// steering over real gRPC on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const EngineOptions kEngine = {.max_model_len = 2048};
constexpr int kHiddenSize = 4;  // the fake model's, which has one block

void Allow(ServerOptions& options) { options.model.allow_steering = true; }

template <typename Request>
v1::Steering& Add(Request* request, int layer, float first_value = 0.5f) {
  v1::Steering& steering = *request->add_steering();
  steering.set_layer(layer);
  for (int i = 0; i < kHiddenSize; ++i) steering.add_vector(i == 0 ? first_value : 1.0f);
  return steering;
}

TEST(SteeringCallTest, IsRefusedUnlessAllowed) {
  TestServer server;
  EXPECT_FALSE(server.Describe().steering_allowed());
  v1::GenerateRequest request = HelloRequest(2);
  Add(&request, 1);
  const grpc::Status status = Generate(server.Stub(), request).status;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("--allow-steering"));
}

TEST(SteeringCallTest, EveryRpcTakesItAndReceiptsSayWhich) {
  TestServer server(kEngine, Allow);
  EXPECT_TRUE(server.Describe().steering_allowed());
  v1::GenerateRequest request = HelloRequest(20);
  request.mutable_sampling()->set_temperature(0);
  const std::string own = Generate(server.Stub(), request).Text();
  Add(&request, 1).set_scale(1.5f);
  Add(&request, 0).set_first_position(2);
  const Generated steered = Generate(server.Stub(), request);
  ASSERT_TRUE(steered.status.ok()) << steered.status.error_message();
  EXPECT_NE(steered.Text(), own);
  EXPECT_THAT(steered.replies.back().finished().receipt().steering(),
              MatchesRegex("layer 1 from position 0: 1.5 x [0-9a-f]{16}; "
                           "layer 0 from position 2: 1 x [0-9a-f]{16}"));

  v1::ScoreRequest score;
  score.add_items()->add_continuations()->mutable_tokens()->add_ids(7);
  score.mutable_items(0)->mutable_context()->mutable_tokens()->add_ids(9);
  const Scored plain = Score(server.Stub(), score);
  Add(&score, 1);
  const Scored changed = Score(server.Stub(), score);
  ASSERT_TRUE(changed.status.ok()) << changed.status.error_message();
  EXPECT_NE(plain.Scores().at(0).logprob(), changed.Scores().at(0).logprob());
  EXPECT_EQ(plain.replies.back().finished().receipt().steering(), "");
  EXPECT_THAT(changed.replies.back().finished().receipt().steering(), HasSubstr("layer 1"));

  const auto embed = [&](bool is_steered) {
    v1::EmbedRequest inputs;
    inputs.add_inputs()->mutable_tokens()->add_ids(5);
    if (is_steered) Add(&inputs, 1);
    grpc::ClientContext context;
    const auto reader = server.Stub().Embed(&context, inputs);
    v1::EmbedReply reply;
    std::vector<float> values;
    while (reader->Read(&reply)) {
      values.insert(values.end(), reply.vectors().values().begin(), reply.vectors().values().end());
    }
    EXPECT_TRUE(reader->Finish().ok());
    return values;
  };
  EXPECT_NE(embed(true), embed(false));

  v1::CaptureAttentionRequest capture;
  capture.mutable_tokens()->add_ids(5);
  Add(&capture, 1);
  grpc::ClientContext context;
  const auto reader = server.Stub().CaptureAttention(&context, capture);
  v1::CaptureAttentionReply reply, last;
  while (reader->Read(&reply)) last = reply;
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_THAT(last.finished().receipt().steering(), HasSubstr("layer 1"));
}

TEST(SteeringCallTest, BadVectorsNameTheField) {
  TestServer server(kEngine, Allow);
  const auto refused = [&](const auto& change) {
    v1::GenerateRequest request = HelloRequest(2);
    Add(&request, 1);
    change(request, *request.mutable_steering(0));
    const grpc::Status status = Generate(server.Stub(), request).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    return status.error_message();
  };
  EXPECT_THAT(refused([](auto&, auto& steering) { steering.set_layer(2); }),
              HasSubstr("steering[0].layer is 2; it must be in [0, 1]"));
  EXPECT_THAT(refused([](auto&, auto& steering) { steering.set_layer(-1); }),
              HasSubstr("steering[0].layer is -1"));
  EXPECT_THAT(refused([](auto&, auto& steering) { steering.add_vector(1); }),
              HasSubstr("steering[0].vector has 5 numbers; it must have hidden_size = 4"));
  EXPECT_THAT(refused([](auto&, auto& steering) { steering.clear_vector(); }),
              HasSubstr("steering[0].vector has 0 numbers"));
  EXPECT_THAT(refused([](auto&, auto& steering) { steering.set_vector(2, std::nanf("")); }),
              HasSubstr("steering[0].vector[2] times scale is nan"));
  EXPECT_THAT(refused([](auto&, auto& steering) {
                steering.set_vector(2, 1e5f);
                steering.set_scale(11);
              }),
              HasSubstr("steering[0].vector[2] times scale is 1100000"));
  EXPECT_THAT(refused([](auto&, auto& steering) {
                steering.set_scale(std::numeric_limits<float>::infinity());
              }),
              HasSubstr("steering[0].scale is inf"));
  EXPECT_THAT(refused([](auto&, auto& steering) { steering.set_first_position(-1); }),
              HasSubstr("steering[0].first_position is -1"));
  EXPECT_THAT(refused([](auto& request, auto&) {
                for (int i = 0; i < 256; ++i) Add(&request, 0);
              }),
              HasSubstr("steering has 257 entries"));
}

}  // namespace
}  // namespace lssar
