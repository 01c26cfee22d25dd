// A Server on free loopback ports with FakeModel and the shipped tokenizer. Tests set the speed of
// its engine.
#ifndef LSSAR_TESTS_SERVER_TEST_SERVER_H_
#define LSSAR_TESTS_SERVER_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lssar/v1/inference.grpc.pb.h"
#include "server/loaded_model.h"
#include "server/server.h"
#include "tests/server/held_tokenizer.h"
#include "tests/support/fake_checkpoint.h"
#include "tests/support/fake_model.h"

namespace lssar {

class TestServer {
 public:
  static constexpr int32_t kPoisonId = 4000;  // this token has NaN logits

  using Adjust = std::function<void(ServerOptions&)>;

  explicit TestServer(const EngineOptions& options = {.max_model_len = 2048},
                      const Adjust& adjust = {});
  // Unblocks the engine and the tokenizer, so that the server can stop.
  ~TestServer();

  // Loads and serves the model; the constructor without `Loading` does this.
  struct Loading {};
  TestServer(Loading, const EngineOptions& options, const Adjust& adjust = {});
  void Serve();
  std::function<void()> on_load;  // called within each load

  // A new connection.
  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments = {}) const;
  // One connection for all who ask, made by the first.
  v1::Inference::Stub& Stub();
  Server& GetServer() { return *server_; }
  // Requires  the model is served
  const Engine& GetEngine() const { return *engine_; }

  // Adds a delay to every engine step.
  void SetStepMs(int milliseconds) { step_ms_ = milliseconds; }
  // Blocks the steps of the models that have been loaded until Release.
  void Hold() { num_held_ = int{num_loads_}; }
  // Lets this many of the blocked steps pass.
  void Pass(int num_steps) { num_passing_ += num_steps; }
  void Release() { num_held_ = 0; }
  // Blocks the tokenization of long texts (HeldTokenizer) until ReleaseTexts.
  void HoldTexts() { texts_.is_held = true; }
  void ReleaseTexts() { texts_.is_held = false; }
  int NumHeldTexts() const { return texts_.num_held; }
  // Loading the model fails from now on, or works again. The model's hash tells its number.
  void FailLoads(bool fails) { fails_to_load_ = fails; }
  // The backend fails the next `count` steps.
  void FailSteps(int count) { num_failing_ = count; }
  // The next step fails and the device reports that it is lost.
  void LoseDevice() {
    backend_->is_lost = true;
    FailSteps(1);
  }

  // The number of OnEngineFailure calls, and whether the last one reported a
  // lost device.
  int NumEngineFailures() const { return num_engine_failures_; }
  bool HasLostDevice() const { return has_lost_device_; }

  struct Page {
    int status = 0;
    std::string body;
  };
  // GET `path` of the HTTP port.
  Page Get(const std::string& path) const;
  // The value of one series of /metrics; NaN if it is missing.
  double Metric(const std::string& series) const;

  v1::GetInfoReply Describe();
  // PollUntil, of GetInfo.
  bool WaitFor(const std::function<bool(const v1::GetInfoReply&)>& condition);
  bool WaitUntilIdle();

 private:
  absl::StatusOr<std::unique_ptr<LoadedModel>> MakeModel(const ModelOptions& options);

  const EngineOptions options_;
  std::atomic<int> step_ms_ = 0;
  std::atomic<int> num_held_ = 0;  // models, the first ones
  std::atomic<int> num_passing_ = 0;
  TextHold texts_;
  std::atomic<bool> fails_to_load_ = false;
  std::atomic<int> num_loads_ = 0;
  std::atomic<int> num_failing_ = 0;
  std::atomic<int> num_engine_failures_ = 0;
  std::atomic<bool> has_lost_device_ = false;
  std::unique_ptr<Server> server_;
  const Engine* engine_ = nullptr;  // the server's
  MemoryBackend* backend_ = nullptr;
  std::once_flag has_stub_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// A channel once it is connected. A first attempt may fail by luck, and calls on it with it.
std::shared_ptr<grpc::Channel> Connected(std::shared_ptr<grpc::Channel> channel);

// Generates exactly `max_tokens` tokens.
v1::GenerateRequest HelloRequest(int max_tokens);

// All replies of one Generate call.
struct Generated {
  grpc::Status status;
  std::vector<v1::GenerateReply> replies;

  // These join all deltas of one choice.
  std::string Text(int choice = 0) const;
  std::vector<v1::Token> Tokens(int choice = 0) const;
  std::vector<v1::Delta> Deltas(int choice = 0) const;
};

std::vector<int32_t> IdsOf(const std::vector<v1::Token>& tokens);

Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request,
                   grpc::ClientContext& context);
Generated Generate(v1::Inference::Stub& stub, const v1::GenerateRequest& request);

struct Scored {
  grpc::Status status;
  std::vector<v1::ScoreReply> replies;

  std::vector<v1::ContinuationScore> Scores() const;
};

Scored Score(v1::Inference::Stub& stub, const v1::ScoreRequest& request);

}  // namespace lssar

#endif  // LSSAR_TESTS_SERVER_TEST_SERVER_H_
