#include "server/http/unary_call.h"

#include <utility>

#include "server/http/call_metadata.h"
#include "server/http/http_error.h"

namespace lssar {

HttpUnaryCall::HttpUnaryCall(std::string_view rpc, std::shared_ptr<HttpExchange> exchange,
                             const ServiceParts& parts)
    : context_(ReadHttpMetadata(rpc, std::nullopt, exchange->Request()), parts),
      exchange_(std::move(exchange)) {
  exchange_->AddHeader("X-Request-Id", context_.RequestId());
  exchange_->AddHeader("Traceparent", context_.Traceparent());
}

void HttpUnaryCall::Start(Answer answer) {
  const auto abort = [weak = weak_from_this()](const absl::Status& reason) {
    if (const auto call = weak.lock()) call->OnClientGone(reason);
  };
  absl::Status status = context_.Admit(KeyRole::kUser, abort);
  if (status.ok() && !exchange_->Attach(shared_from_this())) {
    status = absl::CancelledError("the client has closed the connection");
  }
  if (status.ok()) {
    status = context_.RunOnWorker(
        std::ssize(exchange_->Request().body),
        [self = shared_from_this(), answer = std::move(answer)] {
          const absl::Status stopped = self->context_.CheckStop();
          if (!stopped.ok()) {
            self->End(stopped);
          } else {
            self->End(self->context_.Outcome(answer(self->exchange_->Request(), self->context_)));
          }
        });
  }
  if (!status.ok()) End(status);
}

void HttpUnaryCall::OnClientGone(const absl::Status& reason) {
  context_.Stop();
  End(reason);
}

void HttpUnaryCall::End(absl::StatusOr<std::string> body) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(has_ended_, true)) return;
  }
  absl::Status status = body.status();
  if (status.ok()) status = context_.HoldReply(std::ssize(*body));
  context_.End(status);
  exchange_->Reply(status.ok() ? HttpReply{.status = 200, .body = *std::move(body)}
                               : ErrorReply(status));
}

}  // namespace lssar
