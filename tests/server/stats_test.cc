// Metrics, GetStats, request and trace ids of calls.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "base/str_cat.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "tests/server/poll_until.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::MatchesRegex;

v1::GenerateRequest Request(int max_tokens) {
  v1::GenerateRequest request;
  for (int id = 10; id < 17; ++id) request.mutable_tokens()->add_ids(id);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  request.set_use_prefix_cache(false);
  return request;
}

// `num_items` items, each a context of 3 tokens and two continuations of 2.
v1::ScoreRequest Items(int num_items) {
  v1::ScoreRequest request;
  request.set_use_prefix_cache(false);
  for (int i = 0; i < num_items; ++i) {
    v1::ScoreItem& item = *request.add_items();
    for (int id = 10; id < 13; ++id) item.mutable_context()->mutable_tokens()->add_ids(id);
    for (int c = 0; c < 2; ++c) {
      v1::TokenIds& tokens = *item.add_continuations()->mutable_tokens();
      tokens.add_ids(20 + c);
      tokens.add_ids(30);
    }
  }
  return request;
}

v1::GetStatsReply StatsOf(TestServer& server) {
  grpc::ClientContext context;
  v1::GetStatsReply reply;
  const grpc::Status status = server.Stub().GetStats(&context, {}, &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return reply;
}

// Calls are counted at gRPC's OnDone, shortly after the client has the status.
bool WaitForMetric(const TestServer& server, const std::string& series, double value) {
  return PollUntil([&] { return server.Metric(series) == value; });
}

// 4 Generate calls of 5 tokens, one of 3 choices of 4, one Score call of 6 items.
void RunScript(TestServer& server) {
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Generate(server.Stub(), Request(5)).status.ok());
  v1::GenerateRequest choices = Request(4);
  choices.set_n(3);
  ASSERT_TRUE(Generate(server.Stub(), choices).status.ok());
  ASSERT_TRUE(Score(server.Stub(), Items(6)).status.ok());
  ASSERT_TRUE(server.WaitUntilIdle());
}

// A rejected call, a cancelled call and a call with an expired deadline.
void RunFailures(TestServer& server, std::chrono::seconds deadline) {
  ASSERT_FALSE(Generate(server.Stub(), Request(1 << 20)).status.ok());
  server.Hold();
  {
    grpc::ClientContext context;
    const auto reader = server.Stub().Generate(&context, Request(100));
    v1::GenerateReply reply;
    ASSERT_TRUE(reader->Read(&reply));
    context.TryCancel();
    ASSERT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  {
    grpc::ClientContext context;
    // Long enough for the call to arrive: the server counts no other.
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    ASSERT_EQ(Generate(server.Stub(), Request(100), context).status.error_code(),
              grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  server.Release();
  ASSERT_TRUE(server.WaitUntilIdle());
}

using Counts = std::map<std::string, int64_t>;

template <typename ProtoMap>
Counts ToCounts(const ProtoMap& map) {
  return Counts(map.begin(), map.end());
}

TEST(StatsTest, CountsOfAFixedScriptAreExact) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 8});
  RunScript(server);
  // What is counted last of a call.
  EXPECT_TRUE(WaitForMetric(server, "lssar_request_prompt_tokens_count", 6));
  EXPECT_TRUE(WaitForMetric(server, "lssar_request_generation_tokens_count", 5));
  EXPECT_EQ(server.Metric("lssar_request_success_total{finished_reason=\"LENGTH\"}"), 5);
  EXPECT_EQ(server.Metric("lssar_request_success_total{finished_reason=\"SCORE\"}"), 1);
  EXPECT_EQ(server.Metric("lssar_time_to_first_token_seconds_count"), 5);
  EXPECT_EQ(server.Metric("lssar_inter_token_latency_seconds_count"), 4 * 4 + 3 * 3);
  EXPECT_EQ(server.Metric("lssar_e2e_request_latency_seconds_count"), 6);
  EXPECT_EQ(server.Metric("lssar_request_queue_time_seconds_count"), 5 + 6);
  EXPECT_EQ(server.Metric("lssar_request_prompt_tokens_sum"), 5 * 7 + 6 * (3 + 4));
  EXPECT_EQ(server.Metric("lssar_request_prompt_tokens_bucket{le=\"8\"}"), 5);
  EXPECT_EQ(server.Metric("lssar_request_generation_tokens_sum"), 4 * 5 + 3 * 4);
  EXPECT_EQ(server.Metric("lssar_num_requests_running"), 0);
  EXPECT_EQ(server.Metric("lssar_num_requests_waiting"), 0);
  EXPECT_EQ(server.Metric("lssar_kv_cache_usage_ratio"), 0);

  const v1::GetStatsReply stats = StatsOf(server);
  EXPECT_EQ(ToCounts(stats.num_finished()), (Counts{{"LENGTH", 5}, {"SCORE", 1}}));
  EXPECT_EQ(ToCounts(stats.num_failed()), Counts());
  EXPECT_EQ(stats.num_generated_tokens(), 4 * 5 + 3 * 4);
  EXPECT_GE(stats.num_prompt_tokens(), 5 * 7);
  EXPECT_GT(stats.num_value_rows_read(), 0);
  EXPECT_EQ(server.Metric("lssar_prompt_tokens_total"), double(stats.num_prompt_tokens()));
  EXPECT_EQ(server.Metric("lssar_generation_tokens_total"), double(stats.num_generated_tokens()));
  EXPECT_EQ(server.Metric("lssar_attention_value_rows_total"), double(stats.num_value_rows()));
  EXPECT_EQ(server.Metric("lssar_attention_value_rows_read_total"),
            double(stats.num_value_rows_read()));
  // The last step is reported after its last token.
  EXPECT_TRUE(
      WaitForMetric(server, "lssar_iteration_tokens_sum", double(stats.num_batched_tokens())));
  EXPECT_TRUE(WaitForMetric(server, "lssar_iteration_tokens_count", double(stats.num_steps())));
}

TEST(StatsTest, FailuresAreCountedByTheClientsStatusCode) {
  // A client that stalls until its deadline sends nothing: then with more time.
  for (const int deadline_s : {2, 10, 50}) {
    TestServer server;
    RunFailures(server, std::chrono::seconds(deadline_s));
    const auto is_counted = [&server](std::string_view code) {
      return WaitForMetric(server, StrCat("lssar_request_failure_total{code=\"", code, "\"}"), 1);
    };
    if (!is_counted("DEADLINE_EXCEEDED") && deadline_s < 50) continue;
    for (const char* code : {"CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT"}) {
      EXPECT_TRUE(is_counted(code)) << code;
    }
    const v1::GetStatsReply stats = StatsOf(server);
    EXPECT_EQ(ToCounts(stats.num_failed()),
              (Counts{{"CANCELLED", 1}, {"DEADLINE_EXCEEDED", 1}, {"INVALID_ARGUMENT", 1}}));
    EXPECT_EQ(ToCounts(stats.num_finished()), Counts());
    EXPECT_EQ(server.Metric("lssar_e2e_request_latency_seconds_count"), 0);
    break;
  }
}

TEST(StatsTest, TimesAndGaugesOfRunningRequests) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1, .max_queued_requests = 4});
  server.Hold();
  grpc::ClientContext running_context;
  const auto running = server.Stub().Generate(&running_context, Request(3));
  v1::GenerateReply reply;
  ASSERT_TRUE(running->Read(&reply));
  grpc::ClientContext waiting_context;
  const auto waiting = server.Stub().Generate(&waiting_context, Request(3));
  EXPECT_TRUE(WaitForMetric(server, "lssar_num_requests_waiting", 1));
  EXPECT_EQ(server.Metric("lssar_num_requests_running"), 1);
  // The first reply comes before the request has pages.
  EXPECT_TRUE(PollUntil([&] { return server.Metric("lssar_kv_cache_usage_ratio") > 0; }));
  const v1::GetStatsReply held = StatsOf(server);
  EXPECT_EQ(held.num_running(), 1);
  EXPECT_EQ(held.num_waiting(), 1);
  EXPECT_EQ(held.num_waiting_tokens(), 7);
  EXPECT_LT(held.num_free_pages(), held.num_pages());
  server.Release();
  while (running->Read(&reply)) continue;
  while (waiting->Read(&reply)) continue;
  EXPECT_TRUE(running->Finish().ok());
  EXPECT_TRUE(waiting->Finish().ok());
  ASSERT_TRUE(server.WaitUntilIdle());
  const v1::GetStatsReply idle = StatsOf(server);
  EXPECT_EQ(idle.num_free_pages() + idle.num_cached_pages(), idle.num_pages());
  EXPECT_GT(idle.stages().forward_ns(), 0);
  EXPECT_GT(idle.uptime_ns(), held.uptime_ns());
  // The engine's thread is always in exactly one stage.
  const v1::StageTimes& stages = idle.stages();
  EXPECT_LE(stages.admit_ns() + stages.schedule_ns() + stages.forward_ns() + stages.sample_ns() +
                stages.output_ns() + stages.idle_ns(),
            idle.uptime_ns());
}

std::string TrailerOf(const grpc::ClientContext& context, const std::string& key) {
  const auto found = context.GetServerTrailingMetadata().find(key);
  if (found == context.GetServerTrailingMetadata().end()) return "none";
  return {found->second.data(), found->second.size()};
}

TEST(StatsTest, EveryCallReturnsItsIds) {
  TestServer server;
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  const std::string ours = "00-4bf92f3577b34da6a3ce929d0e0e4736-[0-9a-f]{16}-01";
  for (const int max_tokens : {3, 1 << 20}) {  // one succeeds, one is rejected
    grpc::ClientContext context;
    context.AddMetadata("traceparent", trace);
    context.AddMetadata("x-request-id", "mine.7");
    Generate(server.Stub(), Request(max_tokens), context);
    EXPECT_EQ(TrailerOf(context, "x-request-id"), "mine.7");
    EXPECT_THAT(TrailerOf(context, "traceparent"), MatchesRegex(ours));
    EXPECT_NE(TrailerOf(context, "traceparent"), trace);
  }
  grpc::ClientContext context;
  context.AddMetadata("traceparent", "00-junk");
  context.AddMetadata("x-request-id", "no good");
  v1::GetInfoReply reply;
  ASSERT_TRUE(server.Stub().GetInfo(&context, {}, &reply).ok());
  EXPECT_THAT(TrailerOf(context, "x-request-id"), MatchesRegex("[0-9a-f]{24}"));
  EXPECT_THAT(TrailerOf(context, "traceparent"), MatchesRegex("00-[0-9a-f]{32}-[0-9a-f]{16}-00"));
}

TEST(ModelNameTest, ACallForAnotherModelIsRefused) {
  TestServer server;
  for (const auto& [name, is_known] :
       {std::pair("lssar-6m", true), std::pair("lssar-6", false), std::pair("lssar-6m ", false)}) {
    grpc::ClientContext info, generate;
    info.AddMetadata("x-lssar-model", name);
    generate.AddMetadata("x-lssar-model", name);
    v1::GetInfoReply reply;
    for (const grpc::Status& status : {server.Stub().GetInfo(&info, {}, &reply),
                                       Generate(server.Stub(), Request(3), generate).status}) {
      EXPECT_EQ(status.ok(), is_known) << name;
      if (is_known) continue;
      EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
      EXPECT_EQ(status.error_message(),
                StrCat("there is no model \"", name, "\"; this server serves \"lssar-6m\""));
      google::rpc::Status details;
      ASSERT_TRUE(details.ParseFromString(status.error_details()));
      google::rpc::ErrorInfo reason;
      ASSERT_EQ(details.details_size(), 1);
      ASSERT_TRUE(details.details(0).UnpackTo(&reason));
      EXPECT_EQ(reason.reason(), "MODEL_NOT_FOUND");
    }
  }
  EXPECT_TRUE(server.WaitUntilIdle());
}

}  // namespace
}  // namespace lssar
