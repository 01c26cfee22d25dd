#include "server/request_stream.h"

#include <memory>

#include "server/fields.h"

namespace lssar {

void RequestStream::Begin(const grpc::ByteBuffer& bytes) {
  KeepAlive();
  if (absl::Status status = Submit(bytes); !status.ok()) End(std::move(status));
}

absl::Status RequestStream::Submit(const grpc::ByteBuffer& bytes) {
  RETURN_IF_ERROR(Enter());
  absl::StatusOr<Request> request = Parse(bytes);
  if (!request.ok()) return request.status();
  request->id = record_.Id();
  request->deadline = record_.Deadline();
  record_.CountTokens(std::ssize(request->prompt));
  auto self = std::static_pointer_cast<RequestStream>(shared_from_this());
  const std::lock_guard lock(handle_mutex_);
  auto handle = record_.Model().GetEngine().Submit(*std::move(request), std::move(self));
  if (handle.ok()) handle_ = *std::move(handle);
  return handle.status();
}

void RequestStream::OnSpace() {
  const std::lock_guard lock(handle_mutex_);
  if (handle_) handle_->Resume();
}

void RequestStream::OnClientGone() {
  const std::lock_guard lock(handle_mutex_);
  if (handle_) handle_->Cancel();
}

}  // namespace lssar
