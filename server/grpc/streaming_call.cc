#include "server/grpc/streaming_call.h"

#include <grpcpp/server_context.h>

#include <algorithm>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/grpc/adapter.h"

namespace lssar {
namespace {

// How long a client may take to read the status ABORTED before its stream is reset.
constexpr auto kAbortedReadTimeout = std::chrono::seconds(5);
using AlarmTick = std::chrono::system_clock::duration;

}  // namespace

StreamingCall::StreamingCall(std::string_view rpc, CallKind kind,
                             std::unique_ptr<GrpcStream> stream, const ServiceParts& parts)
    : StreamReactor(std::move(stream)),
      context_(ReadMetadata(rpc, kind, GetServerContext()), parts),
      loop_(*parts.replies),
      queue_(parts.stream) {
  SendIds(context_, GetServerContext());
}

void StreamingCall::Begin() {
  const grpc::ByteBuffer bytes = TakeRequest();
  self_ = shared_from_this();
  const auto abort = [weak = weak_from_this()](const absl::Status& reason) {
    const auto call = weak.lock();
    if (call == nullptr) return;
    call->context_.Stop();
    call->End(reason);
    call->OnClientGone();
  };
  absl::Status status = context_.Admit(KeyRole::kUser, abort);
  if (status.ok()) {
    // The bytes are shared, not copied.
    status =
        context_.RunOnWorker(int64_t(bytes.Length()), [self = shared_from_this(), bytes = bytes] {
          absl::Status start = self->context_.CheckStop();
          if (start.ok()) start = self->Start(bytes);
          if (!start.ok()) self->End(std::move(start));
        });
  }
  if (!status.ok()) End(std::move(status));
}

void StreamingCall::Append(std::unique_ptr<google::protobuf::Message> reply) {
  {
    const std::lock_guard lock(mutex_);
    const auto num_bytes = int64_t(reply->ByteSizeLong());
    queue_.Push(std::move(reply), num_bytes,
                [this](auto& entries, auto& message) { return Merge(entries, *message); });
    WatchClient();
  }
  ScheduleAdvance();
}

void StreamingCall::End(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.End(std::move(status))) return;
    WatchClient();
  }
  ScheduleAdvance();
}

void StreamingCall::ScheduleAdvance() {
  {
    const std::lock_guard lock(mutex_);
    // The write in progress is followed by Advance.
    if (is_writing_ || is_finishing_ || std::exchange(is_scheduled_, true)) return;
  }
  loop_.Schedule(shared_from_this());
}

void StreamingCall::WriteReplies() {
  {
    const std::lock_guard lock(mutex_);
    is_scheduled_ = false;
  }
  Advance();
}

void StreamingCall::OnWriteDone(bool ok) {
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
  if (has_more_space) OnSpace();
}

void StreamingCall::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    queue_.Close();
  }
  context_.Stop();
  OnClientGone();
  Advance();
}

void StreamingCall::OnDone() {
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

void StreamingCall::Advance() {
  std::optional<BufferedReply> reply;
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

void StreamingCall::WatchClient() {
  if (alarm_ != nullptr) return;
  const std::optional<Clock::time_point> due = queue_.Deadline();
  if (!due) return;
  alarm_ = std::make_unique<grpc::Alarm>();
  // Weak: the call owns the alarm and outlives it.
  alarm_->Set(std::chrono::system_clock::now() + std::chrono::ceil<AlarmTick>(*due - Clock::now()),
              [weak = weak_from_this()](bool ok) {
                const auto call = weak.lock();
                if (ok && call != nullptr) call->OnAlarm();
              });
}

void StreamingCall::OnAlarm() {
  bool must_reset = false;
  {
    const std::lock_guard lock(mutex_);
    alarm_.reset();
    if (queue_.IsClosed() || is_finishing_) return;
    const absl::Status status = queue_.CheckClient();
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
    OnClientGone();
  }
}

void StreamingCall::Reset() {
  // is_resetting_ keeps Advance from finishing the call, so the gRPC context still exists.
  GetServerContext().TryCancel();
  {
    const std::lock_guard lock(mutex_);
    is_resetting_ = false;
  }
  ScheduleAdvance();
}

absl::Status SingleRequestCall::Start(const grpc::ByteBuffer& bytes) {
  ASSIGN_OR_RETURN(Request request, Parse(bytes));
  receipt_ = MakeReceipt(context_.Model(), request);
  context_.Complete(context_.RequestId(), &request);
  context_.CountTokens(std::ssize(request.prompt));
  auto self = std::static_pointer_cast<SingleRequestCall>(shared_from_this());
  // Held over Submit: OnClientGone must find the handle, or the call must see that it was stopped.
  const std::lock_guard lock(handle_mutex_);
  RETURN_IF_ERROR(context_.CheckStop());
  ASSIGN_OR_RETURN(handle_,
                   context_.Model().GetEngine().Submit(std::move(request), std::move(self)));
  return absl::OkStatus();
}

void SingleRequestCall::OnSpace() {
  const std::lock_guard lock(handle_mutex_);
  if (handle_) handle_->Resume();
}

void SingleRequestCall::OnClientGone() {
  {
    const std::lock_guard lock(handle_mutex_);
    if (handle_) {
      handle_->Cancel();
      return;
    }
  }
  End(absl::CancelledError("the client closed the call"));
}

}  // namespace lssar
