// Loading, serving, draining: health, reflection, ports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <utility>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/server/raw_call.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

constexpr char kService[] = "lssar.v1.Inference";

TEST(LifecycleTest, CallsAreUnavailableWhileLoading) {
  TestServer server(TestServer::Loading(), {.max_model_len = 2048});
  const Generated generated = Generate(server.Stub(), HelloRequest(1));
  EXPECT_EQ(generated.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(generated.status.error_message(), HasSubstr("loading"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(generated.status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.reason(), "MODEL_LOADING");
  EXPECT_EQ(info.domain(), "lssar");
  EXPECT_EQ(CheckHealth(server.NewChannel(), ""), kNotServing);
  EXPECT_EQ(CheckHealth(server.NewChannel(), kService), kNotServing);
  server.Serve();
  EXPECT_EQ(CheckHealth(server.NewChannel(), ""), kServing);
  EXPECT_EQ(CheckHealth(server.NewChannel(), kService), kServing);
  EXPECT_EQ(CheckHealth(server.NewChannel(), "no.such.Service"), std::nullopt);
  EXPECT_TRUE(Generate(server.Stub(), HelloRequest(1)).status.ok());
}

TEST(LifecycleTest, HealthWatchReportsEveryTransition) {
  for (const char* service : {"", kService}) {
    TestServer server(TestServer::Loading(), {.max_model_len = 2048});
    RawCall watch(server.NewChannel(), "/grpc.health.v1.Health/Watch", HealthRequest(service));
    const auto loading = watch.Read();
    ASSERT_TRUE(loading.has_value());
    EXPECT_EQ(HealthStatus(*loading), kNotServing);
    server.Serve();
    const auto serving = watch.Read();
    ASSERT_TRUE(serving.has_value());
    EXPECT_EQ(HealthStatus(*serving), kServing);
    EXPECT_TRUE(server.GetServer().Shutdown(absl::Minutes(2)));
    const auto draining = watch.Read();
    ASSERT_TRUE(draining.has_value());
    EXPECT_EQ(HealthStatus(*draining), kNotServing);
  }
}

TEST(LifecycleTest, ReflectionListsTheServices) {
  TestServer server;
  // ServerReflectionRequest { list_services: "*" }
  RawCall call(server.NewChannel(),
               "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*");
  const auto reply = call.Read();
  ASSERT_TRUE(reply.has_value());
  EXPECT_THAT(*reply, HasSubstr(kService));
  // ServerReflectionRequest { file_containing_symbol: "lssar.v1.Inference" }
  RawCall file(server.NewChannel(),
               "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
               std::string("\x22\x12") + kService);
  const auto descriptor = file.Read();
  ASSERT_TRUE(descriptor.has_value());
  EXPECT_THAT(*descriptor, HasSubstr("lssar/v1/inference.proto"));
  EXPECT_THAT(*descriptor, HasSubstr("GenerateRequest"));
}

TEST(LifecycleTest, ReflectionDescribesEachServiceThatItLists) {
  TestServer server;
  for (const auto& [service, file] :
       {std::pair<std::string, std::string>(kService, "lssar/v1/inference.proto"),
        {"grpc.health.v1.Health", "grpc/health/v1/health.proto"},
        {"grpc.reflection.v1alpha.ServerReflection", "grpc/reflection/v1alpha/reflection.proto"}}) {
    // ServerReflectionRequest { file_containing_symbol: service }
    RawCall call(server.NewChannel(),
                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                 std::string("\x22") + static_cast<char>(service.size()) + service);
    const auto reply = call.Read();
    ASSERT_TRUE(reply.has_value());
    EXPECT_THAT(*reply, HasSubstr(file));
  }
}

TEST(LifecycleTest, APortInUseIsReported) {
  TestServer server;
  ServerOptions options;
  options.listen = "127.0.0.1:" + std::to_string(server.GetServer().Port());
  options.http_listen = "";
  options.log_level = "off";
  const auto second = Server::Open(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              testing::AllOf(HasSubstr(options.listen), HasSubstr("in use")));
}

TEST(LifecycleTest, WithoutAnAddressOnlyTheInProcessChannelWorks) {
  ServerOptions options;
  options.listen = "";
  options.http_listen = "";
  options.log_level = "off";
  const auto server = Server::Open(options);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->Port(), 0);
  const auto stub = v1::Inference::NewStub((*server)->InProcessChannel());
  EXPECT_EQ(Generate(*stub, HelloRequest(1)).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  TestServer served;
  const auto in_process = v1::Inference::NewStub(served.GetServer().InProcessChannel());
  const Generated generated = Generate(*in_process, HelloRequest(50));
  ASSERT_TRUE(generated.status.ok()) << generated.status.error_message();
  EXPECT_EQ(generated.Tokens().size(), 50u);
}

TEST(LifecycleTest, DrainLetsRunningCallsFinishAndRejectsNewOnes) {
  TestServer server;
  server.Hold();
  grpc::ClientContext context;
  const auto reader = server.Stub().Generate(&context, HelloRequest(100));
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  auto drained = std::async(std::launch::async,
                            [&server] { return server.GetServer().Shutdown(absl::Minutes(5)); });
  const auto channel = server.NewChannel();
  while (CheckHealth(channel, "") == kServing) std::this_thread::yield();
  const Generated refused = Generate(server.Stub(), HelloRequest(1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("shutting down"));
  server.Release();
  bool is_finished = false;
  while (reader->Read(&reply)) is_finished |= reply.has_finished();
  EXPECT_TRUE(is_finished);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(drained.get());
}

TEST(LifecycleTest, ADrainTimeoutAbortsRunningCalls) {
  TestServer server;
  server.SetStepMs(5);
  grpc::ClientContext context;
  const auto reader = server.Stub().Generate(&context, HelloRequest(2000));
  v1::GenerateReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  EXPECT_FALSE(server.GetServer().Shutdown(absl::Milliseconds(50)));
  bool is_finished = false;
  while (reader->Read(&reply)) is_finished |= reply.has_finished();
  EXPECT_FALSE(is_finished);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST(LifecycleTest, AFailedLoadServesNothing) {
  ServerOptions options;
  options.listen = "";
  options.http_listen = "";
  options.log_level = "off";
  options.model.directory = "models/zoo/no-such-model";
  const auto server = Server::Start(options);
  EXPECT_EQ(server.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("no-such-model"));
}

}  // namespace
}  // namespace lssar
