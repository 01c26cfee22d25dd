#include "server/http/http_call.h"

#include <iterator>
#include <utility>

#include "server/api/receipt.h"
#include "server/http/call_metadata.h"
#include "server/http/openai_request.h"

namespace lssar {
namespace {

// What one job of a worker sends counts as that many bytes of a request.
constexpr int64_t kBytesSent = int64_t{1} << 16;
constexpr std::chrono::milliseconds kRetryTime{20};

}  // namespace

HttpCall::HttpCall(std::string_view rpc, std::string_view route, std::optional<CallKind> kind,
                   HttpMethod method, std::shared_ptr<HttpExchange> exchange,
                   const ServiceContext& parts)
    : Call(ReadHttpMetadata(rpc, route, kind, exchange->Request()), parts,
           std::move(method.method)),
      codec_(std::move(method.codec)),
      exchange_(std::move(exchange)) {
  codec_->Bind(&context_, exchange_.get());
  exchange_->AddHeader("X-Request-Id", context_.RequestId());
  exchange_->AddHeader("Traceparent", context_.Traceparent());
}

void HttpCall::OnSpace() {
  Resume();
  SendMore();
}

void HttpCall::SendMore() {
  if (!codec_->HasMore()) return;
  const auto self = std::static_pointer_cast<HttpCall>(shared_from_this());
  if (context_.RunOnWorker(kBytesSent, [self] { self->codec_->SendMore(); }).ok()) return;
  RunLater(kRetryTime, [weak = std::weak_ptr<HttpCall>(self)] {
    if (const auto call = weak.lock()) call->SendMore();
  });
}

void HttpCall::Start() { Begin(std::ssize(exchange_->Request().body)); }

absl::Status HttpCall::OnAdmission(const absl::Status& status) {
  if (exchange_->Attach(std::static_pointer_cast<HttpCall>(shared_from_this()))) return status;
  const absl::Status gone = absl::CancelledError("the client has closed the connection");
  OnFinished(gone);
  return gone;
}

absl::Status HttpCall::Decode() {
  const absl::Status status = codec_->Decode(exchange_->Request());
  exchange_->Request().body = {};
  context_.SetAskedModel(codec_->ModelName());
  return status;
}

absl::Status HttpCall::InPortsNames(const absl::Status& status) const {
  return WithHttpNames(status, codec_->Names());
}

absl::Status HttpCall::OnParsed(const std::vector<SubRequest>& items) {
  if (!items.empty()) {
    std::vector<const Request*> requests;
    for (const SubRequest& item : items) requests.push_back(&item.request);
    codec_->SetReceipt(ReceiptJson(context_.Model(), requests));
  }
  return codec_->OnParsed(&context_, items);
}

void HttpCall::OnSubmitted() {
  if (!codec_->IsStream()) return;
  exchange_->BeginStream();
  SendComments();
}

void HttpCall::SendComments() {
  const auto interval = std::chrono::milliseconds(
      absl::ToInt64Milliseconds(context_.GetStreamOptions().comment_interval));
  if (interval <= std::chrono::milliseconds::zero()) return;
  const auto next = exchange_->SendComment(interval, Clock::now());
  if (!next) return;
  const std::weak_ptr<Call> weak = weak_from_this();
  RunLater(*next, [weak] {
    if (const auto call = weak.lock()) static_cast<HttpCall&>(*call).SendComments();
  });
}

void HttpCall::SendEnd(const absl::Status& status) {
  if (!status.ok() || !codec_->HoldsKey()) context_.ReleaseKey();
  std::optional<absl::Status> finished;
  {
    const std::lock_guard lock(end_mutex_);
    ended_ = status;
    finished = finished_;
  }
  if (finished) {
    EndContext(status.ok() ? *finished : status);
  } else if (status.ok() || exchange_->HasStarted()) {
    codec_->OnEnd(status);
  } else {
    exchange_->Reply(codec_->Error(status));
  }
}

void HttpCall::OnFinished(const absl::Status& status) {
  std::optional<absl::Status> ended;
  {
    const std::lock_guard lock(end_mutex_);
    finished_ = status;
    ended = ended_;
  }
  // Else SendEnd writes the log line: the engine has not reported its counts yet.
  if (ended) EndContext(ended->ok() ? status : *ended);
}

void HttpCall::EndContext(const absl::Status& status) {
  context_.SetHttpStatus(exchange_->SentStatus());
  context_.End(status);
}

}  // namespace lssar
