// One call's name tag: request id, deadline, pass through the gate, and its log line at the end.
#ifndef LSSAR_SERVER_CALL_RECORD_H_
#define LSSAR_SERVER_CALL_RECORD_H_

#include <grpcpp/server_context.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/request.h"
#include "server/call_gate.h"
#include "server/log.h"

namespace lssar {

class CallRecord {
 public:
  // Takes the id of the metadata x-request-id when it is 1 to 64 of [A-Za-z0-9._-]; else makes one
  // that no other call of any lssar process has (random prefix, counter).
  CallRecord(std::string_view rpc, const grpc::CallbackServerContext& context, const Log* log);

  const std::string& Id() const { return id_; }
  // The client's, on the engine's clock; nullopt: none.
  std::optional<Clock::time_point> Deadline() const { return deadline_; }

  // Lets the call in. Errors  UNAVAILABLE
  absl::Status Enter(CallGate& gate);
  // Requires  Enter returned OK
  ServedModel& Model() const { return pass_->Model(); }

  // Fields for the log line; never text of prompts or outputs.
  void Note(LogFields fields) { noted_.update(fields); }
  // Writes the line: info when OK or the client's doing, error for INTERNAL and DATA_LOSS.
  void WriteLog(const absl::Status& status) const;

 private:
  std::string rpc_;
  std::string id_;
  std::optional<Clock::time_point> deadline_;
  Clock::time_point started_;
  const Log* log_;
  std::optional<CallGate::Pass> pass_;
  LogFields noted_ = LogFields::object();
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CALL_RECORD_H_
