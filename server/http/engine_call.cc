#include "server/http/engine_call.h"

#include <utility>

#include "kernels/status_macros.h"
#include "kernels/str_cat.h"
#include "runtime/request_queue.h"
#include "server/http/http_error.h"
#include "server/reply_fields.h"
#include "server/served_model.h"

namespace lssar {
namespace {

CallMetadata MetadataOf(std::string_view rpc, CallKind kind, const HttpRequest& request) {
  return {.rpc = rpc,
          .kind = kind,
          .request_id = std::string(request.Header("x-request-id")),
          .traceparent = std::string(request.Header("traceparent")),
          .authorization = std::string(request.Header("authorization"))};
}

}  // namespace

// Carries one item's results to the call. Engine thread.
class EngineCall::ItemSink final : public OutputSink {
 public:
  ItemSink(std::shared_ptr<EngineCall> call, int item) : call_(std::move(call)), item_(item) {}

  bool IsWritable() const override { return call_->exchange_->HasSpace(); }
  void OnAdmitted(const RequestStats& stats) override {
    call_->context_.GetMetrics().OnAdmitted(stats);
    WhileOpen([&] { call_->OnItemAdmitted(item_, stats); });
  }
  void OnPromptLogprobs(PromptDelta delta) override {
    WhileOpen([&] { call_->OnPromptLogprobs(item_, std::move(delta)); });
  }
  void OnTokens(GenerateDelta delta) override {
    call_->context_.CountTokens(std::ssize(delta.tokens));
    WhileOpen([&] { call_->OnTokens(item_, std::move(delta)); });
  }
  void OnScore(ContinuationScore score) override {
    WhileOpen([&] { call_->OnScore(item_, std::move(score)); });
  }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    call_->OnItemDone(item_, status, stats);
  }

 private:
  template <typename Report>
  void WhileOpen(const Report& report) {
    const std::lock_guard lock(call_->output_mutex_);
    if (!call_->has_ended_) report();
  }

  const std::shared_ptr<EngineCall> call_;
  const int item_;
};

EngineCall::EngineCall(std::string_view rpc, CallKind kind, std::shared_ptr<HttpExchange> exchange,
                       const ServiceParts& parts)
    : context_(MetadataOf(rpc, kind, exchange->Request()), parts), exchange_(std::move(exchange)) {
  exchange_->AddHeader("X-Request-Id", context_.RequestId());
  exchange_->AddHeader("Traceparent", context_.Traceparent());
}

void EngineCall::Start() {
  const auto abort = [weak = weak_from_this()](const absl::Status& reason) {
    if (const auto call = weak.lock()) call->End(reason, {});
  };
  absl::Status status = context_.Admit(KeyRole::kUser, abort);
  if (!exchange_->Attach(shared_from_this())) {
    status = absl::CancelledError("the client has closed the connection");
    OnFinished(status);
  }
  if (status.ok()) status = ParseItems();
  exchange_->Request().body = {};
  if (!status.ok()) {
    End(status, {});
  } else {
    SubmitMore();
  }
}

absl::Status EngineCall::ParseItems() {
  ASSIGN_OR_RETURN(std::vector<Item> items, Parse());
  for (const Item& item : items) context_.CountTokens(NumPromptTokens(item.request));
  if (items.size() > 1) context_.AddLogFields({{"num_items", items.size()}});
  const std::lock_guard lock(items_mutex_);
  items_ = std::move(items);
  return absl::OkStatus();
}

void EngineCall::SubmitMore() {
  absl::Status end;
  RequestStats total;
  {
    const std::lock_guard lock(items_mutex_);
    while (error_.ok() && !is_retry_pending_ && next_item_ < items_.size() &&
           in_flight_.size() < kMaxItemsInFlight && exchange_->HasSpace()) {
      const absl::Status status = SubmitNext();
      if (status.ok()) continue;
      // Once an item is in, the others wait for their turn.
      const bool is_waiting = absl::IsResourceExhausted(status) && next_item_ > 0;
      if (!is_waiting) {
        error_ = status;
      } else if (in_flight_.empty()) {
        is_retry_pending_ = true;
        exchange_->RunLater(kRetryPause, [self = shared_from_this()] {
          {
            const std::lock_guard retry_lock(self->items_mutex_);
            self->is_retry_pending_ = false;
          }
          self->SubmitMore();
        });
      }
      break;
    }
    const bool is_over = in_flight_.empty() && (!error_.ok() || next_item_ == items_.size());
    if (!is_over) return;
    end = error_;
    total = total_;
  }
  End(end, total);
}

absl::Status EngineCall::SubmitNext() {
  Item& item = items_[next_item_];
  const int index = int(next_item_);
  if (item.known) {
    AddStats(*item.known, &total_);
    const std::lock_guard lock(output_mutex_);
    if (!has_ended_) OnItemEnd(index, *item.known);
  } else {
    item.request.id =
        items_.size() == 1 ? context_.RequestId() : StrCat(context_.RequestId(), "/", next_item_);
    item.request.deadline = context_.Deadline();
    ASSIGN_OR_RETURN(Engine::Handle handle,
                     context_.Model().GetEngine().Submit(
                         item.request, std::make_shared<ItemSink>(shared_from_this(), index)));
    in_flight_.emplace(index, std::move(handle));
    item.request = Request();  // the engine has it now
  }
  ++next_item_;
  return absl::OkStatus();
}

void EngineCall::OnItemDone(int item, const absl::Status& status, const RequestStats& stats) {
  {
    const std::lock_guard lock(items_mutex_);
    in_flight_.erase(item);
    AddStats(stats, &total_);
    if (!status.ok() && error_.ok()) {
      error_ = status;
      for (const auto& [other, handle] : in_flight_) handle.Cancel();
    }
    const std::lock_guard output_lock(output_mutex_);
    if (status.ok() && !has_ended_) OnItemEnd(item, stats);
  }
  SubmitMore();
}

void EngineCall::End(const absl::Status& status, const RequestStats& total) {
  const std::lock_guard lock(output_mutex_);
  if (std::exchange(has_ended_, true)) return;
  status_ = status;
  context_.SetResult(total, finish_);
  context_.ReleaseKey();
  if (finished_) {
    context_.End(status.ok() ? *finished_ : status);
  } else if (status.ok() || exchange_->HasStarted()) {
    OnEnd(status, total);
  } else {
    exchange_->Reply(ErrorReply(status));
  }
}

void EngineCall::OnSpace() {
  {
    const std::lock_guard lock(items_mutex_);
    for (const auto& [item, handle] : in_flight_) handle.Resume();
  }
  SubmitMore();
}

void EngineCall::OnClientGone(const absl::Status& reason) {
  {
    const std::lock_guard lock(items_mutex_);
    if (error_.ok()) error_ = reason;
    for (const auto& [item, handle] : in_flight_) handle.Cancel();
  }
  SubmitMore();
}

void EngineCall::OnFinished(const absl::Status& status) {
  const std::lock_guard lock(output_mutex_);
  finished_ = status;
  // Else End writes the log line: the engine has not reported its counts yet.
  if (has_ended_) context_.End(status_.ok() ? status : status_);
}

}  // namespace lssar
