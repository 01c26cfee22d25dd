#include "server/api/call_spans.h"

#include <cstdint>
#include <utility>

#include "base/quote.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr size_t kMaxPathBytes = 256;

// The codes that OpenTelemetry's conventions for gRPC count as errors of the server. Over HTTP
// they are 5xx.
bool IsServerError(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss: return true;
    default: return false;
  }
}

class Attributes {
 public:
  explicit Attributes(Span* span) : list_(span->attributes) {}
  void Add(std::string_view key, int64_t value) { list_.emplace_back(key).value = value; }
  void Add(std::string_view key, std::string_view value) {
    if (!value.empty()) list_.emplace_back(key).value = std::string(value);
  }
  void Add(std::string_view key, std::vector<std::string> values) {
    list_.emplace_back(key).value = std::move(values);
  }

 private:
  std::vector<SpanAttribute>& list_;
};

void AddPort(const TracedCall& call, Span* span) {
  Attributes attributes(span);
  if (call.http) {
    span->name = StrCat(call.http->method, " ", call.http->route);
    attributes.Add("http.request.method", call.http->method);
    attributes.Add("http.route", call.http->route);
    attributes.Add("url.path", Shorten(call.http->path, kMaxPathBytes));
    attributes.Add("url.scheme", call.has_tls ? "https" : "http");
    if (call.http_status > 0) attributes.Add("http.response.status_code", call.http_status);
  } else {
    span->name = StrCat("lssar.v1.Inference/", call.rpc);
    attributes.Add("rpc.system.name", "grpc");
    attributes.Add("rpc.method", span->name);
    attributes.Add("rpc.response.status_code", absl::StatusCodeToString(call.code));
  }
}

void AddModel(const TracedCall& call, Span* span) {
  Attributes attributes(span);
  attributes.Add("gen_ai.operation.name",
                 call.is_chat ? "chat" : kCallKindNames[size_t(*call.kind)].operation);
  attributes.Add("gen_ai.provider.name", "lssar");
  attributes.Add("gen_ai.request.model", call.asked_model);
  attributes.Add("gen_ai.response.model", call.model);
  attributes.Add("lssar.checkpoint.hash", call.checkpoint_hash);
  const RequestStats& stats = call.stats;
  attributes.Add("gen_ai.usage.input_tokens", stats.num_prompt_tokens);
  attributes.Add("gen_ai.usage.cache_read.input_tokens", stats.num_cached_tokens);
  attributes.Add("gen_ai.usage.output_tokens", stats.num_generated_tokens);
  if (call.finish) {
    const bool is_length = *call.finish == FinishReason::kLength;
    attributes.Add("gen_ai.response.finish_reasons",
                   std::vector<std::string>{is_length ? "length" : "stop"});
    attributes.Add("lssar.finish_reason", FinishName(*call.finish));
  }
  attributes.Add("lssar.num_preemptions", stats.num_preemptions);
  attributes.Add("lssar.num_items", call.num_items);
}

}  // namespace

std::vector<Span> MakeCallSpans(const TracedCall& call) {
  const auto at = [&call](Clock::time_point time) {
    return call.ended_at - std::chrono::duration_cast<Span::Time::duration>(call.ended - time);
  };
  std::vector<Span> spans;
  spans.reserve(1 + 3 * call.items.size());
  spans.push_back({.trace_id = call.trace.trace_id,
                   .span_id = call.trace.span_id,
                   .parent_id = call.trace.parent_id,
                   .name = {},
                   .kind = Span::Kind::kServer,
                   .has_remote_parent = !call.trace.parent_id.empty(),
                   .start = at(call.started),
                   .end = call.ended_at});
  Span& server = spans.front();
  AddPort(call, &server);
  Attributes attributes(&server);
  attributes.Add("client.address", call.client);
  attributes.Add("lssar.request_id", call.request_id);
  attributes.Add("lssar.key", call.key);
  if (call.kind) AddModel(call, &server);
  server.is_error = IsServerError(call.code) || call.http_status >= 500;
  if (server.is_error) {
    attributes.Add("error.type", absl::StatusCodeToString(call.code));
    server.error = call.error;
  }

  for (const TracedItem& item : call.items) {
    const RequestStats& stats = item.stats;
    const std::chrono::microseconds decode(stats.decode_us), prefill(stats.prefill_us),
        queue(stats.queue_us);
    const auto add = [&](const char* name, Clock::time_point end, std::chrono::microseconds time) {
      Span& span = spans.emplace_back(Span{.trace_id = call.trace.trace_id,
                                           .span_id = NewSpanId(),
                                           .parent_id = call.trace.span_id,
                                           .name = name,
                                           .start = at(end - time),
                                           .end = at(end)});
      Attributes(&span).Add("lssar.item", item.index);
      return &span;
    };
    add("queue", item.ended - decode - prefill, queue);
    if (prefill.count() == 0) continue;
    Attributes prefill_attributes(add("prefill", item.ended - decode, prefill));
    prefill_attributes.Add("lssar.num_prompt_tokens", stats.num_prompt_tokens);
    prefill_attributes.Add("lssar.num_cached_tokens", stats.num_cached_tokens);
    if (decode.count() == 0) continue;
    Attributes(add("decode", item.ended, decode))
        .Add("lssar.num_generated_tokens", stats.num_generated_tokens);
  }
  return spans;
}

}  // namespace lssar
