#include "server/api/call.h"

#include <utility>
#include <variant>

#include "base/status_macros.h"
#include "server/loaded_model.h"

namespace lssar {

// Carries one item's results to the method. Engine thread.
class Call::ItemSink final : public OutputSink {
 public:
  ItemSink(std::shared_ptr<Call> call, int item) : call_(std::move(call)), item_(item) {}

  bool IsWritable() const override {
    const bool has_space = call_->HasSpace();
    call_->context_.SetPaused(!has_space);
    return has_space;
  }
  void OnAdmitted(const RequestStats& stats) override {
    call_->context_.GetMetrics().OnAdmitted(stats);
    call_->items_.OnAdmitted(item_);
    call_->WhileOpen([&] { call_->method_->OnAdmitted(item_, stats); });
  }
  void OnResult(EngineResult result) override {
    if (const auto* delta = std::get_if<GenerateDelta>(&result)) {
      call_->context_.CountTokens(std::ssize(delta->tokens));
    }
    call_->WhileOpen([&] {
      if (untold_.ok()) untold_ = call_->method_->CheckResult(result);
      if (untold_.ok()) call_->method_->OnResult(item_, std::move(result));
    });
  }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    call_->items_.OnDone(item_, status.ok() ? untold_ : status, stats);
  }

 private:
  const std::shared_ptr<Call> call_;
  const int item_;
  absl::Status untold_;  // why a result was not told
};

Call::Call(CallMetadata metadata, const ServiceContext& parts, std::unique_ptr<Method> method)
    : context_(std::move(metadata), parts), method_(std::move(method)) {
  method_->Bind(&context_, [this](int prompt, std::unique_ptr<Message> reply) {
    Send(prompt, std::move(reply));
  });
}

void Call::Begin(int64_t num_bytes) {
  const auto abort = [weak = weak_from_this()](const absl::Status& reason) {
    const auto call = weak.lock();
    if (call == nullptr) return;
    call->End(reason, {});
    call->Stop(reason);
  };
  absl::Status status = OnAdmission(context_.Admit(KeyRole::kUser, abort));
  if (status.ok()) {
    const auto self = shared_from_this();
    const auto on_late = [self] {
      self->End(absl::DeadlineExceededError("the deadline passed before the request was parsed"),
                {});
    };
    status = context_.RunOnWorker(
        num_bytes, [self] { self->ParseAndSubmit(); }, on_late);
  }
  if (!status.ok()) End(status, {});
}

void Call::ParseAndSubmit() {
  auto items = context_.Outcome([this]() -> absl::StatusOr<std::vector<SubRequest>> {
    RETURN_IF_ERROR(context_.CheckStop());
    RETURN_IF_ERROR(Decode());
    auto parsed = method_->Parse();
    if (!parsed.ok()) return InPortsNames(parsed.status());
    RETURN_IF_ERROR(OnParsed(*parsed));
    return parsed;
  }());
  if (!items.ok()) {
    End(items.status(), {});
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    is_parsed_ = true;
  }
  items_.Start(*std::move(items));
  WhileOpen([this] { OnSubmitted(); });
}

template <typename Report>
void Call::WhileOpen(const Report& report) {
  const std::lock_guard lock(mutex_);
  if (!has_ended_) report();
}

std::shared_ptr<OutputSink> Call::MakeSink(int item) {
  return std::make_shared<ItemSink>(shared_from_this(), item);
}

void Call::RetryLater(std::chrono::milliseconds delay) {
  RunLater(delay, [weak = weak_from_this()] {
    if (const auto call = weak.lock()) call->items_.Retry();
  });
}

void Call::OnItemEnd(int item, const RequestStats& stats) {
  WhileOpen([&] { method_->OnItemEnd(item, stats); });
}

void Call::Stop(const absl::Status& reason) {
  context_.Stop();
  items_.Stop(reason);
}

void Call::End(const absl::Status& status, const RequestStats& total) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(has_ended_, true)) return;
  // A worker may still be parsing.
  context_.SetResult(total, is_parsed_ ? method_->Finish() : std::nullopt);
  if (is_parsed_) method_->OnEnd(status, total);
  SendEnd(status);
}

}  // namespace lssar
