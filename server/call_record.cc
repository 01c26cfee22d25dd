#include "server/call_record.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "server/grpc_status.h"

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

std::string IdOf(const grpc::CallbackServerContext& context) {
  const auto found = context.client_metadata().find("x-request-id");
  if (found != context.client_metadata().end()) {
    const std::string_view given(found->second.data(), found->second.size());
    if (IsSafeId(given)) return std::string(given);
  }
  return MakeId();
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

CallRecord::CallRecord(std::string_view rpc, const grpc::CallbackServerContext& context,
                       const Log* log)
    : rpc_(rpc),
      id_(IdOf(context)),
      deadline_(DeadlineOf(context)),
      started_(Clock::now()),
      log_(log) {}

absl::Status CallRecord::Enter(CallGate& gate) {
  auto pass = gate.Enter();
  if (pass.ok()) pass_.emplace(*std::move(pass));
  return pass.status();
}

void CallRecord::WriteLog(const absl::Status& status) const {
  const auto elapsed =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - started_);
  LogFields fields = {{"request_id", id_},
                      {"rpc", rpc_},
                      {"status", std::string(NameOf(ToGrpcStatus(status).error_code()))},
                      {"elapsed_us", elapsed.count()}};
  fields.update(noted_);
  if (absl::IsInternal(status) || absl::IsDataLoss(status)) {
    // Of the server's own making, so the sentence holds nothing of the prompt.
    fields["message"] = std::string(status.message());
    log_->Error("call", fields);
  } else {
    log_->Info("call", fields);
  }
}

}  // namespace lssar
