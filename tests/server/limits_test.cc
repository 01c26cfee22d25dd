// Limits per client: calls, connections, headers, pings, silent peers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/config/limits.h"
#include "tests/server/poll_until.h"
#include "tests/server/raw_call.h"
#include "tests/server/tcp_client.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A started call that reads on request.
class OpenCall {
 public:
  explicit OpenCall(v1::Inference::Stub& stub, int max_tokens = 1000)
      : reader_(stub.Generate(&context_, HelloRequest(max_tokens))) {}
  ~OpenCall() {
    if (!is_finished_) {
      context_.TryCancel();
      reader_->Finish().ok();
    }
  }
  bool Begin() { return reader_->Read(&reply_); }
  grpc::Status Finish() {
    while (reader_->Read(&reply_)) {
    }
    is_finished_ = true;
    return reader_->Finish();
  }

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateReply>> reader_;
  v1::GenerateReply reply_;
  bool is_finished_ = false;
};

TEST(LimitsTest, ACallOverTheLimitIsRejectedWithARetryDelay) {
  TestServer server({.max_model_len = 2048}, [](ServerOptions& options) { options.max_calls = 2; });
  server.SetStepMs(20);
  OpenCall first(server.Stub()), second(server.Stub());
  ASSERT_TRUE(first.Begin() && second.Begin());
  server.Hold();
  const Generated refused = Generate(server.Stub(), HelloRequest(1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("2 running calls (--max-calls 2)"));
  EXPECT_THAT(refused.status.error_details(),
              AllOf(HasSubstr("google.rpc.RetryInfo"), HasSubstr("MAX_CALLS")));
  server.SetStepMs(0);
  server.Release();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
}

// Rejecting costs less than parsing the request.
TEST(LimitsTest, AFullQueueRejectsBeforeParsingThePrompt) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1, .max_queued_requests = 1});
  server.Hold();
  OpenCall running(server.Stub());
  ASSERT_TRUE(running.Begin());
  OpenCall queued(server.Stub());
  ASSERT_TRUE(server.WaitFor([](const auto& reply) { return reply.num_waiting() == 1; }));
  v1::GenerateRequest malformed = HelloRequest(1);
  malformed.mutable_sampling()->set_temperature(-1);
  const Generated refused = Generate(server.Stub(), malformed);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("the queue is full: 1 requests wait"));
  EXPECT_THAT(refused.status.error_details(),
              AllOf(HasSubstr("google.rpc.RetryInfo"), HasSubstr("QUEUED_REQUESTS")));
  server.Release();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(queued.Finish().ok());
}

TEST(LimitsTest, TheCallLimitOfAConnectionDoesNotAffectOthers) {
  TestServer server({.max_model_len = 2048},
                    [](ServerOptions& options) { options.connection.max_calls = 2; });
  const auto stub = v1::Inference::NewStub(server.NewChannel());
  server.SetStepMs(20);
  OpenCall first(*stub), second(*stub);
  ASSERT_TRUE(first.Begin() && second.Begin());
  server.Hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
  v1::GetInfoReply reply;
  EXPECT_EQ(stub->GetInfo(&context, {}, &reply).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(server.Describe().num_running(), 2);  // over another connection
  server.SetStepMs(0);
  server.Release();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
}

TEST(LimitsTest, HeadersHaveALimit) {
  TestServer server;
  for (const size_t num_bytes : {size_t{8 << 10}, size_t{limits::kMaxMetadataBytes}}) {
    grpc::ClientContext context;
    context.AddMetadata("x-padding", std::string(num_bytes, 'x'));
    v1::GetInfoReply reply;
    const grpc::Status status = server.Stub().GetInfo(&context, {}, &reply);
    if (num_bytes < limits::kMaxMetadataBytes) {
      EXPECT_TRUE(status.ok()) << status.error_message();
    } else {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
}

TEST(LimitsTest, AMessageHasALimit) {
  TestServer server;
  v1::GenerateRequest request = HelloRequest(1);
  request.set_text(std::string(limits::kMaxMessageBytes + 1, 'x'));
  const Generated refused = Generate(server.Stub(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Generate(server.Stub(), HelloRequest(1)).status.ok());
}

TEST(LimitsTest, FrequentPingsDuringALongStepAreAllowed) {
  TestServer server;
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 120'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  const auto stub = v1::Inference::NewStub(server.NewChannel(arguments));
  server.Hold();
  OpenCall call(*stub, 2);
  ASSERT_TRUE(call.Begin());
  // Six pings without data; gRPC tolerates one by default.
  std::this_thread::sleep_for(std::chrono::milliseconds(6500));
  server.Release();
  const grpc::Status status = call.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(LimitsTest, ACallCancelledBeforeItsRequestArrivedEndsWithoutLeaks) {
  TestServer server;
  const auto channel = server.NewChannel();
  for (const char* rpc : {"Generate", "Score", "Embed", "CaptureAttention", "Tokenize"}) {
    for (int i = 0; i < 10; ++i) {
      RawCall call(channel, std::string("/lssar.v1.Inference/") + rpc);
      call.Cancel();
      EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::CANCELLED) << rpc;
    }
  }
  // gRPC ends a streaming call without a request by itself, so it is not counted.
  EXPECT_EQ(server.Metric("lssar_request_failure_total{code=\"CANCELLED\"}"), 0);
  EXPECT_TRUE(Generate(server.Stub(), HelloRequest(1)).status.ok());
  EXPECT_TRUE(server.GetServer().Shutdown(absl::Minutes(2)));  // no call is left
}

TEST(LimitsTest, ARequestOfAnRpcWithoutFieldsIsEmpty) {
  TestServer server;
  const auto channel = server.NewChannel();
  for (const std::string rpc : {"GetInfo", "GetStats"}) {
    RawCall empty(channel, "/lssar.v1.Inference/" + rpc, "");
    EXPECT_TRUE(empty.Read().has_value());
    EXPECT_TRUE(empty.Finish().ok());
    RawCall newer(channel, "/lssar.v1.Inference/" + rpc, std::string("\x08\x01"));
    EXPECT_FALSE(newer.Read().has_value());
    const grpc::Status status = newer.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(status.error_message(),
              "the request has 2 bytes; " + rpc + " of lssar " LSSAR_VERSION " has no fields");
  }
}

// A peer that starts HTTP/2 and then goes silent, as after a power failure.
TEST(LimitsTest, TheConnectionOfASilentPeerIsClosed) {
  TestServer server({.max_model_len = 2048}, [](ServerOptions& options) {
    options.connection.keepalive_time = absl::Seconds(1);
    options.connection.keepalive_timeout = absl::Seconds(1);
  });
  const int peer = ConnectTo(server.GetServer().Port());
  const timeval timeout = {.tv_sec = 120, .tv_usec = 0};
  ASSERT_EQ(setsockopt(peer, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)), 0);
  // The preface, empty SETTINGS, and the acknowledgement of the server's.
  const std::string hello = std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") +
                            std::string("\0\0\0\4\0\0\0\0\0", 9) +
                            std::string("\0\0\0\4\1\0\0\0\0", 9);
  ASSERT_EQ(send(peer, hello.data(), hello.size(), MSG_NOSIGNAL), ssize_t(hello.size()));
  char buffer[4096];
  ssize_t received = 1;
  while (received > 0 || (received < 0 && errno == EINTR)) {  // a stop of the process interrupts it
    received = recv(peer, buffer, sizeof(buffer), 0);
  }
  EXPECT_TRUE(received == 0 || errno == ECONNRESET) << errno;  // closed, not timed out
  close(peer);
  // Not at once on a machine that stalls: such a client is silent, too.
  EXPECT_TRUE(PollUntil([&] { return Generate(server.Stub(), HelloRequest(1)).status.ok(); }));
}

}  // namespace
}  // namespace lssar
