#include "server/grpc/multi_request_call.h"

#include <optional>

namespace lssar {

void MultiRequestCall::SubmitItems(std::vector<Request> requests) {
  context_.AddLogFields({{"num_items", requests.size()}});
  receipt_ = MakeReceipt(context_.Model(), requests.front());
  std::vector<EngineItems::Item> items;
  items.reserve(requests.size());
  for (Request& request : requests) items.push_back({.request = std::move(request)});
  items_.Start(std::move(items));
}

void MultiRequestCall::RetryLater(std::chrono::milliseconds delay) {
  auto alarm = std::make_unique<grpc::Alarm>();
  // Weak: the call owns the alarm and outlives it.
  alarm->Set(std::chrono::system_clock::now() + delay, [weak = weak_from_this()](bool) {
    const auto call = std::static_pointer_cast<MultiRequestCall>(weak.lock());
    if (call != nullptr) call->items_.Retry();
  });
  const std::lock_guard lock(retry_mutex_);
  retry_ = std::move(alarm);
}

void MultiRequestCall::OnItemsEnd(const absl::Status& status, const RequestStats& total) {
  context_.SetResult(total, std::nullopt);
  if (status.ok()) SendFinished(total);
  End(status);
}

}  // namespace lssar
