#include "server/http/engine_call.h"

#include <utility>

#include "server/api/receipt.h"
#include "server/http/call_metadata.h"
#include "server/http/http_error.h"

namespace lssar {

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
  void OnEmbeddings(EmbeddingBlock block) override {
    WhileOpen([&] { call_->OnEmbeddings(item_, std::move(block)); });
  }
  void OnWeights(std::vector<RowWeights> rows) override {
    WhileOpen([&] { call_->OnWeights(item_, std::move(rows)); });
  }
  void OnStatistics(std::vector<HeadStatistics> heads) override {
    WhileOpen([&] { call_->OnStatistics(item_, std::move(heads)); });
  }
  void OnScore(ContinuationScore score) override {
    WhileOpen([&] { call_->OnScore(item_, std::move(score)); });
  }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    call_->items_.OnDone(item_, status, stats);
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
    : context_(ReadHttpMetadata(rpc, kind, exchange->Request()), parts),
      exchange_(std::move(exchange)) {
  exchange_->AddHeader("X-Request-Id", context_.RequestId());
  exchange_->AddHeader("Traceparent", context_.Traceparent());
}

void EngineCall::Start() {
  const auto abort = [weak = weak_from_this()](const absl::Status& reason) {
    const auto call = weak.lock();
    if (call == nullptr) return;
    call->End(reason, {});
    call->OnClientGone(reason);
  };
  absl::Status status = context_.Admit(KeyRole::kUser, abort);
  if (!exchange_->Attach(shared_from_this())) {
    status = absl::CancelledError("the client has closed the connection");
    OnFinished(status);
  }
  if (status.ok()) {
    status = context_.RunOnWorker(std::ssize(exchange_->Request().body),
                                  [self = shared_from_this()] { self->ParseAndSubmit(); });
  }
  if (!status.ok()) End(status, {});
}

void EngineCall::ParseAndSubmit() {
  const absl::Status stopped = context_.CheckStop();
  absl::StatusOr<std::vector<Item>> items =
      stopped.ok() ? context_.Outcome(Parse()) : absl::StatusOr<std::vector<Item>>(stopped);
  exchange_->Request().body = {};
  if (!items.ok()) {
    End(items.status(), {});
    return;
  }
  std::vector<const Request*> requests;
  for (const Item& item : *items) requests.push_back(&item.request);
  receipt_ = ReceiptJson(context_.Model(), requests);
  if (items->size() > 1) context_.AddLogFields({{"num_items", items->size()}});
  items_.Start(*std::move(items));
}

std::shared_ptr<OutputSink> EngineCall::MakeSink(int item) {
  return std::make_shared<ItemSink>(shared_from_this(), item);
}

void EngineCall::RetryLater(std::chrono::milliseconds delay) {
  exchange_->RunLater(delay, [self = shared_from_this()] { self->items_.Retry(); });
}

void EngineCall::OnItemEnd(int item, const RequestStats& stats) {
  const std::lock_guard lock(output_mutex_);
  if (!has_ended_) OnItemFinished(item, stats);
}

void EngineCall::OnClientGone(const absl::Status& reason) {
  context_.Stop();
  items_.Stop(reason);
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

void EngineCall::OnFinished(const absl::Status& status) {
  const std::lock_guard lock(output_mutex_);
  finished_ = status;
  // Else End writes the log line: the engine has not reported its counts yet.
  if (has_ended_) context_.End(status_.ok() ? status : status_);
}

}  // namespace lssar
