// One call's name tag: request id, trace, deadline, pass through the gate, and what is said of it
// at the end.
#ifndef LSSAR_SERVER_CALL_CONTEXT_H_
#define LSSAR_SERVER_CALL_CONTEXT_H_

#include <grpcpp/server_context.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/request.h"
#include "server/access_control.h"
#include "server/call_gate.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/service_parts.h"
#include "server/trace_context.h"

namespace lssar {

// Threads  any, but for Enter
class CallContext {
 public:
  // Takes the id of the metadata x-request-id when it is 1 to 64 of [A-Za-z0-9._-]; else makes one
  // that no other call of any lssar process has (random prefix, counter). The trace is that of the
  // metadata traceparent. Both go back with the call's end, as x-request-id and traceparent.
  CallContext(std::string_view rpc, grpc::CallbackServerContext& context,
              const ServiceParts& parts);

  const std::string& Id() const { return id_; }
  // The client's, on the engine's clock; nullopt: none.
  std::optional<Clock::time_point> Deadline() const { return deadline_; }
  Clock::duration Elapsed() const { return Clock::now() - started_; }
  Metrics& GetMetrics() const { return *parts_.metrics; }

  // Lets the call in, if the gate does and its key may do what takes `role`.
  // Errors  UNAVAILABLE, RESOURCE_EXHAUSTED, UNAUTHENTICATED, PERMISSION_DENIED
  absl::Status Enter(KeyRole role, CallGate::Cut cut = {});
  // Requires  Enter returned OK
  ServedModel& Model() const { return pass_->Model(); }

  // Of the prompt or the output: they count against the key's rate.
  void CountTokens(int64_t num_tokens);
  // The key may have another call instead. To be called before the client hears of the end: its
  // next call must not find this one still there.
  void LeaveKey();

  // Fields for the log line; never text of prompts or outputs.
  void Note(const LogFields& fields);
  // What the engine said at the end of a call that it worked for.
  void NoteRequest(const RequestStats& stats, std::optional<FinishReason> finish);

  // Writes the log line: info when OK or the client's doing, error for INTERNAL and DATA_LOSS.
  void End(const absl::Status& status);
  // The same, and counts the call.
  void EndRequest(CallKind kind, const absl::Status& status);

 private:
  absl::Status Outcome(const absl::Status& status) const;

  const std::string rpc_;
  const std::string id_;
  const TraceContext trace_;
  const std::optional<Clock::time_point> deadline_;
  const Clock::time_point started_;
  const std::string authorization_;
  const ServiceParts parts_;
  std::optional<CallGate::Pass> pass_;

  std::mutex mutex_;  // a call that is cut may end while the engine still speaks
  std::optional<AccessControl::Visit> visit_;
  RequestStats stats_;
  std::optional<FinishReason> finish_;
  LogFields noted_ = LogFields::object();
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CALL_CONTEXT_H_
