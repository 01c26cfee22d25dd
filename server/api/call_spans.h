// What a call tells an OpenTelemetry collector: one span of the server, and in it the stages of its
// engine requests.
#ifndef LSSAR_SERVER_API_CALL_SPANS_H_
#define LSSAR_SERVER_API_CALL_SPANS_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "runtime/request.h"
#include "server/ops/metrics.h"
#include "server/ops/otlp_exporter.h"
#include "server/ops/trace_context.h"

namespace lssar {

// The first items of a call have spans of their stages. One of many more items must not push other
// calls out of the exporter's queue.
inline constexpr size_t kMaxTracedItems = 16;

// The path of a call over HTTP.
struct HttpPath {
  std::string method;      // "POST"
  std::string path;        // as sent
  std::string_view route;  // "/v1/models"; static storage
};

// An engine request of a call.
struct TracedItem {
  int index = 0;
  Clock::time_point ended;
  RequestStats stats;
};

// Never has text of prompts or outputs.
struct TracedCall {
  TraceContext trace = {};
  std::string_view rpc = {};          // "Generate"
  std::optional<HttpPath> http = {};  // nullopt: gRPC
  int http_status = 0;                // 0: none was sent
  bool has_tls = false;               // of the ports
  std::optional<CallKind> kind = {};  // set: a call of the engine
  bool is_chat = false;               // Generate: of a chat
  std::string request_id = {};
  std::string client = {};  // its address
  std::string key = {};     // its name; empty: there are none
  std::string model = {};   // the first name; empty: the call was not admitted
  std::string checkpoint_hash = {};
  std::string asked_model = {};  // the name in the request; empty: it has none
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string error = {};  // of INTERNAL and DATA_LOSS, which have no user's text
  std::optional<FinishReason> finish = {};
  RequestStats stats = {};             // over all items
  std::vector<TracedItem> items = {};  // the first kMaxTracedItems that have ended
  int num_items = 0;                   // that have ended
  Clock::time_point started = {};
  Clock::time_point ended = {};
  Span::Time ended_at = {};  // `ended` as time of the day
};

// The call's span, then those named queue, prefill and decode of each traced item, whose parent it
// is. A stage that an item has not reached has none.
std::vector<Span> MakeCallSpans(const TracedCall& call);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_CALL_SPANS_H_
