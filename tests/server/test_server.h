// A Server on a free loopback port around FakeModel and the shipped tokenizer: as fast or slow
// as a test wants.
#ifndef LSSAR_TESTS_SERVER_TEST_SERVER_H_
#define LSSAR_TESTS_SERVER_TEST_SERVER_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lssar/v1/inference.grpc.pb.h"
#include "server/served_model.h"
#include "server/server.h"
#include "tests/support/fake_checkpoint.h"
#include "tests/support/fake_model.h"

namespace lssar {

class TestServer {
 public:
  static constexpr int32_t kPoisonId = 4000;  // a row of this token has NaN logits

  using Adjust = std::function<void(ServerOptions&)>;

  explicit TestServer(const EngineOptions& options = {.max_model_len = 2048},
                      const Adjust& adjust = {});
  // Lets the engine run on, so that the server can stop.
  ~TestServer();

  // Makes the model and serves it: done by the constructor unless `is_loading`.
  struct Loading {};
  TestServer(Loading, const EngineOptions& options, const Adjust& adjust = {});
  void Serve();

  // A connection of its own.
  std::shared_ptr<grpc::Channel> NewChannel(grpc::ChannelArguments arguments = {}) const;
  v1::Inference::Stub& Stub() { return *stub_; }
  Server& GetServer() { return *server_; }
  // Once served.
  const Engine& GetEngine() const { return *engine_; }

  // Every engine step takes that much longer.
  void SetStepMs(int milliseconds) { step_ms_ = milliseconds; }
  // Steps do not end until Release.
  void Hold() { is_held_ = true; }
  void Release() { is_held_ = false; }
  // The backend fails the next `count` steps.
  void FailSteps(int count) { num_failing_ = count; }
  // The next step fails, and the device says that it is lost.
  void LoseDevice() {
    backend_->is_lost = true;
    FailSteps(1);
  }

  // How often the server has told that its engine died or hangs, and whether the last time of a
  // lost device.
  int NumEngineFailures() const { return num_engine_failures_; }
  bool HasLostDevice() const { return has_lost_device_; }

  struct Page {
    int status = 0;
    std::string body;
  };
  // GET `path` of the HTTP port.
  Page Get(const std::string& path) const;
  // One series of /metrics; NaN: it is not there.
  double Metric(const std::string& series) const;

  v1::GetInfoReply Describe();
  // Polls GetInfo until `condition` holds; false: it did not within `limit`.
  bool WaitFor(const std::function<bool(const v1::GetInfoReply&)>& condition,
               std::chrono::seconds limit = std::chrono::seconds(10));
  bool WaitUntilIdle(std::chrono::seconds limit = std::chrono::seconds(10));

 private:
  absl::StatusOr<std::unique_ptr<ServedModel>> MakeModel(const ModelOptions& options);

  const EngineOptions options_;
  std::atomic<int> step_ms_ = 0;
  std::atomic<bool> is_held_ = false;
  std::atomic<int> num_failing_ = 0;
  std::atomic<int> num_engine_failures_ = 0;
  std::atomic<bool> has_lost_device_ = false;
  std::unique_ptr<Server> server_;
  const Engine* engine_ = nullptr;  // the server's
  MemoryBackend* backend_ = nullptr;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// That many tokens, whatever the model says.
v1::GenerateRequest HelloRequest(int max_tokens);

// All that one Generate call sent.
struct Generated {
  grpc::Status status;
  std::vector<v1::GenerateReply> replies;

  // Of one choice, over all its deltas.
  std::string Text(int choice = 0) const;
  std::vector<v1::Token> Tokens(int choice = 0) const;
  std::vector<v1::Delta> Deltas(int choice = 0) const;
};

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
