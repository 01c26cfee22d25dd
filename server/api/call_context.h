// Per-call context, the same for gRPC and HTTP: request id, trace, deadline and admission permit.
// Writes the log line, the metrics and the spans when the call ends.
#ifndef LSSAR_SERVER_API_CALL_CONTEXT_H_
#define LSSAR_SERVER_API_CALL_CONTEXT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/request.h"
#include "server/api/call_spans.h"
#include "server/api/memory_budget.h"
#include "server/api/parse_request.h"
#include "server/api/worker_pool.h"
#include "server/auth/admission_control.h"
#include "server/config/options.h"
#include "server/net/client_address.h"
#include "server/ops/log.h"
#include "server/ops/metrics.h"
#include "server/ops/otlp_exporter.h"
#include "server/ops/trace_context.h"

namespace lssar {

class ReplyWriter;

// What every call uses. All of it outlives the calls.
struct ServiceContext {
  AdmissionControl* admission = nullptr;
  const Log* log = nullptr;
  Metrics* metrics = nullptr;
  WorkerPool* workers = nullptr;  // parses and tokenizes requests
  MemoryBudget* request_memory = nullptr;
  MemoryBudget* reply_memory = nullptr;
  ReplyWriter* replies = nullptr;  // of gRPC's streaming calls
  StreamOptions stream = {};
  const TrustedProxies* trusted_proxies = nullptr;  // null: none
  bool share_prefix_cache_between_keys = false;
  OtlpExporter* traces = nullptr;  // null: none
  bool has_tls = false;            // of the ports
};

// What a client sends besides the request itself. Fields are as received, not yet validated.
struct CallMetadata {
  std::string_view rpc;               // for the log; static storage
  std::optional<CallKind> kind = {};  // set: the call runs on the engine and metrics count it
  std::string request_id = {};        // x-request-id
  std::string traceparent = {};       // W3C trace context
  std::string authorization = {};     // "Bearer KEY"
  std::string peer = {};              // the connection's client, PeerAddress::uri
  std::string forwarded_for = {};     // x-forwarded-for: all values, with commas between them
  std::string model = {};             // x-lssar-model: the call is for this one; empty: any
  std::optional<Caller> caller = {};  // set: has been authenticated
  // A row of a batch: of the tenant of all rows, and of the lowest priority.
  bool is_batch_row = false;
  std::optional<Clock::time_point> deadline = {};  // nullopt: none
  std::optional<HttpPath> http = {};               // nullopt: gRPC
};

// Threads  any; Admit is called once, before any other thread sees the context
class CallContext {
 public:
  // Keeps the client's request id if it is 1 to 64 of [A-Za-z0-9._-]; otherwise makes one of 96
  // random bits: a counter would tell how many calls others make.
  CallContext(CallMetadata metadata, const ServiceContext& parts);
  ~CallContext();
  CallContext(const CallContext&) = delete;
  CallContext& operator=(const CallContext&) = delete;

  // Both go back to the client: in gRPC's trailing metadata, in HTTP's response headers.
  const std::string& RequestId() const { return request_id_; }
  std::string Traceparent() const { return trace_.Traceparent(); }

  std::optional<Clock::time_point> Deadline() const { return metadata_.deadline; }
  Clock::duration Elapsed() const { return Clock::now() - started_; }
  Metrics& GetMetrics() const { return *parts_.metrics; }
  MemoryBudget& RequestMemory() const { return *parts_.request_memory; }

  // Obtains the admission permit, which is held until the context is destroyed. A call with a kind
  // also requires free capacity in the engine's queue. Call before the request is parsed, so that
  // an overloaded server rejects cheaply.
  // `abort`: ends the call at once, from any thread; empty if the call ends by itself soon
  // Errors  those of AdmissionControl::Admit, LoadedModel::CheckName and Engine::CheckQueueCapacity
  absl::Status Admit(KeyRole role, AbortCallback abort = {});
  // Requires  Admit obtained a permit
  LoadedModel& Model() const { return *model_; }
  // Whose calls share the engine: the key's name, or the client's address where there are no keys.
  const std::string& Tenant() const;
  // Empty: the server has no keys.
  const std::string& KeyName() const { return key_name_; }
  // For the log: an IP address, or "unix".
  const std::string& Client() const { return client_.text; }
  // Ends running calls by their request id, as AdmissionControl::AbortCalls. Returns their number.
  int AbortCalls(std::string_view request_id) const;
  // Whether the caller may see what others do: an admin, or anyone where there are no keys.
  bool SeesLoad() const { return sees_load_; }

  // Takes memory for a reply that is kept whole until the client has read it; the context's end
  // gives it back. A reply up to --stream-buffer takes none. Call at most once.
  // Errors  RESOURCE_EXHAUSTED: unread replies of all calls take too much (limits::kMaxReplyBytes)
  absl::Status HoldReply(int64_t num_bytes);
  // True once HoldReply has taken memory.
  bool HoldsReply() const { return num_reply_bytes_ > 0; }
  const StreamOptions& GetStreamOptions() const { return parts_.stream; }

  // From now on the call needs its model no more, which a reload need not keep for it.
  void ReleaseModel();

  // Runs `work` on the worker pool. `num_bytes`: of the request. `on_late`: runs instead if the
  // deadline passes while the work waits; empty: the work waits on.
  // Errors  RESOURCE_EXHAUSTED: the pool's queue is full
  absl::Status RunOnWorker(int64_t num_bytes, std::function<void()> work,
                           std::function<void()> on_late = {}) const;

  // The client has left, or the call was aborted: work that still parses ends early.
  void Stop() { is_stopped_ = true; }
  // OK while the call's result is wanted. CANCELLED: stopped; DEADLINE_EXCEEDED
  absl::Status CheckStop() const;

  // `result` of parsing, where CANCELLED says that the work was stopped: then why.
  template <typename T>
  absl::StatusOr<T> Outcome(absl::StatusOr<T> result) const {
    if (!absl::IsCancelled(result.status())) return result;
    const absl::Status stopped = CheckStop();
    return stopped.ok() ? result : absl::StatusOr<T>(stopped);
  }

  // For the functions of parse_request.h, which stop when CheckStop fails. Valid as long as this.
  // Requires  Admit obtained a permit
  ParseContext MakeParseContext(uint64_t default_seed = 0) const;

  // Sets the parts of a parsed request that come from the call: id, deadline, and the name of the
  // API key as a part of the cache salt, so that no key can measure what another key has cached.
  void Complete(std::string id, Request* request) const;

  // Reserves the tokens that the call may use, before it uses any. Call at most once.
  // Errors  RESOURCE_EXHAUSTED: over the key's tokens-per-minute
  absl::Status ReserveTokens(int64_t num_tokens);
  // Counts a request of the engine against the limits of the key, or of the client's address.
  // Errors  those of KeyUsage::AddRequest
  absl::StatusOr<RequestLease> AddRequest(const Request& request);
  // Charges prompt or output tokens to the call's key.
  void CountTokens(int64_t num_tokens);
  // The key may start another call. Call before the client learns that this call has ended, so
  // that its next call does not count this one. Idempotent; End does it as well.
  void ReleaseKey();

  // Whether the engine waits for the client, which has not read what was sent. Engine thread.
  void SetPaused(bool is_paused);
  // Adds fields to the log line. Never pass text of prompts or outputs.
  void AddLogFields(const LogFields& fields);
  // Sets the engine's counts and the finish reason (of Generate), for the log line and metrics.
  void SetResult(const RequestStats& stats, std::optional<FinishReason> finish);

  // For the call's span. The name of a model in HTTP's body; the status of the answer, 0: none.
  void SetAskedModel(std::string name);
  void SetChat() { is_chat_ = true; }
  void SetHttpStatus(int status) { http_status_ = status; }
  // An engine request of the call has ended. `stats`: its own
  void AddItem(int index, const RequestStats& stats);

  // Writes the log line (level error for INTERNAL and DATA_LOSS, else info), counts the call if it
  // has a kind, releases the key, and exports the spans of a sampled call. Call once.
  void End(const absl::Status& status);

 private:
  absl::Status ReportedStatus(const absl::Status& status) const;
  bool IsTraced() const { return parts_.traces != nullptr && trace_.IsSampled(); }
  void ExportSpans(const absl::Status& reported, Clock::duration elapsed);

  const CallMetadata metadata_;
  const std::string request_id_;
  const TraceContext trace_;
  const ClientAddress client_;
  const Clock::time_point started_;
  const ServiceContext parts_;
  int64_t num_reply_bytes_ = 0;                // held in parts_.reply_memory
  std::string served_name_, checkpoint_hash_;  // of the model, where the call is traced
  LoadedModel* model_ = nullptr;
  std::string key_name_;  // empty: the server has no keys
  Caller key_;            // set from the admission on; null: nothing counts the client's usage
  bool sees_load_ = false;
  std::atomic<bool> is_stopped_ = false, is_paused_ = false;
  std::atomic<bool> is_chat_ = false;
  std::atomic<int> http_status_ = 0;

  std::mutex mutex_;  // an aborted call may end while the engine still reports
  std::optional<AdmissionPermit> permit_;
  RequestStats stats_;
  std::optional<FinishReason> finish_;
  LogFields log_fields_ = LogFields::object();
  std::string asked_model_;
  std::vector<TracedItem> items_;  // the first kMaxTracedItems
  int num_items_ = 0;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_CALL_CONTEXT_H_
