#include "server/api/call_spans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace lssar {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

const Span::Time kEnd(seconds(1'700'000'000));

// A Generate call over gRPC that took a second.
TracedCall Call() {
  TracedCall call;
  call.trace = StartSpan("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  call.rpc = "Generate";
  call.kind = CallKind::kGenerate;
  call.request_id = "id-1";
  call.client = "192.0.2.1";
  call.model = "lssar-6m";
  call.checkpoint_hash = "0123";
  call.finish = FinishReason::kLength;
  call.stats = {.num_prompt_tokens = 5, .num_cached_tokens = 2, .num_generated_tokens = 7};
  call.started = Clock::time_point(seconds(100));
  call.ended = Clock::time_point(seconds(101));
  call.ended_at = kEnd;
  call.num_items = 1;
  call.items = {{.index = 0,
                 .ended = Clock::time_point(milliseconds(100'990)),
                 .stats = {.num_prompt_tokens = 5,
                           .num_generated_tokens = 7,
                           .queue_us = 100'000,
                           .prefill_us = 200'000,
                           .decode_us = 300'000}}};
  return call;
}

// Attributes as text.
std::map<std::string, std::string> AttributesOf(const Span& span) {
  std::map<std::string, std::string> texts;
  for (const SpanAttribute& attribute : span.attributes) {
    std::string text;
    if (const auto* number = std::get_if<int64_t>(&attribute.value)) text = std::to_string(*number);
    if (const auto* value = std::get_if<std::string>(&attribute.value)) text = *value;
    if (const auto* values = std::get_if<std::vector<std::string>>(&attribute.value)) {
      for (const std::string& value : *values) text += "[" + value + "]";
    }
    const bool is_new = texts.emplace(attribute.key, text).second;
    EXPECT_TRUE(is_new) << attribute.key;
  }
  return texts;
}

std::vector<std::string> NamesOf(const std::vector<Span>& spans) {
  std::vector<std::string> names;
  for (const Span& span : spans) names.push_back(span.name);
  return names;
}

TEST(CallSpansTest, TheStagesAreChildrenOfTheCallAndFollowOneAnother) {
  const TracedCall call = Call();
  const std::vector<Span> spans = MakeCallSpans(call);
  ASSERT_THAT(NamesOf(spans),
              ElementsAre("lssar.v1.Inference/Generate", "queue", "prefill", "decode"));
  EXPECT_EQ(spans[0].span_id, call.trace.span_id);
  EXPECT_EQ(spans[0].parent_id, "00f067aa0ba902b7");
  EXPECT_TRUE(spans[0].has_remote_parent);
  EXPECT_EQ(spans[0].kind, Span::Kind::kServer);
  EXPECT_EQ(spans[0].start, kEnd - seconds(1));
  EXPECT_EQ(spans[0].end, kEnd);
  std::set<std::string> ids;
  for (const Span& span : spans) {
    EXPECT_EQ(span.trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
    ids.insert(span.span_id);
  }
  EXPECT_EQ(ids.size(), spans.size());
  const std::vector<milliseconds> times = {milliseconds(100), milliseconds(200), milliseconds(300)};
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].parent_id, call.trace.span_id);
    EXPECT_FALSE(spans[i].has_remote_parent);
    EXPECT_EQ(spans[i].kind, Span::Kind::kInternal);
    EXPECT_EQ(spans[i].end - spans[i].start, times[i - 1]);
    if (i > 1) {
      EXPECT_EQ(spans[i].start, spans[i - 1].end);
    }
  }
  EXPECT_EQ(spans[3].end, kEnd - milliseconds(10));
}

TEST(CallSpansTest, ACallOverGrpc) {
  const Span span = MakeCallSpans(Call()).front();
  EXPECT_FALSE(span.is_error);
  const auto attributes = AttributesOf(span);
  EXPECT_EQ(attributes,
            (std::map<std::string, std::string>{{"rpc.system.name", "grpc"},
                                                {"rpc.method", "lssar.v1.Inference/Generate"},
                                                {"rpc.response.status_code", "OK"},
                                                {"client.address", "192.0.2.1"},
                                                {"lssar.request_id", "id-1"},
                                                {"gen_ai.operation.name", "text_completion"},
                                                {"gen_ai.provider.name", "lssar"},
                                                {"gen_ai.response.model", "lssar-6m"},
                                                {"lssar.checkpoint.hash", "0123"},
                                                {"gen_ai.usage.input_tokens", "5"},
                                                {"gen_ai.usage.cache_read.input_tokens", "2"},
                                                {"gen_ai.usage.output_tokens", "7"},
                                                {"gen_ai.response.finish_reasons", "[length]"},
                                                {"lssar.finish_reason", "LENGTH"},
                                                {"lssar.num_preemptions", "0"},
                                                {"lssar.num_items", "1"}}));
}

TEST(CallSpansTest, ACallOverHttp) {
  TracedCall call = Call();
  call.http = HttpPath{.method = "DELETE",
                       .path = "/v1/completions/" + std::string(1000, 'a'),
                       .route = "/v1/completions/{id}"};
  call.http_status = 404;
  call.code = absl::StatusCode::kNotFound;
  call.kind = std::nullopt;
  call.key = "alice";
  call.has_tls = true;
  const Span span = MakeCallSpans(call).front();
  EXPECT_EQ(span.name, "DELETE /v1/completions/{id}");
  EXPECT_FALSE(span.is_error);  // the client's
  const auto attributes = AttributesOf(span);
  EXPECT_LE(attributes.at("url.path").size(), 260u);
  EXPECT_THAT(attributes,
              AllOf(Contains(Pair("http.request.method", "DELETE")),
                    Contains(Pair("http.route", "/v1/completions/{id}")),
                    Contains(Pair("http.response.status_code", "404")),
                    Contains(Pair("url.scheme", "https")), Contains(Pair("lssar.key", "alice")),
                    Not(Contains(Key("error.type"))), Not(Contains(Key("rpc.method"))),
                    Not(Contains(Key("gen_ai.operation.name")))));
}

TEST(CallSpansTest, ErrorsOfTheServerAreErrors) {
  TracedCall call = Call();
  for (const auto& [code, is_error] :
       std::map<absl::StatusCode, bool>{{absl::StatusCode::kOk, false},
                                        {absl::StatusCode::kCancelled, false},
                                        {absl::StatusCode::kInvalidArgument, false},
                                        {absl::StatusCode::kResourceExhausted, false},
                                        {absl::StatusCode::kUnauthenticated, false},
                                        {absl::StatusCode::kDeadlineExceeded, true},
                                        {absl::StatusCode::kUnavailable, true},
                                        {absl::StatusCode::kInternal, true},
                                        {absl::StatusCode::kDataLoss, true}}) {
    call.code = code;
    call.error = "why";
    const Span span = MakeCallSpans(call).front();
    EXPECT_EQ(span.is_error, is_error) << absl::StatusCodeToString(code);
    EXPECT_EQ(span.error, is_error ? "why" : "");
    EXPECT_EQ(AttributesOf(span).contains("error.type"), is_error);
  }
}

TEST(CallSpansTest, AStageThatWasNotReachedHasNoSpan) {
  TracedCall call = Call();
  call.items[0].stats.decode_us = 0;
  EXPECT_THAT(NamesOf(MakeCallSpans(call)),
              ElementsAre("lssar.v1.Inference/Generate", "queue", "prefill"));
  call.items[0].stats.prefill_us = 0;
  EXPECT_THAT(NamesOf(MakeCallSpans(call)), ElementsAre("lssar.v1.Inference/Generate", "queue"));
  call.items.clear();
  EXPECT_THAT(NamesOf(MakeCallSpans(call)), ElementsAre("lssar.v1.Inference/Generate"));
}

TEST(CallSpansTest, EachItemHasItsStages) {
  TracedCall call = Call();
  call.items.push_back(call.items[0]);
  call.items[1].index = 4;
  const std::vector<Span> spans = MakeCallSpans(call);
  ASSERT_EQ(spans.size(), 7u);
  EXPECT_THAT(AttributesOf(spans[3]), Contains(Pair("lssar.item", "0")));
  EXPECT_THAT(AttributesOf(spans[4]), Contains(Pair("lssar.item", "4")));
}

}  // namespace
}  // namespace lssar
