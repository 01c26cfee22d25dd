#include "server/multi_request_call.h"

#include <optional>
#include <utility>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "runtime/sequence.h"
#include "server/served_model.h"

namespace lssar {

void MultiRequestCall::SubmitItems(std::vector<Request> items) {
  items_ = std::move(items);
  context_.AddLogFields({{"num_items", items_.size()}});
  for (const Request& item : items_) context_.CountTokens(NumPromptTokens(item));
  SubmitMore();
}

void MultiRequestCall::SubmitMore() {
  absl::Status end;
  {
    const std::lock_guard lock(items_mutex_);
    while (error_.ok() && retry_ == nullptr && next_item_ < items_.size() &&
           in_flight_.size() < kMaxItemsInFlight && HasSpace()) {
      const absl::Status status = SubmitNext();
      if (status.ok()) continue;
      // Only the first item may be rejected; once it is accepted, later items wait for capacity.
      const bool is_waiting = absl::IsResourceExhausted(status) && next_item_ > 0;
      if (!is_waiting) {
        error_ = status;
      } else if (in_flight_.empty()) {
        RetryLater();
      }
      break;
    }
    const bool is_over = in_flight_.empty() && (!error_.ok() || next_item_ == items_.size());
    if (!is_over || has_ended_) return;
    has_ended_ = true;
    end = error_;
    context_.SetResult(total_, std::nullopt);
  }
  if (end.ok()) SendFinished(total_);
  End(std::move(end));
}

absl::Status MultiRequestCall::SubmitNext() {
  Request request = items_[next_item_];
  request.id = StrCat(context_.RequestId(), "/", next_item_);
  request.deadline = context_.Deadline();
  const int item = int(next_item_);
  ASSIGN_OR_RETURN(in_flight_[item],
                   context_.Model().GetEngine().Submit(std::move(request), MakeSink(item)));
  items_[next_item_] = Request();  // frees the memory: the engine has its own copy
  ++next_item_;
  return absl::OkStatus();
}

void MultiRequestCall::RetryLater() {
  retry_ = std::make_unique<grpc::Alarm>();
  // Weak: the call owns the alarm and outlives it.
  auto weak = weak_from_this();
  retry_->Set(std::chrono::system_clock::now() + kRetryInterval, [weak](bool) {
    const auto call = std::static_pointer_cast<MultiRequestCall>(weak.lock());
    if (call == nullptr) return;
    {
      const std::lock_guard lock(call->items_mutex_);
      call->retry_.reset();
    }
    call->SubmitMore();
  });
}

void MultiRequestCall::OnItemDone(int item, const absl::Status& status, const RequestStats& stats) {
  {
    const std::lock_guard lock(items_mutex_);
    in_flight_.erase(item);
    AddStats(stats, &total_);
    if (!status.ok() && error_.ok()) {
      error_ = status;
      for (const auto& [other, handle] : in_flight_) handle.Cancel();
    }
  }
  SubmitMore();
}

void MultiRequestCall::OnSpace() {
  {
    const std::lock_guard lock(items_mutex_);
    for (const auto& [item, handle] : in_flight_) handle.Resume();
  }
  SubmitMore();
}

void MultiRequestCall::OnClientGone() {
  {
    const std::lock_guard lock(items_mutex_);
    if (error_.ok()) error_ = absl::CancelledError("the client closed the call");
    for (const auto& [item, handle] : in_flight_) handle.Cancel();
  }
  SubmitMore();
}

}  // namespace lssar
