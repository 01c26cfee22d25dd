#include "server/grpc/unary_call.h"

#include <chrono>
#include <utility>

#include "server/api/reply_queue.h"
#include "server/grpc/adapter.h"

namespace lssar {
namespace {

std::shared_ptr<grpc_call> AddReference(grpc_call* call) {
  grpc_call_ref(call);
  return {call, grpc_call_unref};
}

}  // namespace

UnaryCall::UnaryCall(std::string_view rpc, grpc::CallbackServerContext& grpc_context,
                     const ServiceParts& parts, grpc::ByteBuffer* reply)
    : context_(ReadMetadata(rpc, std::nullopt, grpc_context), parts),
      reply_(reply),
      rpc_(AddReference(grpc_context.c_call())) {
  SendIds(context_, grpc_context);
}

void UnaryCall::Begin(const grpc::ByteBuffer& request, Answer answer) {
  self_ = shared_from_this();
  const auto abort = [weak = weak_from_this()](const absl::Status& reason) {
    const auto call = weak.lock();
    if (call == nullptr) return;
    call->context_.Stop();
    call->End(reason);
  };
  absl::Status status = context_.Admit(KeyRole::kUser, abort);
  if (status.ok()) {
    status = context_.RunOnWorker(int64_t(request.Length()), [self = shared_from_this(), request,
                                                              answer = std::move(answer)] {
      const absl::Status stopped = self->context_.CheckStop();
      self->End(stopped.ok() ? self->context_.Outcome(answer(request, self->context_))
                             : absl::StatusOr<grpc::ByteBuffer>(stopped));
    });
  }
  if (!status.ok()) End(std::move(status));
}

void UnaryCall::OnCancel() {
  context_.Stop();
  End(absl::CancelledError("the client closed the call"));
}

void UnaryCall::End(absl::StatusOr<grpc::ByteBuffer> reply) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_ended_, true)) return;
  }
  absl::Status status = reply.status();
  if (status.ok()) status = context_.HoldReply(int64_t(reply->Length()));
  if (status.ok()) {
    WatchClient(int64_t(reply->Length()));
    reply_->Swap(&*reply);
  }
  context_.End(status);  // releases the key before the client learns that the call ended
  Finish(ToGrpcStatus(status));
}

void UnaryCall::WatchClient(int64_t num_bytes) {
  const StreamOptions& options = context_.GetStreamOptions();
  if (!context_.HoldsReply() || options.client_timeout == absl::ZeroDuration()) return;
  const auto due = std::chrono::system_clock::now() + ReadTime(num_bytes, options);
  unread_.Set(due, [rpc = rpc_](bool is_due) {
    if (!is_due) return;  // the reply has been read
    grpc_call_cancel_with_status(rpc.get(), GRPC_STATUS_ABORTED,
                                 "the client has not read the reply in time "
                                 "(--slow-client-timeout)",
                                 nullptr);
  });
}

}  // namespace lssar
