// The server on each device, over loopback; errors of devices that cannot serve.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "server/loaded_model.h"
#include "tests/kernels/cuda/faulty_driver.h"
#include "tests/server/test_server.h"
#include "tests/support/scratch_directory.h"
#include "tests/support/test_device.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

class DeviceTest : public testing::TestWithParam<DeviceCase> {
 protected:
  DeviceTest() {
    ServerOptions options;
    options.model.directory = GetParam().checkpoint;
    options.model.engine.max_model_len = 256;
    options.model.engine.max_num_seqs = 16;
    options.listen = "127.0.0.1:0";
    options.http_listen = "";
    options.log_level = "off";
    auto server = Server::Open(options);
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    const absl::Status loaded = server_->Load([](const ModelOptions& model) {
      auto backend = OpenTestDevice({.name = GetParam().device, .batch_invariant = true});
      EXPECT_TRUE(backend.ok()) << backend.status();
      return LoadedModel::LoadOn(*std::move(backend), model);
    });
    EXPECT_TRUE(loaded.ok()) << loaded;
    stub_ = v1::Inference::NewStub(Connected(grpc::CreateChannel(
        "127.0.0.1:" + std::to_string(server_->Port()), grpc::InsecureChannelCredentials())));
  }

  static v1::GenerateRequest Greedy(int num_prompt, int max_tokens) {
    v1::GenerateRequest request;
    for (int i = 0; i < num_prompt; ++i) request.mutable_tokens()->add_ids(3 + i * 7 % 200);
    request.set_max_tokens(max_tokens);
    request.set_ignore_eos(true);
    request.set_logprobs(1);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }
  v1::GetInfoReply Describe() {
    grpc::ClientContext context;
    v1::GetInfoReply reply;
    EXPECT_TRUE(stub_->GetInfo(&context, {}, &reply).ok());
    return reply;
  }

  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

void ExpectEqualBits(const std::vector<v1::Token>& a, const std::vector<v1::Token>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].token().id(), b[i].token().id()) << i;
    EXPECT_EQ(std::bit_cast<uint32_t>(a[i].token().logprob()),
              std::bit_cast<uint32_t>(b[i].token().logprob()))
        << i;
  }
}

TEST_P(DeviceTest, GetInfoNamesTheDevice) {
  const v1::GetInfoReply reply = Describe();
  EXPECT_EQ(reply.device(), GetParam().device == "cuda" ? "cuda:0" : GetParam().device);
  EXPECT_FALSE(reply.bits_depend_on_batch());
  EXPECT_EQ(reply.num_free_pages(), reply.num_pages());
  EXPECT_EQ(reply.kv_cache_dtype(), "fp16");
}

TEST_P(DeviceTest, GreedyTokensDoNotDependOnTheBatch) {
  const Generated alone = Generate(*stub_, Greedy(40, 8));
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
  ASSERT_EQ(alone.Tokens().size(), 8u);
  auto other = std::async(std::launch::async,
                          [this] { return Generate(*stub_, Greedy(70, 12)).status.ok(); });
  v1::GenerateRequest crowd = Greedy(40, 8);
  crowd.set_n(3);
  const Generated together = Generate(*stub_, crowd);
  for (int choice = 0; choice < 3; ++choice) {
    ExpectEqualBits(together.Tokens(choice), alone.Tokens());
  }
  EXPECT_TRUE(other.get());
}

TEST_P(DeviceTest, ScoreAgreesWithGenerate) {
  const v1::GenerateRequest request = Greedy(20, 6);
  const std::vector<v1::Token> generated = Generate(*stub_, request).Tokens();
  v1::ScoreRequest score;
  score.set_per_token(true);
  *score.add_items()->mutable_context()->mutable_tokens() = request.tokens();
  auto& continuation = *score.mutable_items(0)->add_continuations()->mutable_tokens();
  for (const v1::Token& token : generated) continuation.add_ids(token.token().id());
  const Scored scored = Score(*stub_, score);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  EXPECT_TRUE(scored.Scores().at(0).is_greedy());
  const auto& tokens = scored.replies.front().tokens().tokens();
  ExpectEqualBits({tokens.begin(), tokens.end()}, generated);
}

TEST_P(DeviceTest, ACancelledCallFreesItsPages) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Greedy(30, 200));
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  context.TryCancel();
  while (reader->Read(&reply)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  v1::GetInfoReply now = Describe();
  while (now.num_running() > 0) now = Describe();
  EXPECT_EQ(now.num_free_pages(), now.num_pages());
}

INSTANTIATE_TEST_SUITE_P(Devices, DeviceTest, testing::ValuesIn(DeviceCases()),
                         [](const auto& tested) { return NameOfCase(tested.param); });

ModelOptions TinyModel() {
  ModelOptions options;
  options.directory = "tests/golden/gpt_lssar";
  return options;
}

absl::Status LoadOn(const std::string& device, const ModelOptions& options) {
  return LoadedModel::LoadOn(*OpenTestDevice({.name = device}), options).status();
}

TEST(DeviceErrorTest, AnUnsupportedKvCacheTypeNamesTheSupportedTypes) {
  ModelOptions options = TinyModel();
  options.engine.kv_cache_dtype = DType::kF32;
  const absl::Status status = LoadOn("cuda-emulated", options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(),
            "--kv-cache-dtype fp32: --device cuda-emulated supports fp16, int8, fx16");
}

// There are no weights: config.json is enough for the refusal.
TEST(DeviceErrorTest, AnUnsupportedKvCacheTypeIsRefusedBeforeWeightsAreRead) {
  const ScratchDirectory directory;
  std::filesystem::copy("tests/golden/gpt_lssar/config.json", directory.Path("config.json"));
  ModelOptions options = TinyModel();
  options.directory = directory.Path();
  EXPECT_THAT(std::string(LoadOn("cuda-emulated", options).message()), HasSubstr("safetensors"));
  options.engine.kv_cache_dtype = DType::kF32;
  EXPECT_THAT(std::string(LoadOn("cuda-emulated", options).message()),
              HasSubstr("--kv-cache-dtype fp32"));
}

TEST(DraftModelErrorTest, NamesTheFlagAndBothDirectories) {
  ModelOptions options = TinyModel();
  options.engine.max_model_len = 64;
  options.engine.max_num_seqs = 2;
  const auto load = [&](const std::string& device, const std::string& draft) {
    options.draft_directory = draft;
    return LoadOn(device, options);
  };
  EXPECT_EQ(load("cpu", "tests/golden/gpt_lssar"), absl::OkStatus());
  const std::string prefix =
      "--draft-model models/zoo/lssar-6m for --model tests/golden/gpt_lssar: ";
  EXPECT_EQ(load("cpu", "models/zoo/lssar-6m").message(),
            prefix +
                "the draft model has a vocabulary of 4096 ids, the served model of 257; they "
                "must be equal");
  EXPECT_EQ(load("cuda-emulated", "models/zoo/lssar-6m").message(),
            prefix + "the device cuda-emulated runs no draft model; cpu and reference do");
  EXPECT_THAT(std::string(load("cpu", "tests/golden/missing").message()),
              HasSubstr("--draft-model tests/golden/missing for --model tests/golden/gpt_lssar: "));
}

TEST(DeviceErrorTest, EveryWeightTypeButInt4IsSupported) {
  for (const DType weights : {DType::kF32, DType::kF16, DType::kBF16, DType::kI8}) {
    ModelOptions options = TinyModel();
    options.dtype = weights;
    options.engine.max_model_len = 64;
    options.engine.max_num_seqs = 2;
    EXPECT_EQ(LoadOn("cuda-emulated", options), absl::OkStatus()) << NameOf(weights);
  }
  ModelOptions options = TinyModel();
  options.dtype = DType::kI4;
  const absl::Status status = LoadOn("cuda-emulated", options);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuda does not compute int4 weights"));
}

TEST(DeviceErrorTest, AContextBeyondDeviceMemoryIsRejectedWithTheArithmetic) {
  ModelOptions options = TinyModel();
  options.engine.max_model_len = 1 << 20;
  options.engine.kv_cache_bytes = 1 << 20;
  const absl::Status status = LoadOn("cuda-emulated", options);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("max_model_len = 1048576 tokens needs 16384"));
}

TEST(DeviceErrorTest, WhatDoesNotFitBesideTheWeightsIsRefusedBeforeTheyAreLoaded) {
  const auto message_with = [](size_t free_bytes, int max_model_len) {
    const auto script = std::make_shared<DriverScript>();
    auto backend = *MakeFaulty(script);
    script->free_bytes = free_bytes;
    script->Fail(DriverCall::kAllocate, kCudaInvalidValue);  // nothing may be allocated
    ModelOptions options = TinyModel();
    options.dtype = DType::kF16;
    options.engine.max_model_len = max_model_len;
    const absl::Status status = LoadedModel::LoadOn(std::move(backend), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(script->num_calls, 0);
    return std::string(status.message());
  };
  EXPECT_THAT(message_with(4 << 20, 65536),
              testing::AllOf(HasSubstr("the KV pool is too small: the device's free memory of "
                                       "4194304 bytes less 2811584 of weights and "
                                       "activations and a reserve of "),
                             HasSubstr("one sequence of max_model_len = 65536 tokens needs 1024")));
  EXPECT_THAT(message_with(1 << 20, 8192),
              HasSubstr("the activations of max_num_batched_tokens = 512 tokens take 2098688"));
}

// Holds on every machine: no such device, no driver, or no cuda in this build.
TEST(DeviceErrorTest, AMissingDeviceIsReportedByItsFlag) {
  ModelOptions options = TinyModel();
  options.backend.name = "cuda:999";
  const absl::Status status = LoadedModel::Load(options).status();
  EXPECT_TRUE(status.code() == absl::StatusCode::kFailedPrecondition ||
              status.code() == absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StartsWith(status.message(), "--device cuda:999: ")) << status;
}

TEST(DeviceErrorTest, ThreadsRequireTheCpu) {
  ModelOptions options = TinyModel();
  options.backend.name = "cuda";
  options.backend.num_threads = 4;
  const absl::Status status = LoadedModel::Load(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("--threads 4"), HasSubstr("--device cuda")));
}

}  // namespace
}  // namespace lssar
