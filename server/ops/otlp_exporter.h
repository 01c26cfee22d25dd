// Sends spans to an OpenTelemetry collector: OTLP over HTTP, as JSON.
// Source  https://opentelemetry.io/docs/specs/otlp/, 1.10
#ifndef LSSAR_SERVER_OPS_OTLP_EXPORTER_H_
#define LSSAR_SERVER_OPS_OTLP_EXPORTER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"

namespace lssar {

// Names and meaning of the attributes whose keys do not begin with "lssar.".
inline constexpr std::string_view kOtlpSchemaUrl = "https://opentelemetry.io/schemas/1.44.0";

struct SpanAttribute {
  std::string_view key;  // static storage
  std::variant<int64_t, std::string, std::vector<std::string>> value;
};

struct Span {
  using Time = std::chrono::system_clock::time_point;
  enum class Kind : uint8_t { kInternal = 1, kServer = 2 };  // the numbers are OTLP's

  std::string trace_id;   // 32 hexadecimal digits
  std::string span_id;    // 16
  std::string parent_id;  // 16; empty: the first of its trace
  std::string name;
  Kind kind = Kind::kInternal;
  bool has_remote_parent = false;
  Time start, end;
  std::vector<SpanAttribute> attributes = {};
  bool is_error = false;
  std::string error = {};  // may be empty
};

// The message ExportTraceServiceRequest of `spans`, as JSON: ids in hexadecimal, 64-bit numbers as
// strings. Bytes that are not UTF-8 are replaced.
std::string OtlpJson(std::span<const Span> spans);

struct OtlpEndpoint {
  bool has_tls = false;
  std::string host;  // IPv6 without brackets
  int port = 0;
  std::string path;  // with its slash
};

// "http://HOST:PORT", whose path is /v1/traces, or "http://HOST:PORT/PATH"; https the same.
// Errors  INVALID_ARGUMENT: says what it must be
absl::StatusOr<OtlpEndpoint> ParseOtlpEndpoint(std::string_view url);

struct OtlpOptions {
  OtlpEndpoint endpoint;
  double sample_ratio = 1;  // of the traces that begin here
  std::string log_level = "info";
  size_t max_queued_spans = 8192;
  size_t max_batch_spans = 512;
  std::chrono::milliseconds interval = std::chrono::seconds(1);        // between two batches
  std::chrono::milliseconds timeout = std::chrono::seconds(10);        // of one request
  std::chrono::milliseconds first_retry = std::chrono::seconds(1);     // doubles with each attempt
  std::chrono::milliseconds longest_retry = std::chrono::seconds(30);  // up to this
};

struct OtlpCounts {
  int64_t num_exported = 0;  // spans that the collector has taken
  int64_t num_dropped = 0;   // left a full queue, refused by the collector, or left at the end
};

// One thread sends the spans in batches, one request at a time. A batch waits for a collector that
// does not answer or says 429, 502, 503 or 504; one that says anything else has refused it. Spans
// that find the queue full are dropped, all of one call together. What the collector does costs the
// callers nothing. Connects directly: proxies of the environment are not used.
//
// Threads  any
class OtlpExporter {
 public:
  explicit OtlpExporter(OtlpOptions options);
  ~OtlpExporter();  // Stop(0)
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  double SampleRatio() const;

  // The spans of one call. Never waits for the collector.
  void Export(std::vector<Span> spans);

  // Sends what waits, for at most `limit`, and drops the rest; spans given later are dropped.
  // Another call may wait for longer until the thread has ended. False: it has not. A process must
  // not return from main then.
  bool Stop(std::chrono::milliseconds limit);

  OtlpCounts Counts() const;

 private:
  struct State;
  // The thread's own, too: it may be in a name server's or a collector's hands when Stop's limit
  // passes, and goes on alone.
  const std::shared_ptr<State> state_;
  std::mutex thread_mutex_;
  std::thread thread_;  // under thread_mutex_; joined once it has ended
};

}  // namespace lssar

#endif  // LSSAR_SERVER_OPS_OTLP_EXPORTER_H_
