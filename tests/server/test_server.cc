#include "tests/server/test_server.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/str_cat.h"
#include "server/http/blocking_client.h"
#include "server/loaded_model.h"
#include "tests/server/held_tokenizer.h"
#include "tests/server/poll_until.h"
#include "tests/server/zoo_checkpoint.h"
#include "tests/support/fake_checkpoint.h"

namespace lssar {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<Server> OpenOnFreePort(const TestServer::Adjust& adjust,
                                       Server::OnEngineFailure on_failure) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.http_listen = "127.0.0.1:0";
  options.log_level = "off";
  if (adjust) adjust(options);
  auto server = Server::Open(options, std::move(on_failure));
  LSSAR_CHECK(server.ok());
  return *std::move(server);
}

}  // namespace

TestServer::TestServer(Loading, const EngineOptions& options, const Adjust& adjust)
    : options_(options), server_(OpenOnFreePort(adjust, [this](const EngineFailure& failure) {
        has_lost_device_ = failure.is_device_lost;
        ++num_engine_failures_;
      })) {}

TestServer::TestServer(const EngineOptions& options, const Adjust& adjust)
    : TestServer(Loading(), options, adjust) {
  Serve();
}

TestServer::~TestServer() {
  Release();
  ReleaseTexts();
  SetStepMs(0);
  server_.reset();
}

void TestServer::Serve() {
  const absl::Status status =
      server_->Load([this](const ModelOptions& options) { return MakeModel(options); });
  ASSERT_TRUE(status.ok()) << status;
}

absl::StatusOr<std::unique_ptr<LoadedModel>> TestServer::MakeModel(const ModelOptions& options) {
  if (on_load) on_load();
  if (fails_to_load_) return absl::InvalidArgumentError("the weights are damaged");
  auto checkpoint = std::make_unique<Checkpoint>(ZooCheckpointWithoutWeights());
  auto model = std::make_unique<FakeModel>(checkpoint->config.vocab_size);
  model->poison_id = kPoisonId;
  const int number = num_loads_++;
  model->on_forward = [this, number](const ForwardBatch&) {
    std::this_thread::sleep_for(milliseconds(step_ms_));
    while (number < num_held_) {
      if (num_passing_ > 0) {
        --num_passing_;
        break;
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (num_failing_ == 0) return absl::OkStatus();
    --num_failing_;
    return absl::InternalError("the device failed");
  };
  const int32_t bos_id = *checkpoint->config.bos_id;
  checkpoint->config = model->Config();
  checkpoint->config.bos_id = bos_id;
  checkpoint->model = std::move(model);
  checkpoint->tokenizer =
      std::make_unique<HeldTokenizer>(std::move(checkpoint->tokenizer), &texts_);
  checkpoint->hash = StrCat(number, "123456789abcdef");
  checkpoint->config_hash = "89abcdef01234567";
  checkpoint->max_num_batched_tokens = options_.max_num_batched_tokens;
  auto backend = std::make_unique<MemoryBackend>();
  backend_ = backend.get();
  EngineOptions engine_options = options_;
  engine_options.observer = options.engine.observer;
  auto engine = Engine::Create(checkpoint.get(), backend.get(), engine_options);
  if (!engine.ok()) return engine.status();
  engine_ = engine->get();
  return std::make_unique<LoadedModel>(
      std::move(backend), std::move(checkpoint), SelfCheckReport{}, *std::move(engine),
      /*draft=*/nullptr,
      ServedAs{.allows_attention_override = options.allow_attention_override,
               .allows_steering = options.allow_steering});
}

std::shared_ptr<grpc::Channel> TestServer::NewChannel(grpc::ChannelArguments arguments) const {
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return Connected(grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->Port()),
                                             grpc::InsecureChannelCredentials(), arguments));
}

v1::Inference::Stub& TestServer::Stub() {
  std::call_once(has_stub_, [this] { stub_ = v1::Inference::NewStub(NewChannel()); });
  return *stub_;
}

TestServer::Page TestServer::Get(const std::string& path) const {
  const auto reply = SendRequest({.host = "127.0.0.1", .port = server_->HttpPort()}, "GET", path);
  if (!reply.ok()) return {};
  return {.status = reply->status, .body = reply->body};
}

double TestServer::Metric(const std::string& series) const {
  std::istringstream lines(Get("/metrics").body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(series + " ")) return std::stod(line.substr(series.size() + 1));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

v1::GetInfoReply TestServer::Describe() {
  grpc::ClientContext context;
  v1::GetInfoReply reply;
  const grpc::Status status = Stub().GetInfo(&context, {}, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply;
}

bool TestServer::WaitFor(const std::function<bool(const v1::GetInfoReply&)>& condition) {
  return PollUntil([&] { return condition(Describe()); });
}

bool TestServer::WaitUntilIdle() {
  return WaitFor([](const v1::GetInfoReply& reply) {
    return reply.num_free_pages() == reply.num_pages() && reply.num_running() == 0 &&
           reply.num_waiting() == 0;
  });
}

std::shared_ptr<grpc::Channel> Connected(std::shared_ptr<grpc::Channel> channel) {
  EXPECT_TRUE(
      channel->WaitForConnected(std::chrono::system_clock::now() + std::chrono::minutes(2)));
  return channel;
}

std::vector<int32_t> IdsOf(const std::vector<v1::Token>& tokens) {
  std::vector<int32_t> ids;
  for (const v1::Token& token : tokens) ids.push_back(token.token().id());
  return ids;
}

std::vector<v1::Delta> Generated::Deltas(int choice) const {
  std::vector<v1::Delta> deltas;
  for (const v1::GenerateReply& reply : replies) {
    if (reply.has_delta() && reply.delta().choice() == choice) deltas.push_back(reply.delta());
  }
  return deltas;
}

std::string Generated::Text(int choice) const {
  std::string text;
  for (const v1::Delta& delta : Deltas(choice)) text += delta.text();
  return text;
}

std::vector<v1::Token> Generated::Tokens(int choice) const {
  std::vector<v1::Token> tokens;
  for (const v1::Delta& delta : Deltas(choice)) {
    tokens.insert(tokens.end(), delta.tokens().begin(), delta.tokens().end());
  }
  return tokens;
}

v1::GenerateRequest HelloRequest(int max_tokens) {
  v1::GenerateRequest request;
  request.set_text("Hello");
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                   grpc::ClientContext& context) {
  Generated generated;
  const auto reader = stub.Generate(&context, request);
  v1::GenerateReply reply;
  while (reader->Read(&reply)) generated.replies.push_back(reply);
  generated.status = reader->Finish();
  return generated;
}

Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  return Generate(stub, request, context);
}

std::vector<v1::ContinuationScore> Scored::Scores() const {
  std::vector<v1::ContinuationScore> scores;
  for (const v1::ScoreReply& reply : replies) {
    if (reply.has_score()) scores.push_back(reply.score());
  }
  return scores;
}

Scored Score(v1::Inference::Stub& stub, const v1::ScoreRequest& request) {
  Scored scored;
  grpc::ClientContext context;
  const auto reader = stub.Score(&context, request);
  v1::ScoreReply reply;
  while (reader->Read(&reply)) scored.replies.push_back(reply);
  scored.status = reader->Finish();
  return scored;
}

}  // namespace lssar
