// A unary gRPC call whose answer takes work: Tokenize and Detokenize.
#ifndef LSSAR_SERVER_GRPC_UNARY_CALL_H_
#define LSSAR_SERVER_GRPC_UNARY_CALL_H_

#include <grpc/grpc.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_context.h"

namespace lssar {

// A worker computes the reply. A call that is cancelled or aborted before ends at once; the worker
// then stops.
//
// Slow clients: gRPC keeps the reply until the client has read it. A client that takes longer than
// ReadTime (reply_queue.h) loses it, and the call is cancelled.
//
// Lifetime: the call owns itself until gRPC calls OnDone; the worker holds a shared_ptr.
class UnaryCall final : public grpc::ServerUnaryReactor,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  // Returns the bytes of the reply.
  using Answer =
      std::function<absl::StatusOr<grpc::ByteBuffer>(const grpc::ByteBuffer&, const CallContext&)>;

  // `grpc_context` and `reply` live until OnDone; `parts` outlives the call.
  UnaryCall(std::string_view rpc, grpc::CallbackServerContext& grpc_context,
            const ServiceParts& parts, grpc::ByteBuffer* reply);

  // Admits the call, then has a worker run `answer`. Call once, before gRPC gets the object.
  void Begin(const grpc::ByteBuffer& request, Answer answer);

 private:
  void OnCancel() override;
  void OnDone() override { self_.reset(); }

  // The first call counts.
  void End(absl::StatusOr<grpc::ByteBuffer> reply);
  // Cancels the call when its reply has not been read in time.
  void WatchClient(int64_t num_bytes);

  CallContext context_;
  grpc::ByteBuffer* const reply_;
  // The call itself, which gRPC's own object may end before the alarm does.
  const std::shared_ptr<grpc_call> rpc_;
  grpc::Alarm unread_;
  std::mutex mutex_;
  bool has_ended_ = false;
  std::shared_ptr<UnaryCall> self_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_UNARY_CALL_H_
