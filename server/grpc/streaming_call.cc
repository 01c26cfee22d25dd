#include "server/grpc/streaming_call.h"

#include <grpcpp/server_context.h>

#include <algorithm>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/grpc/adapter.h"

namespace lssar {
namespace {

// How long a client may take to read the status ABORTED before its stream is reset.
constexpr absl::Duration kAbortedReadTimeout = absl::Seconds(5);

}  // namespace

StreamingCall::StreamingCall(std::string_view rpc, CallKind kind,
                             std::unique_ptr<GrpcStream> stream, const ServiceParts& parts)
    : StreamReactor(std::move(stream)),
      context_(ReadMetadata(rpc, kind, GetServerContext()), parts),
      loop_(*parts.replies),
      options_(parts.stream) {
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
    if (has_client_gone_ || ended_ || !aborted_.ok()) return;
    const auto num_bytes = int64_t(reply->ByteSizeLong());
    if (BufferedReply* into = Merge(buffer_, *reply)) {
      into->num_bytes += num_bytes;
    } else {
      buffer_.push_back({.message = std::move(reply), .num_bytes = num_bytes});
    }
    buffered_bytes_ += num_bytes;
    if (buffered_bytes_ > options_.buffer_bytes && has_space_) {
      has_space_ = false;
      WatchClient();
    }
  }
  ScheduleAdvance();
}

void StreamingCall::End(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = aborted_.ok() ? std::move(status) : aborted_;
    if (buffered_bytes_ > 0) WatchClient();
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
    written_at_ = std::chrono::system_clock::now();
    buffered_bytes_ -= std::exchange(writing_bytes_, 0);
    has_more_space = !has_space_ && buffered_bytes_ <= options_.buffer_bytes / 2;
    if (has_more_space) has_space_ = true;
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
    has_client_gone_ = true;
    DiscardBuffer();
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
    status = *ended_;
    alarm_.reset();
  }
  context_.End(status);
  self_.reset();  // may destroy this object: nothing may follow
}

void StreamingCall::Advance() {
  std::unique_ptr<google::protobuf::Message> reply;
  {
    const std::lock_guard lock(mutex_);
    if (is_writing_ || is_finishing_ || is_resetting_) return;
    if (!buffer_.empty()) {
      reply = std::move(buffer_.front().message);
      writing_bytes_ = buffer_.front().num_bytes;
      buffer_.pop_front();
      is_writing_ = true;
    } else if (ended_) {
      is_finishing_ = true;
    } else {
      return;
    }
  }
  if (reply == nullptr) {
    context_.ReleaseKey();
    Finish(ToGrpcStatus(*ended_));
    return;
  }
  StartWrite(WriteMessage(*reply));
}

void StreamingCall::DiscardBuffer() {
  for (const BufferedReply& reply : buffer_) buffered_bytes_ -= reply.num_bytes;
  buffer_.clear();
}

void StreamingCall::WatchClient() {
  if (alarm_ != nullptr || options_.client_timeout == absl::ZeroDuration()) return;
  watched_from_ = std::chrono::system_clock::now();
  SetAlarm(watched_from_ + absl::ToChronoMilliseconds(ReadTimeout()));
}

absl::Duration StreamingCall::ReadTimeout() const {
  return aborted_.ok() ? options_.client_timeout
                       : std::min(options_.client_timeout, kAbortedReadTimeout);
}

void StreamingCall::SetAlarm(AlarmTime at) {
  alarm_ = std::make_unique<grpc::Alarm>();
  // Weak: the call owns the alarm and outlives it.
  alarm_->Set(at, [weak = weak_from_this()](bool ok) {
    const auto call = weak.lock();
    if (ok && call != nullptr) call->OnAlarm();
  });
}

void StreamingCall::OnAlarm() {
  bool must_reset = false;
  {
    const std::lock_guard lock(mutex_);
    alarm_.reset();
    const bool is_waiting_for_client = ended_ || !has_space_;
    if (!is_waiting_for_client || has_client_gone_ || is_finishing_) return;
    const AlarmTime due =
        std::max(written_at_, watched_from_) + absl::ToChronoMilliseconds(ReadTimeout());
    if (due > std::chrono::system_clock::now()) {
      SetAlarm(due);
      return;
    }
    must_reset = !aborted_.ok();
    if (must_reset) {
      is_resetting_ = true;
    } else {
      AbortSlowClient();
    }
  }
  if (must_reset) {
    Reset();
  } else {
    OnClientGone();
  }
}

// The call ends once the work has stopped and the write in progress is done.
void StreamingCall::AbortSlowClient() {
  aborted_ = absl::AbortedError(StrCat(
      "the client has read nothing for ", absl::FormatDuration(options_.client_timeout),
      " (--slow-client-timeout) while ", buffered_bytes_, " bytes of replies were buffered"));
  DiscardBuffer();
  if (ended_ && ended_->ok()) ended_ = aborted_;
  WatchClient();
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
