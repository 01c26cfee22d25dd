#include "server/ops/otlp_exporter.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <condition_variable>
#include <deque>
#include <iterator>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/str_cat.h"
#include "base/thread_name.h"
#include "server/http/blocking_client.h"
#include "server/net/host_port.h"
#include "server/ops/log.h"

namespace lssar {
namespace {

using nlohmann::json;
using Milliseconds = std::chrono::milliseconds;

constexpr std::string_view kDefaultPath = "/v1/traces";
// A collector's answer is an object of two fields.
constexpr size_t kMaxAnswerBytes = size_t{64} << 10;
// A span's flags: those of W3C, then whether the next bit is known, and that bit: the parent is in
// another process.
constexpr uint32_t kIsSampled = 1, kKnowsParent = 1 << 8, kHasRemoteParent = 1 << 9;
constexpr int kStatusError = 2;

std::string Nanoseconds(Span::Time time) {
  return StrCat(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

json ValueJson(int64_t value) { return {{"intValue", StrCat(value)}}; }
json ValueJson(const std::string& value) { return {{"stringValue", value}}; }
json ValueJson(const std::vector<std::string>& values) {
  json list = json::array();
  for (const std::string& value : values) list.push_back(ValueJson(value));
  return {{"arrayValue", {{"values", std::move(list)}}}};
}

json AttributesJson(const std::vector<SpanAttribute>& attributes) {
  json list = json::array();
  for (const SpanAttribute& attribute : attributes) {
    json value = std::visit([](const auto& held) { return ValueJson(held); }, attribute.value);
    list.push_back({{"key", attribute.key}, {"value", std::move(value)}});
  }
  return list;
}

json SpanJson(const Span& span) {
  const uint32_t flags =
      kIsSampled | kKnowsParent | (span.has_remote_parent ? kHasRemoteParent : 0);
  json object = {{"traceId", span.trace_id},
                 {"spanId", span.span_id},
                 {"flags", flags},
                 {"name", span.name},
                 {"kind", int(span.kind)},
                 {"startTimeUnixNano", Nanoseconds(span.start)},
                 {"endTimeUnixNano", Nanoseconds(span.end)},
                 {"attributes", AttributesJson(span.attributes)}};
  if (!span.parent_id.empty()) object["parentSpanId"] = span.parent_id;
  if (span.is_error) {
    object["status"] = {{"code", kStatusError}};
    if (!span.error.empty()) object["status"]["message"] = span.error;
  }
  return object;
}

// The process, as an OpenTelemetry resource.
const json& ResourceJson() {
  static const json& resource = *[] {
    std::array<char, HOST_NAME_MAX + 1> host = {};
    gethostname(host.data(), host.size() - 1);
    std::random_device random;
    const uint64_t instance = uint64_t{random()} << 32 | random();
    auto* const object = new json(json::object());
    (*object)["attributes"] =
        AttributesJson({{"service.name", "lssar"},
                        {"service.version", LSSAR_VERSION},
                        {"service.instance.id", absl::StrFormat("%016x", instance)},
                        {"host.name", host.data()},
                        {"process.pid", int64_t{getpid()}}});
    return object;
  }();
  return resource;
}

// How many of the batch the collector says that it has rejected.
int64_t NumRejected(const std::string& reply) {
  const json object = json::parse(reply, nullptr, /*allow_exceptions=*/false);
  const auto at = json::json_pointer("/partialSuccess/rejectedSpans");
  if (!object.is_object() || !object.contains(at)) return 0;
  const json& count = object[at];
  int64_t number = 0;
  if (count.is_string()) absl::SimpleAtoi(count.get_ref<const std::string&>(), &number);
  if (count.is_number_integer()) number = count.get<int64_t>();
  return number;
}

}  // namespace

std::string OtlpJson(std::span<const Span> spans) {
  json list = json::array();
  for (const Span& span : spans) list.push_back(SpanJson(span));
  json scope = json::object();
  scope["scope"] = {{"name", "lssar.server"}, {"version", LSSAR_VERSION}};
  scope["spans"] = std::move(list);
  scope["schemaUrl"] = kOtlpSchemaUrl;
  json resource = json::object();
  resource["resource"] = ResourceJson();
  resource["scopeSpans"] = json::array({std::move(scope)});
  resource["schemaUrl"] = kOtlpSchemaUrl;
  json request = json::object();
  request["resourceSpans"] = json::array({std::move(resource)});
  return request.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url) {
  const absl::Status error = absl::InvalidArgumentError(
      "it must be http://HOST:PORT or https://HOST:PORT, with or without a path, without a user, ? "
      "or #, such as http://127.0.0.1:4318");
  OtlpEndpoint endpoint;
  constexpr std::string_view kHttp = "http://", kHttps = "https://";
  endpoint.has_tls = url.starts_with(kHttps);
  if (!endpoint.has_tls && !url.starts_with(kHttp)) return error;
  url.remove_prefix(endpoint.has_tls ? kHttps.size() : kHttp.size());
  const bool is_printable = std::ranges::all_of(url, [](char c) { return c > ' ' && c < '\x7f'; });
  if (!is_printable || url.find_first_of("?#@\\") != url.npos) return error;
  const size_t slash = std::min(url.find('/'), url.size());
  const std::string_view path = url.substr(slash);
  endpoint.path = path.size() <= 1 ? kDefaultPath : path;
  const auto address = SplitHostPort(url.substr(0, slash));
  if (!address || address->port == 0) return error;
  endpoint.host = address->host;
  endpoint.port = address->port;
  return endpoint;
}

struct OtlpExporter::State {
  explicit State(OtlpOptions otlp_options)
      : options(std::move(otlp_options)), log(options.log_level) {}

  // The thread's work, until Stop.
  void Run();
  // Waits for spans; empty: there are none left, and Stop has been called.
  std::vector<Span> Take();
  // Until the collector has taken or refused the batch, or has not done so once more after Stop.
  void Deliver(const std::vector<Span>& batch);
  // Counts the batch. No effect once Stop has given up.
  void Count(int64_t num_exported, int64_t num_dropped);
  // Waits before the next attempt. False: Stop was called.
  bool Wait(Milliseconds delay);
  // Logs where it differs from the report before.
  void Report(const absl::Status& status);
  // What the thread still has to send. Under the lock.
  size_t NumUnsent() const { return queue.size() + num_in_flight; }

  const OtlpOptions options;
  const Log log;
  bool is_failing = false;                          // the thread's own
  std::minstd_rand jitter{std::random_device()()};  // the thread's own

  std::mutex mutex;
  std::condition_variable wake;   // of the thread
  std::condition_variable ended;  // of Stop
  std::deque<Span> queue;
  size_t num_in_flight = 0;
  OtlpCounts counts;
  bool is_stopped = false;   // Stop was called
  bool has_ended = false;    // the thread
  bool is_given_up = false;  // Stop did not wait for it any longer
};

void OtlpExporter::State::Run() {
  NameThisThread("otlp");
  for (std::vector<Span> batch = Take(); !batch.empty(); batch = Take()) Deliver(batch);
  const std::lock_guard lock(mutex);
  has_ended = true;
  ended.notify_all();
}

std::vector<Span> OtlpExporter::State::Take() {
  std::unique_lock lock(mutex);
  wake.wait(lock, [this] { return is_stopped || !queue.empty(); });
  wake.wait_for(lock, options.interval,
                [this] { return is_stopped || queue.size() >= options.max_batch_spans; });
  num_in_flight = std::min(queue.size(), options.max_batch_spans);
  const auto end = queue.begin() + std::ptrdiff_t(num_in_flight);
  std::vector<Span> batch(std::make_move_iterator(queue.begin()), std::make_move_iterator(end));
  queue.erase(queue.begin(), end);
  return batch;
}

bool OtlpExporter::State::Wait(Milliseconds delay) {
  std::unique_lock lock(mutex);
  return !wake.wait_for(lock, delay, [this] { return is_stopped; });
}

void OtlpExporter::State::Count(int64_t num_exported, int64_t num_dropped) {
  const std::lock_guard lock(mutex);
  num_in_flight = 0;
  if (is_given_up) return;
  counts.num_exported += num_exported;
  counts.num_dropped += num_dropped;
}

void OtlpExporter::State::Report(const absl::Status& status) {
  if (is_failing == !status.ok()) return;
  is_failing = !status.ok();
  if (is_failing) {
    log.Warning("otlp", {{"message", std::string(status.message())}});
  } else {
    log.Info("otlp", {{"message", "the collector takes spans again"}});
  }
}

void OtlpExporter::State::Deliver(const std::vector<Span>& batch) {
  const OtlpEndpoint& endpoint = options.endpoint;
  const HttpTarget target = {.host = endpoint.host,
                             .port = endpoint.port,
                             .has_tls = endpoint.has_tls,
                             .uses_system_roots = true,
                             .timeout = options.timeout,
                             .max_reply_bytes = kMaxAnswerBytes};
  const auto num_spans = std::ssize(batch);
  const std::string body = OtlpJson(batch);
  Milliseconds delay = options.first_retry;
  for (bool is_last = false;;) {
    const absl::StatusOr<HttpReply> reply = SendRequest(
        target, "POST", endpoint.path,
        {{"Content-Type", "application/json"}, {"User-Agent", "lssar/" LSSAR_VERSION}}, body);
    if (reply.ok() && reply->status / 100 == 2) {
      const int64_t num_rejected = std::clamp<int64_t>(NumRejected(reply->body), 0, num_spans);
      Report(num_rejected == 0 ? absl::OkStatus()
                               : absl::UnknownError(StrCat("the collector has rejected ",
                                                           num_rejected, " spans")));
      return Count(num_spans - num_rejected, num_rejected);
    }
    Report(reply.ok()
               ? absl::UnavailableError(StrCat(endpoint.host, ":", endpoint.port, endpoint.path,
                                               ": the collector answers ", reply->status))
               : reply.status());
    constexpr auto kRetryable = std::to_array({429, 502, 503, 504});
    if (reply.ok() && std::ranges::count(kRetryable, reply->status) == 0) {
      return Count(0, num_spans);
    }
    // With a random part, so that servers that lost their collector together do not come back so.
    Milliseconds wait = delay * std::uniform_int_distribution(50, 100)(jitter) / 100;
    if (int seconds = 0;
        reply.ok() && absl::SimpleAtoi(HeaderOf(*reply, "retry-after"), &seconds)) {
      wait = std::clamp<Milliseconds>(std::chrono::seconds(seconds), wait, options.longest_retry);
    }
    delay = std::min(2 * delay, options.longest_retry);
    if (is_last) return Count(0, num_spans);
    is_last = !Wait(wait);
  }
}

OtlpExporter::OtlpExporter(OtlpOptions options)
    : state_(std::make_shared<State>(std::move(options))),
      thread_([state = state_] { state->Run(); }) {}

OtlpExporter::~OtlpExporter() {
  if (!Stop(Milliseconds::zero())) thread_.detach();
}

double OtlpExporter::SampleRatio() const { return state_->options.sample_ratio; }

void OtlpExporter::Export(std::vector<Span> spans) {
  State& state = *state_;
  bool must_wake = false;
  {
    const std::lock_guard lock(state.mutex);
    const size_t num_before = state.queue.size();
    const size_t num_after = num_before + spans.size();
    if (state.is_stopped || num_after > state.options.max_queued_spans) {
      state.counts.num_dropped += std::ssize(spans);
      return;
    }
    std::ranges::move(spans, std::back_inserter(state.queue));
    // In between the thread waits for a batch, or is at work.
    const size_t batch = state.options.max_batch_spans;
    must_wake = num_before == 0 || (num_before < batch && num_after >= batch);
  }
  if (must_wake) state.wake.notify_one();
}

bool OtlpExporter::Stop(std::chrono::milliseconds limit) {
  State& state = *state_;
  {
    std::unique_lock lock(state.mutex);
    state.is_stopped = true;
    state.wake.notify_all();
    const auto has_ended = [&state] { return state.has_ended; };
    if (!state.ended.wait_for(lock, limit, has_ended) && !std::exchange(state.is_given_up, true)) {
      state.counts.num_dropped += int64_t(state.NumUnsent());
      state.queue.clear();
    }
    // Without a batch the thread ends at once.
    if (state.num_in_flight == 0) state.ended.wait(lock, has_ended);
    if (!state.has_ended) return false;
  }
  const std::lock_guard lock(thread_mutex_);
  if (thread_.joinable()) thread_.join();
  return true;
}

OtlpCounts OtlpExporter::Counts() const {
  const std::lock_guard lock(state_->mutex);
  return state_->counts;
}

}  // namespace lssar
