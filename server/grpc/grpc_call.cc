#include "server/grpc/grpc_call.h"

#include <grpcpp/server_context.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "server/grpc/adapter.h"

namespace lssar {
namespace {

// How long a client may take to read the status ABORTED before its stream is reset.
constexpr auto kAbortedReadTimeout = std::chrono::seconds(5);
using AlarmTick = std::chrono::system_clock::duration;

absl::Status ClosedByClient() { return absl::CancelledError("the client closed the call"); }

std::shared_ptr<grpc_call> AddReference(grpc_call* call) {
  grpc_call_ref(call);
  return {call, grpc_call_unref};
}

}  // namespace

GrpcStreamCall::GrpcStreamCall(std::string_view rpc, CallKind kind, std::unique_ptr<Method> method,
                               std::unique_ptr<GrpcStream> stream, const ServiceContext& parts)
    : StreamReactor(std::move(stream)),
      Call(ReadMetadata(rpc, kind, GetServerContext()), parts, std::move(method)),
      reply_writer_(*parts.replies),
      queue_(parts.stream) {
  SendIds(context_, GetServerContext());
}

void GrpcStreamCall::Start() {
  bytes_ = TakeRequest();
  self_ = Self();
  Begin(int64_t(bytes_.Length()));
}

absl::Status GrpcStreamCall::Decode() {
  const absl::Status status = ReadMessage(bytes_, method_->Request());
  bytes_.Clear();
  return status;
}

void GrpcStreamCall::Send(int /*prompt*/, std::unique_ptr<Message> reply) {
  {
    const std::lock_guard lock(mutex_);
    const auto num_bytes = int64_t(reply->ByteSizeLong());
    queue_.Push(std::move(reply), num_bytes,
                [this](auto& waiting, auto& message) { return method_->Merge(waiting, *message); });
    WatchClient();
  }
  ScheduleAdvance();
}

void GrpcStreamCall::SendEnd(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    queue_.End(status);
    WatchClient();
  }
  ScheduleAdvance();
}

void GrpcStreamCall::RunLater(std::chrono::milliseconds delay, std::function<void()> work) {
  auto alarm = std::make_unique<grpc::Alarm>();
  alarm->Set(std::chrono::system_clock::now() + delay,
             [work = std::move(work)](bool /*ok*/) { work(); });
  const std::lock_guard lock(mutex_);
  later_ = std::move(alarm);
}

void GrpcStreamCall::ScheduleAdvance() {
  {
    const std::lock_guard lock(mutex_);
    // The write in progress is followed by Advance.
    if (is_writing_ || is_finishing_ || std::exchange(is_scheduled_, true)) return;
  }
  reply_writer_.Schedule(Self());
}

void GrpcStreamCall::WriteReplies() {
  {
    const std::lock_guard lock(mutex_);
    is_scheduled_ = false;
  }
  Advance();
}

void GrpcStreamCall::OnWriteDone(bool ok) {
  bool has_more_space = false;
  {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    has_more_space = queue_.Written(std::exchange(writing_bytes_, 0));
  }
  if (!ok) {
    OnCancel();
    return;
  }
  Advance();
  if (has_more_space) Resume();
}

void GrpcStreamCall::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    queue_.Close();
  }
  Stop(ClosedByClient());
  Advance();
}

void GrpcStreamCall::OnDone() {
  absl::Status status;
  {
    // The lock orders this after the producers' last access, independently of gRPC's internals.
    const std::lock_guard lock(mutex_);
    status = *queue_.Ended();
    alarm_.reset();
  }
  context_.End(status);
  self_.reset();  // may destroy this object: nothing may follow
}

void GrpcStreamCall::Advance() {
  std::optional<MessageQueue::Entry> reply;
  {
    const std::lock_guard lock(mutex_);
    if (is_writing_ || is_finishing_ || is_resetting_) return;
    reply = queue_.Take();
    if (reply) {
      writing_bytes_ = reply->num_bytes;
      is_writing_ = true;
    } else if (queue_.Ended()) {
      is_finishing_ = true;
    } else {
      return;
    }
  }
  if (reply) {
    StartWrite(WriteMessage(*reply->reply));
    return;
  }
  context_.ReleaseKey();
  Finish(ToGrpcStatus(*queue_.Ended()));
}

void GrpcStreamCall::WatchClient() {
  if (alarm_ != nullptr) return;
  const std::optional<Clock::time_point> due = queue_.Deadline();
  if (!due) return;
  alarm_ = std::make_unique<grpc::Alarm>();
  // Weak: the call owns the alarm and outlives it.
  alarm_->Set(std::chrono::system_clock::now() + std::chrono::ceil<AlarmTick>(*due - Clock::now()),
              [weak = weak_from_this()](bool ok) {
                const auto call = std::static_pointer_cast<GrpcStreamCall>(weak.lock());
                if (ok && call != nullptr) call->OnAlarm();
              });
}

void GrpcStreamCall::OnAlarm() {
  absl::Status status;
  bool must_reset = false;
  {
    const std::lock_guard lock(mutex_);
    alarm_.reset();
    if (queue_.IsClosed() || is_finishing_) return;
    status = queue_.CheckClient();
    if (status.ok()) {
      WatchClient();
      return;
    }
    must_reset = queue_.IsAborted();
    if (must_reset) {
      is_resetting_ = true;
    } else {
      // The call ends once the work has stopped and the write in progress is done.
      queue_.Abort(status, kAbortedReadTimeout);
      WatchClient();
    }
  }
  if (must_reset) {
    Reset();
  } else {
    Stop(status);
  }
}

void GrpcStreamCall::Reset() {
  // is_resetting_ keeps Advance from finishing the call, so the gRPC context still exists.
  GetServerContext().TryCancel();
  {
    const std::lock_guard lock(mutex_);
    is_resetting_ = false;
  }
  ScheduleAdvance();
}

GrpcUnaryCall::GrpcUnaryCall(std::string_view rpc, std::unique_ptr<Method> method,
                             grpc::CallbackServerContext& grpc_context, const ServiceContext& parts,
                             const grpc::ByteBuffer& request, grpc::ByteBuffer* reply)
    : Call(ReadMetadata(rpc, std::nullopt, grpc_context), parts, std::move(method)),
      bytes_(request),
      reply_(reply),
      rpc_(AddReference(grpc_context.c_call())) {
  SendIds(context_, grpc_context);
}

void GrpcUnaryCall::Start() {
  self_ = std::static_pointer_cast<GrpcUnaryCall>(shared_from_this());
  Begin(int64_t(bytes_.Length()));
}

absl::Status GrpcUnaryCall::Decode() { return ReadMessage(bytes_, method_->Request()); }

void GrpcUnaryCall::Send(int /*prompt*/, std::unique_ptr<Message> reply) {
  reply_bytes_ = WriteMessage(*reply);
}

void GrpcUnaryCall::SendEnd(const absl::Status& end) {
  absl::Status status = end;
  const auto num_bytes = int64_t(reply_bytes_.Length());
  if (status.ok()) status = context_.HoldReply(num_bytes);
  if (status.ok()) {
    WatchClient(num_bytes);
    reply_->Swap(&reply_bytes_);
  }
  context_.End(status);  // releases the key before the client learns that the call ended
  Finish(ToGrpcStatus(status));
}

void GrpcUnaryCall::RunLater(std::chrono::milliseconds /*delay*/, std::function<void()> /*work*/) {
  LSSAR_CHECK(false);  // only for calls of the engine
}

void GrpcUnaryCall::OnCancel() {
  const auto self = shared_from_this();  // the end may release self_
  Stop(ClosedByClient());
}

void GrpcUnaryCall::WatchClient(int64_t num_bytes) {
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
