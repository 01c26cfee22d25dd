// An engine that hangs, fails once or fails repeatedly: statuses for clients and probes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>

#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

TestServer::Adjust WithStepTimeout(absl::Duration timeout) {
  return [timeout](ServerOptions& options) { options.step_timeout = timeout; };
}

using ::testing::HasSubstr;

// A health watch that has received SERVING.
class HealthWatch {
 public:
  explicit HealthWatch(const TestServer& server)
      : call_(server.NewChannel(), "/grpc.health.v1.Health/Watch", HealthRequest("")) {
    EXPECT_EQ(Next(), kServing);
  }
  int Next() {
    const auto reply = call_.Read();
    return reply ? HealthStatus(*reply) : 0;
  }

 private:
  RawCall call_;
};

void ExpectOutOfService(TestServer& server, const std::string& reason) {
  for (const char* path : {"/healthz", "/readyz"}) {
    const TestServer::Page page = server.Get(path);
    EXPECT_EQ(page.status, 503) << path;
    EXPECT_THAT(page.body, HasSubstr(reason)) << path;
  }
  EXPECT_EQ(server.Get("/metrics").status, 200);
  const Generated refused = Generate(server.Stub(), HelloRequest(1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.status.error_message(), HasSubstr(reason));
  EXPECT_EQ(CheckHealth(server.NewChannel(), ""), kNotServing);
  // Told after the clients.
  while (server.NumEngineFailures() == 0) std::this_thread::yield();
  EXPECT_EQ(server.NumEngineFailures(), 1);
}

TEST(EngineFailureTest, AHangingStepStopsServing) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1}, WithStepTimeout(absl::Seconds(1)));
  HealthWatch watch(server);
  server.SetStepMs(20);  // 20 s of tokens: the call does not end before Hold
  EXPECT_EQ(server.Get("/healthz").status, 200);
  EXPECT_EQ(server.Get("/readyz").status, 200);
  grpc::ClientContext running_context;
  const auto running = server.Stub().Generate(&running_context, HelloRequest(1000));
  v1::GenerateReply reply;
  ASSERT_TRUE(running->Read(&reply));
  server.Hold();
  auto queued = std::async(std::launch::async,
                           [&server] { return Generate(server.Stub(), HelloRequest(5)).status; });
  v1::ScoreRequest score;
  score.add_items()->mutable_context()->set_text("The");
  score.mutable_items(0)->add_continuations()->set_text(" end");
  auto scored = std::async(std::launch::async,
                           [&server, score] { return Score(server.Stub(), score).status; });
  EXPECT_EQ(watch.Next(), kNotServing);
  while (running->Read(&reply)) continue;
  for (const grpc::Status& status : {running->Finish(), queued.get(), scored.get()}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_THAT(status.error_message(), HasSubstr("the engine is stuck"));
  }
  ExpectOutOfService(server, "the engine is stuck");
}

TEST(EngineFailureTest, ASlowStepIsNotAHang) {
  TestServer server({.max_model_len = 2048}, WithStepTimeout(absl::Milliseconds(2000)));
  server.SetStepMs(60);
  EXPECT_TRUE(Generate(server.Stub(), HelloRequest(50)).status.ok());
  EXPECT_EQ(server.NumEngineFailures(), 0);
  EXPECT_EQ(server.Get("/healthz").status, 200);
}

TEST(EngineFailureTest, AFailedStepEndsOnlyItsOwnRequests) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1});
  grpc::ClientContext context;
  server.Hold();
  const auto running = server.Stub().Generate(&context, HelloRequest(100));
  v1::GenerateReply reply;
  ASSERT_TRUE(running->Read(&reply));
  auto queued = std::async(std::launch::async,
                           [&server] { return Generate(server.Stub(), HelloRequest(20)); });
  ASSERT_TRUE(
      server.WaitFor([](const v1::GetInfoReply& facts) { return facts.num_waiting() == 1; }));
  server.FailSteps(1);
  server.Release();
  while (running->Read(&reply)) continue;
  const grpc::Status failed = running->Finish();
  EXPECT_EQ(failed.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_THAT(failed.error_message(), HasSubstr("the device failed"));
  const Generated survivor = queued.get();
  EXPECT_TRUE(survivor.status.ok()) << survivor.status.error_message();
  EXPECT_EQ(survivor.Tokens().size(), 20u);
  EXPECT_TRUE(server.WaitUntilIdle());
  EXPECT_EQ(server.Get("/readyz").status, 200);
  EXPECT_EQ(server.NumEngineFailures(), 0);
}

TEST(EngineFailureTest, RepeatedFailuresStopServing) {
  TestServer server;
  HealthWatch watch(server);
  server.FailSteps(1 << 30);
  int num_internal = 0;
  grpc::Status status;
  while ((status = Generate(server.Stub(), HelloRequest(5)).status).error_code() ==
         grpc::StatusCode::INTERNAL) {
    ++num_internal;
  }
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GE(num_internal, 1);
  EXPECT_EQ(watch.Next(), kNotServing);
  ExpectOutOfService(server, "the engine failed");
}

TEST(EngineFailureTest, ALostDeviceStopsServingAtOnce) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1});
  HealthWatch watch(server);
  grpc::ClientContext context;
  server.Hold();
  const auto running = server.Stub().Generate(&context, HelloRequest(100));
  v1::GenerateReply reply;
  ASSERT_TRUE(running->Read(&reply));
  auto queued = std::async(std::launch::async,
                           [&server] { return Generate(server.Stub(), HelloRequest(5)).status; });
  ASSERT_TRUE(
      server.WaitFor([](const v1::GetInfoReply& facts) { return facts.num_waiting() == 1; }));
  server.LoseDevice();
  server.Release();
  while (running->Read(&reply)) continue;
  for (const grpc::Status& status : {running->Finish(), queued.get()}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
    EXPECT_THAT(status.error_message(), HasSubstr("the device failed"));
  }
  EXPECT_EQ(watch.Next(), kNotServing);
  ExpectOutOfService(server, "the device is lost");
  EXPECT_TRUE(server.HasLostDevice());
}

TEST(EngineFailureTest, ADrainIsNotAFailure) {
  TestServer server({.max_model_len = 2048}, WithStepTimeout(absl::Milliseconds(80)));
  EXPECT_EQ(server.Get("/readyz").status, 200);
  EXPECT_TRUE(server.GetServer().Shutdown(absl::Minutes(2)));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // several checks of the watchdog
  EXPECT_EQ(server.NumEngineFailures(), 0);
  EXPECT_EQ(server.Get("/healthz").status, 200);
  const TestServer::Page readiness = server.Get("/readyz");
  EXPECT_EQ(readiness.status, 503);
  EXPECT_THAT(readiness.body, HasSubstr("shutting down"));
}

TEST(EngineFailureTest, WhileLoadingTheServerIsHealthyButNotReady) {
  TestServer server(TestServer::Loading(), {.max_model_len = 2048});
  EXPECT_EQ(server.Get("/healthz").status, 200);
  EXPECT_EQ(server.Get("/metrics").status, 200);
  const TestServer::Page readiness = server.Get("/readyz");
  EXPECT_EQ(readiness.status, 503);
  EXPECT_THAT(readiness.body, HasSubstr("loading"));
  server.Serve();
  EXPECT_EQ(server.Get("/readyz").status, 200);
}

}  // namespace
}  // namespace lssar
