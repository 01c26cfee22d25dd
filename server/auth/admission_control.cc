#include "server/auth/admission_control.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "base/error_details.h"
#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {

AdmissionPermit::AdmissionPermit(AdmissionPermit&& other) noexcept
    : control_(std::exchange(other.control_, nullptr)),
      model_(other.model_),
      id_(other.id_),
      key_(std::move(other.key_)),
      source_(other.source_),
      reserved_(other.reserved_),
      num_used_tokens_(other.num_used_tokens_),
      is_engine_call_(std::exchange(other.is_engine_call_, false)),
      is_released_(other.is_released_) {}

AdmissionPermit::~AdmissionPermit() {
  ReleaseKey();
  if (control_ != nullptr) control_->RemoveCall(id_);
}

std::string_view AdmissionPermit::KeyName() const {
  return key_ != nullptr && key_->IsKey() ? std::string_view(key_->Name()) : std::string_view();
}

bool AdmissionPermit::IsAdmin() const { return SeesAll(key_); }

absl::Status AdmissionPermit::ReserveTokens(int64_t num_tokens) {
  if (key_ == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(reserved_, key_->ReserveTokens(num_tokens, Clock::now(), source_));
  return absl::OkStatus();
}

absl::StatusOr<RequestLease> AdmissionPermit::AddRequest(int num_sequences, int priority) const {
  if (key_ == nullptr) return RequestLease();
  return key_->AddRequest(num_sequences, priority, source_);
}

void AdmissionPermit::CountTokens(int64_t num_tokens) {
  if (key_ == nullptr) return;
  num_used_tokens_ += num_tokens;
  const int64_t over = std::max<int64_t>(0, num_used_tokens_ - reserved_.num_tokens);
  key_->CountTokens(num_tokens, over, Clock::now());
  reserved_.num_tokens += over;
}

void AdmissionPermit::CountEngineCall(bool is_counted) {
  if (is_released_ || std::exchange(is_engine_call_, is_counted) == is_counted) return;
  control_->num_engine_calls_ += is_counted ? 1 : -1;
}

void AdmissionPermit::ReleaseKey() {
  if (control_ != nullptr) CountEngineCall(false);
  is_released_ = true;
  const auto key = std::exchange(key_, nullptr);
  if (key == nullptr) return;
  key->RefundTokens(
      {.num_tokens = reserved_.num_tokens - num_used_tokens_, .per_minute = reserved_.per_minute});
  key->Release(source_);
}

absl::StatusOr<AdmissionPermit> AdmissionControl::Admit(Asked asked) {
  ASSIGN_OR_RETURN(AdmissionPermit permit, AddCall({.abort = std::move(asked.abort),
                                                    .request_id = std::move(asked.request_id)}));
  std::optional<Caller> caller = std::move(asked.caller);
  if (!caller) {
    ASSIGN_OR_RETURN(caller, access_->Authenticate(asked.authorization, asked.role));
  }
  if (*caller == nullptr) caller = access_->OfAddress(asked.client);
  if (*caller != nullptr) RETURN_IF_ERROR((*caller)->Acquire(Clock::now(), asked.source));
  {
    const std::lock_guard lock(mutex_);
    running_.at(permit.id_).caller = *caller;
  }
  permit.key_ = *std::move(caller);
  permit.source_ = asked.source;
  return permit;
}

absl::StatusOr<AdmissionPermit> AdmissionControl::AddCall(RunningCall call) {
  const std::lock_guard lock(mutex_);
  if (!closed_.ok()) last_refusal_ = Clock::now();
  RETURN_IF_ERROR(LockedReadiness());
  if (std::ssize(running_) >= max_calls_) {
    return LimitError(error_reason::kMaxCalls,
                      StrCat("the server has ", running_.size(), " running calls (--max-calls ",
                             max_calls_, ")"));
  }
  const uint64_t id = next_id_++;
  call.model = model_;
  running_.emplace(id, std::move(call));
  return AdmissionPermit(this, model_, id);
}

absl::Status AdmissionControl::Readiness() const {
  const std::lock_guard lock(mutex_);
  return LockedReadiness();
}

absl::Status AdmissionControl::LockedReadiness() const {
  RETURN_IF_ERROR(closed_);
  if (model_ == nullptr) {
    absl::Status status = absl::UnavailableError("the server is loading its model; retry later");
    SetErrorReason(error_reason::kModelLoading, &status);
    return status;
  }
  return absl::OkStatus();
}

void AdmissionControl::Open(LoadedModel* model) {
  const std::lock_guard lock(mutex_);
  model_ = model;
}

void AdmissionControl::Close(absl::Status reason) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(reason);
}

Clock::time_point AdmissionControl::LastRefusal() const {
  const std::lock_guard lock(mutex_);
  return last_refusal_;
}

int AdmissionControl::AbortCalls(std::string_view request_id, const Caller& caller,
                                 const absl::Status& reason) {
  const bool sees_all = SeesAll(caller);
  return Abort(
      [&](const RunningCall& call) {
        return call.abort && call.request_id == request_id && (sees_all || call.caller == caller);
      },
      reason);
}

void AdmissionControl::AbortAll(const absl::Status& reason) {
  Abort([](const RunningCall& call) { return bool(call.abort); }, reason);
}

template <typename Predicate>
int AdmissionControl::Abort(const Predicate& predicate, const absl::Status& reason) {
  std::vector<AbortCallback> aborts;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, call] : running_) {
      if (predicate(call)) aborts.push_back(call.abort);
    }
  }
  // Without the lock: a call that ends removes itself.
  for (const AbortCallback& abort : aborts) abort(reason);
  return int(aborts.size());
}

template <typename Condition>
bool AdmissionControl::WaitUntil(absl::Duration limit, const Condition& condition) {
  std::unique_lock lock(mutex_);
  // Capped: now + limit must not overflow the clock.
  const auto capped = absl::ToChronoMilliseconds(std::min(limit, absl::Hours(24)));
  return ended_.wait_for(lock, capped, condition);
}

bool AdmissionControl::WaitUntilIdle(absl::Duration limit) {
  return WaitUntil(limit, [this] { return running_.empty(); });
}

bool AdmissionControl::WaitUntilUnused(const LoadedModel* model, absl::Duration limit) {
  return WaitUntil(limit, [this, model] {
    return std::none_of(running_.begin(), running_.end(),
                        [model](const auto& call) { return call.second.model == model; });
  });
}

void AdmissionPermit::ReleaseModel() { control_->ReleaseModel(id_); }

void AdmissionControl::ReleaseModel(uint64_t id) {
  const std::lock_guard lock(mutex_);
  running_.at(id).model = nullptr;
  ended_.notify_all();
}

void AdmissionControl::RemoveCall(uint64_t id) {
  // Notifies under the lock: the waiter may destroy this as soon as no call is left.
  const std::lock_guard lock(mutex_);
  running_.erase(id);
  ended_.notify_all();
}

}  // namespace lssar
