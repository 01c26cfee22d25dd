#include "server/unary_call.h"

#include <utility>

#include "server/grpc_adapter.h"

namespace lssar {

UnaryCall::UnaryCall(std::string_view rpc, grpc::CallbackServerContext& grpc_context,
                     const ServiceParts& parts, grpc::ByteBuffer* reply)
    : context_(ReadMetadata(rpc, std::nullopt, grpc_context), parts), reply_(reply) {
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
  if (reply.ok()) reply_->Swap(&*reply);
  context_.End(reply.status());  // releases the key before the client learns that the call ended
  Finish(ToGrpcStatus(reply.status()));
}

}  // namespace lssar
