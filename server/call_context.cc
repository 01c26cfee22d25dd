#include "server/call_context.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "server/grpc_status.h"
#include "server/reply_fields.h"

namespace lssar {
namespace {

constexpr size_t kMaxIdBytes = 64;

bool IsSafeId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

std::string MakeId() {
  static const uint64_t random_prefix =
      (uint64_t{std::random_device()()} << 16) ^ uint64_t { std::random_device()() };
  static std::atomic<uint64_t> counter = 0;
  return absl::StrFormat("%012x-%d", random_prefix & 0xffffffffffff, ++counter);
}

// Empty: the client sent none.
std::string_view MetadataOf(const grpc::CallbackServerContext& context, const char* key) {
  const auto found = context.client_metadata().find(key);
  if (found == context.client_metadata().end()) return {};
  return {found->second.data(), found->second.size()};
}

std::string IdOf(const grpc::CallbackServerContext& context) {
  const std::string_view given = MetadataOf(context, "x-request-id");
  return IsSafeId(given) ? std::string(given) : MakeId();
}

std::optional<Clock::time_point> DeadlineOf(const grpc::CallbackServerContext& context) {
  using std::chrono::system_clock;
  const system_clock::time_point deadline = context.deadline();
  if (deadline == system_clock::time_point::max()) return std::nullopt;
  const auto left = deadline - system_clock::now();
  // Far deadlines are no deadlines: the clocks' sum must not overflow.
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

}  // namespace

CallContext::CallContext(std::string_view rpc, grpc::CallbackServerContext& context,
                         const ServiceParts& parts)
    : rpc_(rpc),
      id_(IdOf(context)),
      trace_(TakeTraceContext(MetadataOf(context, "traceparent"))),
      deadline_(DeadlineOf(context)),
      started_(Clock::now()),
      authorization_(MetadataOf(context, "authorization")),
      parts_(parts) {
  context.AddTrailingMetadata("x-request-id", id_);
  context.AddTrailingMetadata("traceparent", trace_.Traceparent());
}

absl::Status CallContext::Enter(KeyRole role, CallGate::Cut cut) {
  auto pass = parts_.gate->Enter(std::move(cut));
  if (!pass.ok()) return pass.status();
  auto visit = parts_.access->Enter(authorization_, role);
  if (!visit.ok()) return visit.status();
  pass_.emplace(*std::move(pass));
  const std::lock_guard lock(mutex_);
  visit_.emplace(*std::move(visit));
  if (!visit_->KeyName().empty()) noted_["key"] = std::string(visit_->KeyName());
  return absl::OkStatus();
}

void CallContext::CountTokens(int64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  if (visit_) visit_->CountTokens(num_tokens);
}

void CallContext::LeaveKey() {
  const std::lock_guard lock(mutex_);
  visit_.reset();
}

void CallContext::Note(const LogFields& fields) {
  const std::lock_guard lock(mutex_);
  noted_.update(fields);
}

void CallContext::NoteRequest(const RequestStats& stats, std::optional<FinishReason> finish) {
  const std::lock_guard lock(mutex_);
  stats_ = stats;
  finish_ = finish;
  noted_.update(ToLogFields(stats));
  if (finish) noted_["finish"] = FinishName(*finish);
}

// When its deadline passes the client cancels the call, and often the engine hears of that first.
// The wire rounds a deadline up by as much as 1%, so that the server's lies behind the client's.
absl::Status CallContext::Outcome(const absl::Status& status) const {
  if (!absl::IsCancelled(status) || !deadline_) return status;
  const auto slack = (*deadline_ - started_) / 50 + std::chrono::milliseconds(10);
  if (Clock::now() < *deadline_ - slack) return status;
  return absl::DeadlineExceededError(status.message());
}

void CallContext::End(const absl::Status& status) {
  const absl::Status outcome = Outcome(status);
  const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(Elapsed());
  LogFields fields = {{"request_id", id_},
                      {"trace_id", trace_.trace_id},
                      {"span_id", trace_.span_id},
                      {"rpc", rpc_},
                      {"status", std::string(NameOf(ToGrpcStatus(outcome).error_code()))},
                      {"elapsed_us", elapsed.count()}};
  if (!trace_.parent_id.empty()) fields["parent_id"] = trace_.parent_id;
  {
    const std::lock_guard lock(mutex_);
    fields.update(noted_);
  }
  if (absl::IsInternal(outcome) || absl::IsDataLoss(outcome)) {
    // Of the server's own making, so the sentence holds nothing of the prompt.
    fields["message"] = std::string(outcome.message());
    parts_.log->Error("call", fields);
  } else {
    parts_.log->Info("call", fields);
  }
}

void CallContext::EndRequest(CallKind kind, const absl::Status& status) {
  CallEnd end = {.kind = kind, .code = Outcome(status).code(), .elapsed = Elapsed()};
  {
    const std::lock_guard lock(mutex_);
    end.finish = finish_;
    end.stats = stats_;
  }
  parts_.metrics->OnEnd(end);
  End(status);
}

}  // namespace lssar
