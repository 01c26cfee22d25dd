// attention_override, checkpoint_hash and receipts over real gRPC on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>

#include "server/api/parse_request.h"
#include "tests/server/test_server.h"
#include "tests/server/zoo_checkpoint.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

void Allow(ServerOptions& options) { options.model.allow_attention_override = true; }

const EngineOptions kEngine = {.max_model_len = 2048};

v1::ScoreRequest ScoreOf(double p) {
  v1::ScoreRequest request;
  v1::ScoreItem& item = *request.add_items();
  for (int id = 10; id < 40; ++id) item.mutable_context()->mutable_tokens()->add_ids(id);
  item.add_continuations()->mutable_tokens()->add_ids(7);
  if (p > 0) request.mutable_attention_override()->set_p(p);
  return request;
}

// The replies of a call that streams: CaptureAttention or Embed.
template <typename Reply, typename Reader>
std::pair<grpc::Status, std::vector<Reply>> ReadAll(Reader reader) {
  std::vector<Reply> replies;
  Reply reply;
  while (reader->Read(&reply)) replies.push_back(reply);
  return {reader->Finish(), replies};
}

// Status of each rpc that takes an attention_override and a checkpoint_hash.
std::vector<grpc::Status> CallAll(
    v1::Inference::Stub& stub,
    const std::function<void(v1::AttentionOverride*, std::string*)>& fill) {
  std::vector<grpc::Status> statuses;
  const auto filled = [&](auto request) {
    v1::AttentionOverride change;
    fill(&change, request.mutable_checkpoint_hash());
    if (change.ByteSizeLong() > 0) *request.mutable_attention_override() = change;
    return request;
  };
  statuses.push_back(Generate(stub, filled(HelloRequest(2))).status);
  statuses.push_back(Score(stub, filled(ScoreOf(0))).status);
  grpc::ClientContext embed_context, capture_context;
  v1::EmbedRequest embed;
  embed.add_inputs()->mutable_tokens()->add_ids(5);
  statuses.push_back(ReadAll<v1::EmbedReply>(stub.Embed(&embed_context, filled(embed))).first);
  v1::CaptureAttentionRequest capture;
  capture.mutable_tokens()->add_ids(5);
  statuses.push_back(
      ReadAll<v1::CaptureAttentionReply>(stub.CaptureAttention(&capture_context, filled(capture)))
          .first);
  return statuses;
}

TEST(AttentionOverrideCallTest, IsRefusedUnlessAllowed) {
  TestServer server;
  EXPECT_FALSE(server.Describe().attention_override_allowed());
  for (const grpc::Status& status :
       CallAll(server.Stub(), [](v1::AttentionOverride*change, std::string*) {
         change->set_p(15);  // also where it is the checkpoint's own
       })) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("attention_override"));
    EXPECT_THAT(status.error_message(), HasSubstr("--allow-attention-override"));
  }
}

TEST(AttentionOverrideCallTest, EveryRpcTakesItAndSaysWhichFunctionAnswered) {
  TestServer server(kEngine, Allow);
  EXPECT_TRUE(server.Describe().attention_override_allowed());
  for (const grpc::Status& status : CallAll(
           server.Stub(), [](v1::AttentionOverride*change, std::string*) { change->set_p(5); })) {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  v1::GenerateRequest request = HelloRequest(2);
  request.mutable_attention_override()->set_p(5);
  const Generated generated = Generate(server.Stub(), request);
  ASSERT_GE(generated.replies.size(), 2u);
  EXPECT_EQ(generated.replies.front().started().attention(), "lssar p=5");
  EXPECT_EQ(generated.replies.back().finished().receipt().attention(), "lssar p=5");
  const Generated own = Generate(server.Stub(), HelloRequest(2));
  EXPECT_EQ(own.replies.front().started().attention(), "lssar p=15");
  EXPECT_EQ(Score(server.Stub(), ScoreOf(3)).replies.back().finished().receipt().attention(),
            "lssar p=3");
}

TEST(AttentionOverrideCallTest, PowersByLengthAreInTheReceipt) {
  TestServer server(kEngine, Allow);
  v1::ScoreRequest request = ScoreOf(0);
  v1::AttentionPower& step = *request.mutable_attention_override()->add_p_by_length();
  step.set_min_keys(20);
  step.set_p(4);
  const Scored scored = Score(server.Stub(), request);
  EXPECT_TRUE(scored.status.ok()) << scored.status.error_message();
  EXPECT_EQ(scored.replies.back().finished().receipt().attention(), "lssar p=15 N>=20:4");
}

TEST(AttentionOverrideCallTest, ScoresAreThoseOfTheFunctionAndPagesAreItsOwn) {
  TestServer server(kEngine, Allow);
  const auto score = [&](double p) {
    const Scored scored = Score(server.Stub(), ScoreOf(p));
    EXPECT_TRUE(scored.status.ok()) << scored.status.error_message();
    return std::pair(scored.Scores().at(0).logprob(),
                     scored.replies.back().finished().usage().num_cached_tokens());
  };
  const auto own = score(0);
  const auto other = score(5);
  EXPECT_NE(own.first, other.first);
  EXPECT_EQ(own.second, 0);
  EXPECT_EQ(other.second, 0);
  EXPECT_EQ(score(15).first, own.first);  // the checkpoint's own p
  EXPECT_EQ(score(5).first, other.first);
}

// Keys of type fx16 serve lssar with any p, and no other kind.
TEST(AttentionOverrideCallTest, KindsThatTheKvTypeDoesNotServeAreRefused) {
  EngineOptions engine = kEngine;
  engine.kv_cache_dtype = DType::kFx16;
  TestServer server(engine, Allow);
  EXPECT_EQ(server.Describe().kv_cache_dtype(), "fx16");
  for (const grpc::Status& status :
       CallAll(server.Stub(),
               [](v1::AttentionOverride*change, std::string*) { change->set_kind("softmax"); })) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
    EXPECT_THAT(status.error_message(), HasSubstr("kind softmax"));
    EXPECT_THAT(status.error_message(), HasSubstr("fx16"));
  }
  for (const grpc::Status& status : CallAll(
           server.Stub(), [](v1::AttentionOverride*change, std::string*) { change->set_p(3); })) {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
}

TEST(AttentionOverrideCallTest, BadValuesNameTheFieldAndCostNothing) {
  TestServer server(kEngine, Allow);
  struct Case {
    std::function<void(v1::AttentionOverride*)> fill;
    const char* message;
  };
  const Case cases[] = {
      {[](auto* change) { change->set_p(0); },
       "attention_override.p is 0; it must be in (0, 1000]"},
      {[](auto* change) { change->set_p(1001); }, "attention_override.p is 1001"},
      {[](auto* change) { change->set_p(5e-324); },
       "attention_override.p is 5e-324; it must be at least 1.1754943508222875e-38, the smallest"},
      {[](auto* change) { change->set_kind("lsar"); }, "attention_override.kind is \"lsar\""},
      {[](auto* change) { change->set_kind("phi"); }, "attention_override.phi is missing"},
      {[](auto* change) { change->set_kind("lssa"), change->set_p(2); }, "does not re-weight"},
      {[](auto* change) { change->add_p_by_layer(2), change->add_p_by_layer(2); },
       "attention_override.p_by_layer has 2 numbers; it must have num_hidden_layers = 1"},
      {[](auto* change) { change->add_p_by_head(2), change->add_p_by_head(2); },
       "attention_override.p_by_head has 2 numbers; it must have num_attention_heads = 1"},
      {[](auto* change) { change->add_p_by_layer(std::nan("")); },
       "attention_override.p_by_layer[0] is nan; it must be in (0, 1000]"},
      {[](auto* change) { change->set_p(3), change->add_p_by_head(3); },
       "attention_override.p_by_head is set beside another power"},
      {[](auto* change) { change->add_p_by_length()->set_min_keys(3); },
       "attention_override.p_by_length[0].p is missing"},
      {[](auto* change) { change->add_p_by_length()->set_p(3); },
       "attention_override.p_by_length[0].min_keys is 0; it must be at least 2"},
  };
  for (const Case& bad : cases) {
    for (const grpc::Status& status :
         CallAll(server.Stub(),
                 [&](v1::AttentionOverride*change, std::string*) { bad.fill(change); })) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
      EXPECT_THAT(status.error_message(), HasSubstr(bad.message));
    }
  }
  EXPECT_EQ(server.GetEngine().Stats().num_batched_tokens, 0);
}

// A backend that computes the model's own attention, and lssa beside it, but no powers by head or
// length, and no mixed batches.
class NarrowBackend : public MemoryBackend {
 public:
  explicit NarrowBackend(bool mixes) : mixes_(mixes) {}
  std::string_view Name() const override { return "narrow"; }
  bool Supports(Feature feature) const override {
    return feature == Feature::kAttentionOverride ? mixes_ : feature != Feature::kPowerSteps;
  }
  absl::Status CheckAttention(const AttentionSpec& spec) const override {
    if (spec.kind != AttentionKind::kSoftmax) return absl::OkStatus();
    return absl::UnimplementedError("attention kind \"softmax\" is not computed here");
  }

 private:
  const bool mixes_;
};

TEST(AttentionOverrideParseTest, WhatTheBackendDoesNotComputeIsUnimplemented) {
  const Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  const auto parse = [&](bool mixes, const char* kind, double p) {
    const NarrowBackend backend(mixes);
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(5);
    request.mutable_attention_override()->set_kind(kind);
    if (p > 0) request.mutable_attention_override()->set_p(p);
    return ParseGenerate(request, {.checkpoint = &checkpoint,
                                   .max_model_len = 128,
                                   .allow_attention_override = true,
                                   .backend = &backend});
  };
  const absl::Status unmixed = parse(false, "lssa", 0).status();
  EXPECT_EQ(unmixed.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(unmixed.message()),
              HasSubstr("attention_override is set, which the narrow backend does not compute"));
  const absl::Status kind = parse(true, "softmax", 0).status();
  EXPECT_EQ(kind.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(kind.message()), HasSubstr("attention_override: attention kind"));
  const auto lssa = parse(true, "lssa", 0);
  ASSERT_TRUE(lssa.ok()) << lssa.status();
  EXPECT_EQ(lssa->request.attention->name, "lssa");
  // The checkpoint's own function is no override, and every backend computes it.
  const auto own = parse(false, "lssar", 15);
  ASSERT_TRUE(own.ok()) << own.status();
  EXPECT_EQ(own->request.attention, nullptr);
}

TEST(AttentionOverrideParseTest, TheInputsOfACallShareIt) {
  const Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  v1::EmbedRequest request;
  for (int i = 0; i < 3; ++i) request.add_inputs()->mutable_tokens()->add_ids(i);
  request.mutable_attention_override()->set_p(5);
  const auto parsed = ParseEmbed(
      request, {.checkpoint = &checkpoint, .max_model_len = 128, .allow_attention_override = true});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_NE(parsed->front().attention, nullptr);
  for (const Request& one : *parsed) EXPECT_EQ(one.attention, parsed->front().attention);
}

TEST(AttentionOverrideParseTest, PowersByLayerHeadAndLength) {
  const Checkpoint checkpoint = ZooCheckpointWithoutWeights();  // of 6 layers with 4 heads
  const NarrowBackend narrow(/*mixes=*/true);
  const auto name = [&](const std::function<void(v1::AttentionOverride*)>& fill,
                        const Backend* backend = nullptr) {
    v1::GenerateRequest request;
    request.mutable_tokens()->add_ids(5);
    fill(request.mutable_attention_override());
    const auto parsed = ParseGenerate(request, {.checkpoint = &checkpoint,
                                                .max_model_len = 128,
                                                .allow_attention_override = true,
                                                .backend = backend});
    if (!parsed.ok()) return std::string(parsed.status().message());
    const auto& attention = parsed->request.attention;
    return attention ? attention->name : std::string();
  };
  const auto by_layer = [](auto* change) {
    for (const double p : {3, 3, 5, 5, 5, 15}) change->add_p_by_layer(p);
  };
  const auto by_head = [](auto* change) {
    for (const double p : {3.0, 5.0, 0.5, 15.0}) change->add_p_by_head(p);
  };
  EXPECT_EQ(name(by_layer), "lssar p=3 (0-1), lssar p=5 (2-4), lssar p=15 (5)");
  EXPECT_EQ(name(by_head), "lssar p=3/5/0.5/15");
  EXPECT_EQ(name([&](auto* change) {
              by_head(change);
              v1::AttentionPower& step = *change->add_p_by_length();
              step.set_min_keys(64);
              by_layer(&step);
            }),
            "lssar p=3/5/0.5/15 N>=64:3 (0-1), lssar p=3/5/0.5/15 N>=64:5 (2-4), "
            "lssar p=3/5/0.5/15 N>=64:15 (5)");
  EXPECT_EQ(name([](auto* change) {
              for (int i = 0; i < 24; ++i) change->add_p_by_head(15);
            }),
            "");  // the checkpoint's own
  EXPECT_EQ(name([](auto* change) { change->add_p_by_head(3); }),
            "attention_override.p_by_head has 1 numbers; it must have num_attention_heads = 4, or "
            "24 for the heads of each layer");
  // A power of each layer is what config.json can say.
  EXPECT_EQ(name(by_layer, &narrow), name(by_layer));
  EXPECT_THAT(name(by_head, &narrow),
              HasSubstr("p of attention_override is by head or by number of keys, which the narrow "
                        "backend does not compute"));
}

TEST(CheckpointHashTest, AnotherCheckpointIsRefused) {
  TestServer server;
  const auto call_all = [&](const std::string& hash) {
    return CallAll(server.Stub(),
                   [&](v1::AttentionOverride*, std::string* field) { *field = hash; });
  };
  for (const grpc::Status& status : call_all(server.Describe().checkpoint_hash())) {
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  for (const grpc::Status& status : call_all("fedcba9876543210")) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("checkpoint_hash is \"fedcba9876543210\""));
    EXPECT_THAT(status.error_message(), HasSubstr("\"0123456789abcdef\""));
  }
}

TEST(ReceiptTest, NamesWhatComputedTheReply) {
  TestServer server;
  v1::GenerateRequest request = HelloRequest(2);
  request.mutable_sampling()->set_top_k(7);
  const v1::GetInfoReply info = server.Describe();
  const Generated generated = Generate(server.Stub(), request);
  const v1::Receipt& receipt = generated.replies.back().finished().receipt();
  EXPECT_EQ(receipt.checkpoint_hash(), info.checkpoint_hash());
  EXPECT_EQ(receipt.tokenizer_hash(), info.tokenizer_hash());
  EXPECT_FALSE(receipt.config_hash().empty());
  EXPECT_EQ(receipt.config_hash(), info.config_hash());
  EXPECT_EQ(receipt.version(), info.version());
  EXPECT_EQ(receipt.backend(), info.backend());
  EXPECT_EQ(receipt.dtype(), info.dtype());
  EXPECT_EQ(receipt.kv_cache_dtype(), info.kv_cache_dtype());
  EXPECT_EQ(receipt.max_tokens(), 2);
  EXPECT_EQ(receipt.sampling().top_k(), 7);
  EXPECT_EQ(receipt.sampling().temperature(), 1);
  EXPECT_EQ(receipt.sampling().seed(), generated.replies.front().started().seed());
  const v1::Receipt score = Score(server.Stub(), ScoreOf(0)).replies.back().finished().receipt();
  EXPECT_FALSE(score.has_sampling());
  EXPECT_EQ(score.max_tokens(), 0);
}

TEST(ReceiptTest, HasTheDefaultOfMaxTokens) {
  v1::GenerateRequest request = HelloRequest(1);
  request.clear_max_tokens();
  for (const auto& [max_model_len, expected] : {std::pair(64, 60), std::pair(2048, 256)}) {
    TestServer server({.max_model_len = max_model_len});
    const Generated generated = Generate(server.Stub(), request);
    ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
    const v1::Finished& finished = generated.replies.back().finished();
    ASSERT_EQ(finished.usage().num_prompt_tokens(), 4);
    EXPECT_EQ(finished.usage().num_generated_tokens(), expected);
    EXPECT_EQ(finished.receipt().max_tokens(), expected);
  }
}

TEST(AttentionStatisticsTest, CaptureSendsThemInPlaceOfWeights) {
  TestServer server;
  v1::CaptureAttentionRequest request;
  for (int id = 10; id < 40; ++id) request.mutable_tokens()->add_ids(id);
  for (int row = 0; row < 30; ++row) request.add_rows(row);
  request.set_statistics(true);
  grpc::ClientContext context;
  const auto [status, replies] =
      ReadAll<v1::CaptureAttentionReply>(server.Stub().CaptureAttention(&context, request));
  ASSERT_TRUE(status.ok()) << status.error_message();
  int num_heads = 0;
  for (const v1::CaptureAttentionReply& reply : replies) {
    EXPECT_FALSE(reply.has_weights());
    for (const v1::HeadStatistics& head : reply.statistics().heads()) {
      ++num_heads;
      EXPECT_EQ(head.num_rows(), 30);
      EXPECT_EQ(head.num_keys(), 30 * 31 / 2);
      EXPECT_LT(head.num_nonzero(), head.num_keys());
      EXPECT_EQ(head.distance_mass_size(), 6);  // distances up to 29
      double mass = 0;
      for (const double share : head.distance_mass()) mass += share;
      EXPECT_NEAR(mass, 30, 1e-9);
    }
  }
  EXPECT_EQ(num_heads, 1);  // the fake model's

  request.set_top_k(3);
  grpc::ClientContext again;
  const grpc::Status refused =
      ReadAll<v1::CaptureAttentionReply>(server.Stub().CaptureAttention(&again, request)).first;
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("top_k is 3; it must be 0"));
}

TEST(AttentionStatisticsTest, StatsHaveTheSample) {
  EngineOptions options = kEngine;
  TestServer unsampled(options);
  options.attention_sample_interval = 1;
  TestServer server(options);
  const auto sampled = [](TestServer& of) {
    EXPECT_TRUE(Generate(of.Stub(), HelloRequest(5)).status.ok());
    grpc::ClientContext context;
    v1::GetStatsReply stats;
    EXPECT_TRUE(of.Stub().GetStats(&context, {}, &stats).ok());
    return stats.sampled_attention();
  };
  EXPECT_TRUE(sampled(unsampled).empty());
  const auto heads = sampled(server);
  ASSERT_EQ(heads.size(), 1);
  EXPECT_GE(heads[0].num_rows(), 5);
  const std::string series = "lssar_attention_sample_rows_total{layer=\"0\",head=\"0\"}";
  EXPECT_EQ(server.Metric(series), double(heads[0].num_rows()));
  EXPECT_EQ(server.Get("/metrics").body.find("_sample_nonzero_keys_total{") == std::string::npos,
            false);
  EXPECT_EQ(unsampled.Get("/metrics").body.find("attention_sample"), std::string::npos);
}

}  // namespace
}  // namespace lssar
