#include "server/api/call_context.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/error_details.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/reply_fields.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

constexpr size_t kMaxIdBytes = 64;

// No name of a key and no address has a slash at its end.
const std::string& BatchTenant() {
  static const std::string name = "batches/";
  return name;
}

bool IsValidId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

ClientAddress FindClient(const CallMetadata& metadata, const TrustedProxies* proxies) {
  return (proxies != nullptr ? *proxies : TrustedProxies())
      .Find(metadata.peer, metadata.forwarded_for);
}

}  // namespace

CallContext::CallContext(CallMetadata metadata, const ServiceContext& parts)
    : metadata_(std::move(metadata)),
      request_id_(IsValidId(metadata_.request_id) ? metadata_.request_id : RandomId()),
      trace_(StartSpan(metadata_.traceparent,
                       parts.traces == nullptr ? 0 : parts.traces->SampleRatio())),
      client_(FindClient(metadata_, parts.trusted_proxies)),
      started_(Clock::now()),
      parts_(parts),
      asked_model_(metadata_.model) {}

CallContext::~CallContext() {
  if (num_reply_bytes_ > 0) parts_.reply_memory->Return(num_reply_bytes_);
}

absl::Status CallContext::Admit(KeyRole role, AbortCallback abort) {
  const CallSource source = metadata_.is_batch_row ? CallSource::kBatch : CallSource::kClient;
  ASSIGN_OR_RETURN(AdmissionPermit permit,
                   parts_.admission->Admit({.authorization = metadata_.authorization,
                                            .role = role,
                                            .abort = std::move(abort),
                                            .caller = metadata_.caller,
                                            .client = client_.limited,
                                            .request_id = request_id_,
                                            .source = source}));
  model_ = &permit.Model();
  if (IsTraced()) {
    served_name_ = model_->ServedNames().front();
    checkpoint_hash_ = model_->GetCheckpoint().hash;
  }
  {
    const std::lock_guard lock(mutex_);
    key_name_ = permit.KeyName();
    key_ = permit.Key();
    sees_load_ = permit.IsAdmin();
    if (!key_name_.empty()) log_fields_["key"] = key_name_;
    if (metadata_.kind && !metadata_.is_batch_row) permit.CountEngineCall(true);
    permit_.emplace(std::move(permit));
  }
  if (!metadata_.model.empty()) RETURN_IF_ERROR(model_->CheckName(metadata_.model));
  return metadata_.kind ? model_->GetEngine().CheckQueueCapacity(Tenant()) : absl::OkStatus();
}

const std::string& CallContext::Tenant() const {
  if (metadata_.is_batch_row) return BatchTenant();
  return key_name_.empty() ? client_.limited : key_name_;
}

int CallContext::AbortCalls(std::string_view request_id) const {
  return parts_.admission->AbortCalls(
      request_id, key_, absl::CancelledError("the call was ended by a request to delete it"));
}

absl::Status CallContext::HoldReply(int64_t num_bytes) {
  if (num_bytes <= parts_.stream.buffer_bytes) return absl::OkStatus();
  RETURN_IF_ERROR(parts_.reply_memory->Take(num_bytes));
  num_reply_bytes_ = num_bytes;
  return absl::OkStatus();
}

absl::Status CallContext::RunOnWorker(int64_t num_bytes, std::function<void()> work,
                                      std::function<void()> on_late) const {
  std::optional<WorkerPool::TimeLimit> limit;
  if (metadata_.deadline && on_late) {
    limit = {.at = *metadata_.deadline, .on_late = std::move(on_late)};
  }
  return parts_.workers->Submit(Tenant(), num_bytes, std::move(work), std::move(limit));
}

absl::Status CallContext::CheckStop() const {
  if (metadata_.deadline && Clock::now() >= *metadata_.deadline) {
    return absl::DeadlineExceededError("the deadline passed while the request was parsed");
  }
  if (is_stopped_) return absl::CancelledError("the call ended while its request was parsed");
  return absl::OkStatus();
}

ParseContext CallContext::MakeParseContext(uint64_t default_seed) const {
  ParseContext context = ContextOf(*model_, default_seed);
  context.workers = parts_.workers;
  context.tenant = Tenant();
  context.should_stop = [this] { return !CheckStop().ok(); };
  return context;
}

void CallContext::Complete(std::string id, Request* request) const {
  request->id = std::move(id);
  request->deadline = metadata_.deadline;
  if (metadata_.is_batch_row) request->priority = -limits::kMaxPriority;
  if (key_name_.empty() || parts_.share_prefix_cache_between_keys) return;
  // A key's name has no slash (api_keys.h), so no two pairs of name and salt give the same text.
  request->cache_salt = StrCat(key_name_, "/", request->cache_salt);
}

absl::Status CallContext::ReserveTokens(int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  return permit_ ? permit_->ReserveTokens(num_tokens) : absl::OkStatus();
}

absl::StatusOr<RequestLease> CallContext::AddRequest(const Request& request) {
  const std::lock_guard lock(mutex_);
  if (!permit_) return RequestLease();
  const GenerateParams* const generate = request.Generate();
  return permit_->AddRequest(generate != nullptr ? generate->num_choices : 1, request.priority);
}

void CallContext::CountTokens(int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  if (permit_) permit_->CountTokens(num_tokens);
}

void CallContext::ReleaseModel() {
  const std::lock_guard lock(mutex_);
  if (permit_) permit_->ReleaseModel();
}

void CallContext::ReleaseKey() {
  const std::lock_guard lock(mutex_);
  if (permit_) permit_->ReleaseKey();
}

void CallContext::SetPaused(bool is_paused) {
  if (metadata_.is_batch_row || is_paused_.exchange(is_paused) == is_paused) return;
  const std::lock_guard lock(mutex_);
  if (permit_) permit_->CountEngineCall(!is_paused);
}

void CallContext::AddLogFields(const LogFields& fields) {
  const std::lock_guard lock(mutex_);
  log_fields_.update(fields);
}

void CallContext::SetResult(const RequestStats& stats, std::optional<FinishReason> finish) {
  const std::lock_guard lock(mutex_);
  stats_ = stats;
  finish_ = finish;
  log_fields_.update(ToLogFields(stats));
  if (finish) log_fields_["finish"] = FinishName(*finish);
}

void CallContext::SetAskedModel(std::string name) {
  const std::lock_guard lock(mutex_);
  asked_model_ = std::move(name);
}

void CallContext::AddItem(int index, const RequestStats& stats) {
  if (!IsTraced()) return;
  const std::lock_guard lock(mutex_);
  ++num_items_;
  if (items_.size() == kMaxTracedItems) return;
  items_.push_back({.index = index, .ended = Clock::now(), .stats = stats});
}

// When its deadline passes, the client cancels the call, and the server often sees the cancellation
// first: gRPC's wire format rounds a deadline up by as much as 1%, so the server's deadline is
// later than the client's. A cancellation near the deadline is therefore reported as
// DEADLINE_EXCEEDED.
absl::Status CallContext::ReportedStatus(const absl::Status& status) const {
  const std::optional<Clock::time_point> deadline = metadata_.deadline;
  if (!absl::IsCancelled(status) || !deadline) return status;
  const auto tolerance = (*deadline - started_) / 50 + std::chrono::milliseconds(10);
  if (Clock::now() < *deadline - tolerance) return status;
  return absl::DeadlineExceededError(status.message());
}

void CallContext::End(const absl::Status& status) {
  const absl::Status reported = ReportedStatus(status);
  const Clock::duration elapsed = Elapsed();
  const auto elapsed_us = std::chrono::duration_cast<std::chrono::microseconds>(elapsed).count();
  LogFields fields = {
      {"request_id", request_id_}, {"trace_id", trace_.trace_id},
      {"span_id", trace_.span_id}, {"rpc", metadata_.rpc},
      {"client", client_.text},    {"status", absl::StatusCodeToString(reported.code())},
      {"elapsed_us", elapsed_us}};
  if (!trace_.parent_id.empty()) fields["parent_id"] = trace_.parent_id;
  if (const std::string reason = ErrorReason(reported); !reason.empty()) fields["reason"] = reason;
  CallEnd end = {.code = reported.code(), .elapsed = elapsed};
  // A row that is refused waits and begins again.
  const bool is_refused_row =
      metadata_.is_batch_row && absl::IsResourceExhausted(reported) && MayRetry(reported);
  {
    const std::lock_guard lock(mutex_);
    fields.update(log_fields_);
    end.finish = finish_;
    end.stats = stats_;
    if (permit_) permit_->ReleaseKey();
    const bool is_limit = absl::IsResourceExhausted(reported) || absl::IsPermissionDenied(reported);
    if (key_ != nullptr && metadata_.is_batch_row) {
      is_refused_row ? key_->ReturnRequest() : key_->CountRow();
    } else if (key_ != nullptr && is_limit) {
      key_->CountRejection();
    }
  }
  if (metadata_.kind && !is_refused_row) {
    end.kind = *metadata_.kind;
    parts_.metrics->OnEnd(end);
  }
  if (absl::IsInternal(reported) || absl::IsDataLoss(reported)) {
    // The server makes these messages itself: they contain no text of prompts.
    fields["message"] = std::string(reported.message());
    parts_.log->Error("call", fields);
  } else {
    parts_.log->Info("call", fields);
  }
  if (IsTraced()) ExportSpans(reported, elapsed);
}

void CallContext::ExportSpans(const absl::Status& reported, Clock::duration elapsed) {
  TracedCall call = {.trace = trace_,
                     .rpc = metadata_.rpc,
                     .http = metadata_.http,
                     .http_status = http_status_,
                     .has_tls = parts_.has_tls,
                     .kind = metadata_.kind,
                     .is_chat = is_chat_,
                     .request_id = request_id_,
                     .client = client_.text,
                     .key = key_name_,
                     .model = served_name_,
                     .checkpoint_hash = checkpoint_hash_,
                     .code = reported.code(),
                     .started = started_,
                     .ended = started_ + elapsed,
                     .ended_at = std::chrono::system_clock::now() - (Elapsed() - elapsed)};
  if (absl::IsInternal(reported) || absl::IsDataLoss(reported)) {
    call.error = std::string(reported.message());
  }
  {
    const std::lock_guard lock(mutex_);
    call.asked_model = asked_model_;
    call.finish = finish_;
    call.stats = stats_;
    call.items = std::move(items_);
    call.num_items = num_items_;
  }
  parts_.traces->Export(MakeCallSpans(call));
}

}  // namespace lssar
