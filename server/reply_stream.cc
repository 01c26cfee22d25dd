#include "server/reply_stream.h"

#include <grpcpp/server_context.h>

#include <algorithm>

#include "kernels/str_cat.h"
#include "server/fields.h"
#include "server/grpc_status.h"
#include "server/served_model.h"
#include "server/wire.h"

namespace lssar {
namespace {

// From the end with ABORTED to the reset of a stream whose client does not even read that.
constexpr absl::Duration kLastChance = absl::Seconds(5);

}  // namespace

absl::Status ReplyStream::Enter() {
  const auto cut = [weak = weak_from_this()](const absl::Status& reason) {
    if (const auto stream = weak.lock()) stream->End(reason);
  };
  RETURN_IF_ERROR(record_.Enter(KeyRole::kUser, cut));
  return record_.Model().GetEngine().CheckQueueCapacity();
}

void ReplyStream::Append(std::unique_ptr<google::protobuf::Message> reply) {
  {
    const std::lock_guard lock(mutex_);
    if (has_client_gone_ || ended_ || !cut_.ok()) return;
    const auto num_bytes = static_cast<int64_t>(reply->ByteSizeLong());
    if (Waiting* into = Merge(waiting_, *reply)) {
      into->num_bytes += num_bytes;
    } else {
      waiting_.push_back({.reply = std::move(reply), .num_bytes = num_bytes});
    }
    buffered_bytes_ += num_bytes;
    if (buffered_bytes_ > options_.buffer_bytes && has_space_) {
      has_space_ = false;
      WatchClient();
    }
  }
  Advance();
}

void ReplyStream::End(absl::Status status) {
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = cut_.ok() ? std::move(status) : cut_;
    if (buffered_bytes_ > 0) WatchClient();
  }
  Advance();
}

void ReplyStream::OnWriteDone(bool ok) {
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

void ReplyStream::OnCancel() {
  {
    const std::lock_guard lock(mutex_);
    has_client_gone_ = true;
    DropWaiting();
  }
  OnClientGone();
  Advance();
}

void ReplyStream::OnDone() {
  absl::Status status;
  {
    // Orders this after all that producers did, by our own lock rather than gRPC's insides.
    const std::lock_guard lock(mutex_);
    status = *ended_;
    alarm_.reset();
  }
  record_.EndRequest(kind_, status);
  self_.reset();  // perhaps the last owner: nothing may follow
}

void ReplyStream::Advance() {
  std::unique_ptr<google::protobuf::Message> reply;
  {
    const std::lock_guard lock(mutex_);
    if (is_writing_ || is_finishing_ || is_resetting_) return;
    if (!waiting_.empty()) {
      reply = std::move(waiting_.front().reply);
      writing_bytes_ = waiting_.front().num_bytes;
      waiting_.pop_front();
      is_writing_ = true;
    } else if (ended_) {
      is_finishing_ = true;
    } else {
      return;
    }
  }
  if (reply == nullptr) {
    record_.LeaveKey();
    Finish(ToGrpcStatus(*ended_));
    return;
  }
  bytes_ = WriteMessage(*reply);
  StartWrite(&bytes_);
}

void ReplyStream::DropWaiting() {
  for (const Waiting& waiting : waiting_) buffered_bytes_ -= waiting.num_bytes;
  waiting_.clear();
}

void ReplyStream::WatchClient() {
  if (alarm_ != nullptr || options_.client_timeout == absl::ZeroDuration()) return;
  watched_from_ = std::chrono::system_clock::now();
  SetAlarm(watched_from_ + absl::ToChronoMilliseconds(Patience()));
}

absl::Duration ReplyStream::Patience() const {
  return cut_.ok() ? options_.client_timeout : std::min(options_.client_timeout, kLastChance);
}

void ReplyStream::SetAlarm(Time at) {
  alarm_ = std::make_unique<grpc::Alarm>();
  // Weak: the alarm belongs to the stream, which lives until it has ended.
  alarm_->Set(at, [weak = weak_from_this()](bool ok) {
    const auto stream = weak.lock();
    if (ok && stream != nullptr) stream->OnAlarm();
  });
}

void ReplyStream::OnAlarm() {
  bool is_last_chance_over = false;
  {
    const std::lock_guard lock(mutex_);
    alarm_.reset();
    const bool is_client_awaited = ended_ || !has_space_;
    if (!is_client_awaited || has_client_gone_ || is_finishing_) return;
    const Time due = std::max(written_at_, watched_from_) + absl::ToChronoMilliseconds(Patience());
    if (due > std::chrono::system_clock::now()) {
      SetAlarm(due);
      return;
    }
    is_last_chance_over = !cut_.ok();
    if (is_last_chance_over) {
      is_resetting_ = true;
    } else {
      Cut();
    }
  }
  if (is_last_chance_over) {
    Reset();
  } else {
    OnClientGone();
  }
}

// The call ends once the work has stopped and the write under way is done.
void ReplyStream::Cut() {
  cut_ = absl::AbortedError(StrCat(
      "the client has read nothing for ", absl::FormatDuration(options_.client_timeout),
      " (--slow-client-timeout) while ", buffered_bytes_, " bytes of replies waited for it"));
  DropWaiting();
  if (ended_ && ended_->ok()) ended_ = cut_;
  WatchClient();
}

void ReplyStream::Reset() {
  // Without the lock: OnCancel may come from inside. Nobody finishes the call meanwhile, so its
  // context is there.
  context_.TryCancel();
  {
    const std::lock_guard lock(mutex_);
    is_resetting_ = false;
  }
  Advance();
}

}  // namespace lssar
