// The shipped checkpoint through the real server, over loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/server/test_server.h"
#include "tests/server/zoo_checkpoint.h"
#include "tests/support/scratch_directory.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ServerOptions ZooOptions(const std::string& device = "cpu") {
  ServerOptions options;
  options.model.backend.name = device;
  options.model.backend.batch_invariant = true;
  options.model.directory = kZooDirectory;
  options.model.engine.max_model_len = 2048;
  options.listen = "127.0.0.1:0";
  options.http_listen = "127.0.0.1:0";
  options.log_level = "off";
  return options;
}

struct Served {
  std::unique_ptr<Server> server;
  std::unique_ptr<v1::Inference::Stub> stub;
};

// On the CPU, and on the GPU where there is one.
class EndToEndTest : public testing::TestWithParam<std::string> {
 protected:
  // One server per device for all tests.
  EndToEndTest() : stub_((*served_)[GetParam()].stub) {
    if (stub_ != nullptr) return;
    auto server = Server::Start(ZooOptions(GetParam()));
    LSSAR_CHECK(server.ok());
    (*served_)[GetParam()].server = *std::move(server);
    stub_ = v1::Inference::NewStub(Connected(
        grpc::CreateChannel("127.0.0.1:" + std::to_string((*served_)[GetParam()].server->Port()),
                            grpc::InsecureChannelCredentials())));
  }
  static void SetUpTestSuite() { served_ = new std::map<std::string, Served>; }
  static void TearDownTestSuite() { delete served_; }

  static v1::GenerateRequest Greedy(const std::string& text, int max_tokens) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.set_max_tokens(max_tokens);
    request.mutable_sampling()->set_temperature(0);
    return request;
  }

  static std::map<std::string, Served>* served_;
  std::unique_ptr<v1::Inference::Stub>& stub_;
};

std::map<std::string, Served>* EndToEndTest::served_ = nullptr;

std::vector<std::string> Devices() {
  std::vector<std::string> devices = {"cpu"};
  if (MakeBackend({.name = "cuda", .batch_invariant = true}).ok()) devices.emplace_back("cuda");
  return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, EndToEndTest, testing::ValuesIn(Devices()),
                         [](const auto& tested) { return tested.param; });

TEST_P(EndToEndTest, GreedyTextDoesNotDependOnTheBatch) {
  const Generated alone = Generate(*stub_, Greedy("The capital of France is", 40));
  ASSERT_TRUE(alone.status.ok()) << alone.status.error_message();
  EXPECT_FALSE(alone.Text().empty());
  v1::GenerateRequest crowd = Greedy("The capital of France is", 40);
  crowd.set_n(8);
  const Generated together = Generate(*stub_, crowd);
  for (int choice = 0; choice < 8; ++choice) EXPECT_EQ(together.Text(choice), alone.Text());
}

// Generate and Score return the same bits for the same tokens.
TEST_P(EndToEndTest, ScoreAgreesWithGenerate) {
  v1::GenerateRequest request = Greedy("Once upon a time", 24);
  request.set_ignore_eos(true);
  request.set_logprobs(1);
  const Generated generated = Generate(*stub_, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();

  v1::TokenizeRequest tokenize;
  tokenize.set_text("Once upon a time");
  grpc::ClientContext context;
  v1::TokenizeReply prompt;
  ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &prompt).ok());
  v1::ScoreRequest score;
  score.set_per_token(true);
  *score.add_items()->mutable_context()->mutable_tokens()->mutable_ids() = prompt.ids();
  auto& continuation = *score.mutable_items(0)->add_continuations()->mutable_tokens();
  for (const v1::Token& token : generated.Tokens()) continuation.add_ids(token.token().id());
  const Scored scored = Score(*stub_, score);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  EXPECT_TRUE(scored.Scores().at(0).is_greedy());
  const auto& tokens = scored.replies.front().tokens().tokens();
  ASSERT_EQ(tokens.size(), 24);
  for (int i = 0; i < 24; ++i) {
    EXPECT_EQ(tokens[i].token().logprob(), generated.Tokens()[size_t(i)].token().logprob()) << i;
  }
}

TEST_P(EndToEndTest, TextEndsBeforeAStopString) {
  const Generated whole = Generate(*stub_, Greedy("Once upon a time", 40));
  const std::string text = whole.Text();
  ASSERT_GT(text.size(), 12u);
  const std::string stop = text.substr(text.size() / 2, 3);
  v1::GenerateRequest request = Greedy("Once upon a time", 40);
  request.add_stop_strings(stop);
  const Generated stopped = Generate(*stub_, request);
  EXPECT_EQ(stopped.Text(), text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped.Deltas().back().finish_reason(), v1::FINISH_REASON_STOP_STRING);
  EXPECT_EQ(stopped.Deltas().back().stop_string(), stop);
}

TEST_P(EndToEndTest, ChatRepliesHaveNoRoleMarkers) {
  v1::GenerateRequest request;
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("Hello, who are you?");
  request.set_max_tokens(60);
  request.mutable_sampling()->set_temperature(0);
  const Generated generated = Generate(*stub_, request);
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  EXPECT_THAT(generated.Text(), Not(HasSubstr("<|user|>")));
}

TEST_P(EndToEndTest, TheCorrectContinuationIsMoreProbable) {
  v1::ScoreRequest request;
  v1::ScoreItem& item = *request.add_items();
  item.mutable_context()->set_text("The first president of the United");
  item.add_continuations()->set_text(" States");
  item.add_continuations()->set_text(" banana");
  const Scored scored = Score(*stub_, request);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  EXPECT_GT(scored.Scores().at(0).logprob(), scored.Scores().at(1).logprob());
}

TEST_P(EndToEndTest, DescribesTheShippedModel) {
  grpc::ClientContext context;
  v1::GetInfoReply reply;
  ASSERT_TRUE(stub_->GetInfo(&context, {}, &reply).ok());
  EXPECT_EQ(reply.model_name(), "lssar-6m");
  EXPECT_EQ(reply.attention_kind(), "lssar");
  EXPECT_EQ(reply.attention_p(), 15.0);
  EXPECT_EQ(reply.checkpoint_hash().size(), 16u);
  EXPECT_EQ(reply.tokenizer_hash().size(), 16u);
  EXPECT_GT(reply.num_parameters(), 5'000'000);
  EXPECT_TRUE(reply.has_self_check_error());
  EXPECT_LT(reply.self_check_error(), 0.01);
}

// A checkpoint that fails its self-check is not served.
TEST(SelfCheckTest, AWrongGoldenFileFailsTheStartWithTheError) {
  const ScratchDirectory copy;
  copy.CopyFrom(kZooDirectory);
  {
    // The logits are the file's largest tensor: change bytes in its middle.
    const std::string path = copy.Path("golden.safetensors");
    const auto size = std::filesystem::file_size(path);
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(size / 2));
    const std::vector<float> wrong(4096, 123.0f);
    file.write(reinterpret_cast<const char*>(wrong.data()), 4096 * sizeof(float));
  }
  ServerOptions options = ZooOptions();
  options.model.directory = copy.Path();
  const auto server = Server::Start(options);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kFailedPrecondition) << server.status();
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("differ from the golden ones"));
}

}  // namespace
}  // namespace lssar
