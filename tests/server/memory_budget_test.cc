// The memory that the requests and the replies of all calls take is bounded.
#include "server/api/memory_budget.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/str_cat.h"
#include "lssar/v1/inference.grpc.pb.h"
#include "server/api/call_context.h"
#include "server/api/sub_requests.h"
#include "server/api/worker_pool.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/reply_writer.h"
#include "server/http/http_codec.h"
#include "server/http/openai_reply.h"
#include "tests/server/loaded_fake_model.h"
#include "tests/server/poll_until.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

TEST(MemoryBudgetTest, RefusesWhatDoesNotFitAndKeepsWhatItHas) {
  MemoryBudget budget("requests", 100);
  EXPECT_TRUE(budget.Take(60).ok());
  const absl::Status refused = budget.Take(41);
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(refused.message(),
            "the server holds 60 bytes of requests; with this one of 41 bytes they exceed the "
            "limit of 100; retry later");
  EXPECT_TRUE(budget.Take(40).ok());
  budget.Return(100);
}

TEST(MemoryBudgetTest, AnEmptyBudgetGivesAnyAmount) {
  MemoryBudget budget("requests", 100);
  EXPECT_TRUE(budget.Take(1000).ok());
  EXPECT_FALSE(budget.Take(1).ok());
  budget.Return(1000);
  EXPECT_TRUE(budget.Take(1).ok());
}

TEST(CallContextTest, LargeRepliesAreCountedUntilTheirCallsEnd) {
  MemoryBudget budget("replies", 10'000);
  const ServiceContext parts{.reply_memory = &budget, .stream = {.buffer_bytes = 1'000}};
  std::optional<CallContext> small, large, refused;
  small.emplace(CallMetadata{.rpc = "Tokenize"}, parts);
  large.emplace(CallMetadata{.rpc = "Tokenize"}, parts);
  refused.emplace(CallMetadata{.rpc = "Tokenize"}, parts);
  EXPECT_TRUE(large->HoldReply(9'000).ok());
  EXPECT_TRUE(small->HoldReply(1'000).ok()) << "up to the stream buffer, replies are not counted";
  const absl::Status status = refused->HoldReply(1'001);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds 9000 bytes of replies"));
  refused.reset();
  large.reset();
  EXPECT_TRUE(budget.Take(1).ok());
  EXPECT_TRUE(budget.Take(9'999).ok()) << "an ended call still holds memory";
}

TEST(CallContextTest, AStreamThatRepeatsItsAnswerHoldsMemoryForEachCopy) {
  const Log log("off");
  const auto access = AccessControl::Open("", &log);
  AdmissionControl admission(/*max_calls=*/2, access->get());
  const auto model = LoadFakeModel();
  ASSERT_TRUE(model.ok()) << model.status();
  admission.Open(model->get());
  for (const auto& [stream, num_bytes] :
       {std::pair("false", 1000 * ChatLogprobs::kBytesPerLogprob),
        std::pair("true", 5 * 1000 * ChatLogprobs::kBytesPerLogprob)}) {
    MemoryBudget budget("replies", 1'000'000);
    CallContext context(
        {.rpc = "POST /v1/responses"},
        {.admission = &admission, .reply_memory = &budget, .stream = {.buffer_bytes = 1}});
    ASSERT_TRUE(context.Admit(KeyRole::kUser).ok());
    HttpExchange exchange({}, {}, {.wake = [] {}, .run_later = {}});
    const HttpMethod method = MakeResponse();
    method.codec->Bind(&context, &exchange);
    HttpRequest request;
    request.body =
        StrCat(R"({"input":"a","include":["message.output_text.logprobs"],"stream":)", stream, "}");
    ASSERT_TRUE(method.codec->Decode(request).ok());
    std::vector<SubRequest> items(1);
    items[0].request.params = GenerateParams{.max_tokens = 1000, .num_logprobs = 0};
    ASSERT_TRUE(method.codec->OnParsed(&context, items).ok());
    EXPECT_TRUE(budget.Take(1'000'000 - num_bytes).ok()) << stream;
    EXPECT_FALSE(budget.Take(1).ok()) << stream;
  }
}

class RecordingOwner final : public SubRequests::Owner {
 public:
  bool HasSpaceForItems() const override { return true; }
  std::shared_ptr<OutputSink> MakeSink(int /*item*/) override { return nullptr; }
  void RetryLater(std::chrono::milliseconds /*delay*/) override {}
  void OnItemEnd(int /*item*/, const RequestStats& /*stats*/) override {}
  void OnItemsEnd(const absl::Status& status, const RequestStats& /*total*/) override {
    end = status;
  }

  std::optional<absl::Status> end;
};

// It waits for the engine's queue, and the engine does not know it.
TEST(SubRequestsTest, AnItemThatBeginsAfterTheDeadlineEndsTheCall) {
  const Log log("off");
  const auto access = AccessControl::Open("", &log);
  AdmissionControl admission(/*max_calls=*/1, access->get());
  const auto model = LoadFakeModel();
  ASSERT_TRUE(model.ok()) << model.status();
  admission.Open(model->get());
  MemoryBudget budget("requests", 10'000);
  CallContext context({.rpc = "Score", .deadline = Clock::now()},
                      {.admission = &admission, .request_memory = &budget});
  ASSERT_TRUE(context.Admit(KeyRole::kUser).ok());
  RecordingOwner owner;
  SubRequests items(&context, &owner);
  std::vector<SubRequest> two(2);
  two[0].known = RequestStats();
  two[1].request.prompt = {3, 4};
  items.Start(std::move(two));
  ASSERT_TRUE(owner.end.has_value());
  EXPECT_TRUE(absl::IsDeadlineExceeded(*owner.end)) << *owner.end;
  EXPECT_THAT(std::string(owner.end->message()), HasSubstr("before item 1 of the call began"));
}

TEST(SubRequestsTest, ItemsForWhichThereIsNoMemoryEndTheCall) {
  MemoryBudget budget("requests", 10'000);
  ASSERT_TRUE(budget.Take(5'000).ok());
  CallContext context({.rpc = "Score"}, {.request_memory = &budget});
  RecordingOwner owner;
  {
    SubRequests items(&context, &owner);
    std::vector<SubRequest> two(2);
    two[0].request.prompt.resize(10);
    two[1].request.params = ScoreParams{.continuations = {std::vector<int32_t>(2'000)}};
    items.Start(std::move(two));
    ASSERT_TRUE(owner.end);
    EXPECT_TRUE(absl::IsResourceExhausted(*owner.end)) << *owner.end;
    EXPECT_THAT(std::string(owner.end->message()), HasSubstr("holds 5000 bytes"));
  }
  EXPECT_TRUE(budget.Take(5'000).ok()) << "what was refused is still counted";
}

TEST(SubRequestsTest, SteeringThatItemsShareIsCountedOnce) {
  MemoryBudget budget("requests", 100'000);
  CallContext context({.rpc = "Embed"}, {.request_memory = &budget});
  RecordingOwner owner;
  Steering steering;
  steering.vectors.push_back({.values = std::vector<float>(10'000)});
  const auto shared = std::make_shared<const Steering>(std::move(steering));
  std::vector<SubRequest> items(10);
  for (SubRequest& item : items) {
    item.request.prompt.resize(10);
    item.request.steering = shared;
    item.known = RequestStats{};
  }
  ASSERT_TRUE(budget.Take(50'000).ok());
  SubRequests requests(&context, &owner);
  requests.Start(std::move(items));
  ASSERT_TRUE(owner.end);
  EXPECT_TRUE(owner.end->ok()) << *owner.end;
  EXPECT_TRUE(budget.Take(50'000).ok()) << "the ended call still holds memory";
}

TEST(SubRequestsTest, ItemsGiveTheirMemoryBack) {
  MemoryBudget budget("requests", 10'000);
  CallContext context({.rpc = "Score"}, {.request_memory = &budget});
  RecordingOwner owner;
  std::vector<SubRequest> known(1);
  known[0].request.prompt.resize(2'000);
  known[0].known = RequestStats{};
  SubRequests items(&context, &owner);
  items.Start(std::move(known));
  ASSERT_TRUE(owner.end);
  EXPECT_TRUE(owner.end->ok()) << *owner.end;
  EXPECT_TRUE(budget.Take(1).ok());
  EXPECT_TRUE(budget.Take(9'999).ok()) << "the ended call still holds memory";
}

// The rpcs on a fake model, called within the process. The requests of all calls have one byte: a
// request is taken only while there is no other.
class OneRequestService {
 public:
  OneRequestService() {
    static_cast<FakeModel&>(*model_->GetCheckpoint().model).on_forward = [this](const auto&) {
      ++num_steps_;
      is_held_.wait(true);
      return absl::OkStatus();
    };
    admission_.Open(model_.get());
    grpc::ServerBuilder builder;
    replies_ = std::make_unique<ReplyWriter>(builder.AddCompletionQueue());
    InferenceRpcs rpcs = MakeInferenceService(
        {.admission = &admission_,
         .log = &log_,
         .metrics = &metrics_,
         .workers = &workers_,
         .request_memory = &memory_,
         .reply_memory = &reply_memory_,
         .replies = replies_.get()},
        [](const std::string&, size_t) {},
        [](const std::string&) { return std::shared_ptr<SocketCork>(); });
    service_ = std::move(rpcs.service);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    rpcs.accept();
    replies_->Start();
    stub_ = v1::Inference::NewStub(server_->InProcessChannel({}));
  }
  ~OneRequestService() {
    Release();
    server_->Shutdown();
    server_->Wait();
    replies_->Stop();
  }

  v1::Inference::Stub& Stub() { return *stub_; }
  MemoryBudget& Memory() { return memory_; }
  // Blocks the engine's steps until Release.
  void Hold() { is_held_ = true; }
  bool WaitForStep() {
    return PollUntil([this] { return num_steps_ > 0; });
  }
  void Release() {
    is_held_ = false;
    is_held_.notify_all();
  }

 private:
  const Log log_{"off"};
  Metrics metrics_;
  MemoryBudget memory_{"requests", 1};
  MemoryBudget reply_memory_{"replies", 1 << 20};
  const std::unique_ptr<AccessControl> access_ = *AccessControl::Open("", &log_);
  std::atomic<bool> is_held_ = false;
  std::atomic<int> num_steps_ = 0;
  const std::unique_ptr<LoadedModel> model_ = *LoadFakeModel();
  AdmissionControl admission_{/*max_calls=*/2, access_.get()};
  WorkerPool workers_{WorkerPool::Options{}};
  std::unique_ptr<ReplyWriter> replies_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// `read`: of the stub, makes the call.
template <typename Reply, typename Request, typename Read>
grpc::Status StatusOf(OneRequestService& service, Request request, const Read& read) {
  for (const int id : {3, 4, 5}) request.mutable_tokens()->add_ids(id);
  grpc::ClientContext context;
  // Only a call that was to be refused, and waits for the held engine, reaches it.
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  const auto reader = (service.Stub().*read)(&context, request);
  Reply reply;
  while (reader->Read(&reply)) continue;
  return reader->Finish();
}

grpc::Status Generate(OneRequestService& service) {
  v1::GenerateRequest request;
  request.set_max_tokens(2);
  return StatusOf<v1::GenerateReply>(service, request, &v1::Inference::Stub::Generate);
}

grpc::Status Capture(OneRequestService& service) {
  v1::CaptureAttentionRequest request;
  request.add_rows(-1);
  return StatusOf<v1::CaptureAttentionReply>(service, request,
                                             &v1::Inference::Stub::CaptureAttention);
}

// The second call finds the budget of the requests full while the first one runs.
void ExpectOneAtATime(grpc::Status (*call)(OneRequestService&)) {
  OneRequestService service;
  service.Hold();
  grpc::Status first;
  std::thread running([&] { first = call(service); });
  EXPECT_TRUE(service.WaitForStep());
  const grpc::Status second = call(service);
  service.Release();
  running.join();
  EXPECT_EQ(second.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << second.error_message();
  EXPECT_THAT(second.error_message(), HasSubstr("bytes of requests; with this one of"));
  EXPECT_TRUE(first.ok()) << first.error_message();
  EXPECT_TRUE(service.Memory().Take(1).ok()) << "the ended calls still hold memory";
}

TEST(RequestMemoryTest, GenerateTakesItsRequestFromTheBudget) { ExpectOneAtATime(Generate); }

TEST(RequestMemoryTest, CaptureAttentionTakesItsRequestFromTheBudget) { ExpectOneAtATime(Capture); }

}  // namespace
}  // namespace lssar
