#include "clients/cli/rpc_calls.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "base/error_details.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/prefix_key.h"
#include "clients/cli/retry.h"
#include "clients/cli/service.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace lssar::cli {
namespace {

// A bound on memory only; the server refuses smaller numbers already.
constexpr int kMaxChoices = 1024;

// Between two looks at Ctrl-C.
constexpr std::chrono::milliseconds kSlice{50};
// The longest delay that a server may name: a day.
constexpr int64_t kMaxDelaySeconds = 24 * 3600;

// The value of a 16-bit float's bits.
float FloatFromHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  float magnitude = exponent == 0 ? std::ldexp(float(mantissa), -24)
                                  : std::ldexp(float(mantissa + 1024), exponent - 25);
  if (exponent == 31) magnitude = mantissa == 0 ? HUGE_VALF : std::nanf("");
  return (bits >> 15) != 0 ? -magnitude : magnitude;
}

// The first of this type in the status details.
template <typename Detail>
std::optional<Detail> FindDetail(const grpc::Status& status) {
  google::rpc::Status details;
  if (!details.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& any : details.details()) {
    Detail detail;
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

// The server's sentence ends with the header that its other clients send; this program's user has a
// flag.
std::string NameKeyFlag(const std::string& message) {
  return StrCat(message.substr(0, message.find("; send `authorization:")),
                "; give the key with --api-key KEY or LSSAR_API_KEY");
}

void AddDelta(const v1::Delta& delta, int64_t now_us, GenerateResult* result) {
  if (delta.choice() < 0 || delta.choice() >= int(result->choices.size())) return;
  GeneratedChoice& choice = result->choices[size_t(delta.choice())];
  choice.text += delta.text();
  choice.tokens.insert(choice.tokens.end(), delta.tokens().begin(), delta.tokens().end());
  if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    choice.finish_reason = delta.finish_reason();
    choice.stop_string = delta.stop_string();
  }
  if (delta.tokens().empty()) return;
  if (result->first_token_us < 0) {
    result->first_token_us = now_us;
    result->num_first_tokens = delta.tokens_size();
  }
  result->last_token_us = now_us;
}

// nullptr if the request has no such item or continuation.
ScoredContinuation* Find(ScoredItems* items, int item, int continuation) {
  if (item < 0 || item >= int(items->size())) return nullptr;
  auto& continuations = (*items)[size_t(item)];
  if (continuation < 0 || continuation >= int(continuations.size())) return nullptr;
  return &continuations[size_t(continuation)];
}

// Checks that the row and its keys are positions of the prompt.
bool IsInPrompt(const v1::RowWeights& row, size_t num_tokens) {
  return row.row() >= 0 && size_t(row.row()) < num_tokens &&
         row.keys_size() == row.weights_size() &&
         std::ranges::all_of(row.keys(), [&](int key) { return key >= 0 && key <= row.row(); });
}

}  // namespace

absl::Status ToStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return absl::UnauthenticatedError(NameKeyFlag(status.error_message()));
  }
  // What gRPC makes of a stream that a proxy ends without a status because its server is gone.
  const std::string& message = status.error_message();
  if ((status.error_code() == grpc::StatusCode::UNKNOWN ||
       status.error_code() == grpc::StatusCode::INTERNAL) &&
      (absl::StrContains(message, "Stream removed") ||
       absl::StrContains(message, "RST_STREAM with error code 2") ||
       absl::StrContains(message, "without status") ||
       absl::StrContains(message, "without grpc-status"))) {
    return absl::UnavailableError(StrCat("the server ended during the call (", message, ")"));
  }
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), message);
  if (const auto delay = RetryDelayOf(status)) SetRetryDelay(*delay, &result);
  if (const auto info = FindDetail<google::rpc::ErrorInfo>(status);
      info && info->domain() == kErrorDomain) {
    SetErrorReason(info->reason(), &result);
  }
  return result;
}

std::optional<std::chrono::microseconds> RetryDelayOf(const grpc::Status& status) {
  const auto retry = FindDetail<google::rpc::RetryInfo>(status);
  if (!retry) return std::nullopt;
  const auto seconds =
      std::clamp<int64_t>(retry->retry_delay().seconds(), -kMaxDelaySeconds, kMaxDelaySeconds);
  const std::chrono::microseconds delay =
      std::chrono::seconds(seconds) +
      std::chrono::microseconds(retry->retry_delay().nanos() / 1000);
  return std::max(delay, std::chrono::microseconds(0));
}

absl::Status RetryRefused(Interrupt* interrupt, const std::function<absl::Status()>& call) {
  std::minstd_rand rng(std::random_device{}());
  Attempts attempts;
  for (int num_attempts = 1;; ++num_attempts) {
    absl::Status status = call();
    if (status.ok() || interrupt->Fired()) return status;
    const auto wait = attempts.WaitAfter(status, std::uniform_real_distribution<double>(0, 1)(rng));
    if (!wait) {
      if (!absl::IsUnavailable(status)) return status;
      return absl::UnavailableError(
          StrCat("no answer after ", num_attempts, " attempts: ", status.message()));
    }
    const auto end = std::chrono::steady_clock::now() + *wait;
    while (std::chrono::steady_clock::now() < end) {
      if (interrupt->Fired()) return status;
      std::this_thread::sleep_until(std::min(end, std::chrono::steady_clock::now() + kSlice));
    }
  }
}

int64_t MicrosSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() -
                                                               start)
      .count();
}

absl::StatusOr<v1::GetInfoReply> DescribeServer(Service* stub) {
  grpc::ClientContext context;
  v1::GetInfoReply reply;
  RETURN_IF_ERROR(ToStatus((*stub)->GetInfo(&context, v1::GetInfoRequest(), &reply)));
  return reply;
}

absl::StatusOr<v1::GetStatsReply> ReadStats(Service* stub) {
  grpc::ClientContext context;
  v1::GetStatsReply reply;
  RETURN_IF_ERROR(ToStatus((*stub)->GetStats(&context, v1::GetStatsRequest(), &reply)));
  return reply;
}

absl::StatusOr<std::vector<int32_t>> Tokenize(Service* stub, const std::string& text,
                                              std::optional<bool> add_bos, Interrupt* interrupt) {
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  v1::TokenizeRequest request;
  request.set_text(text);
  if (add_bos.has_value()) request.set_add_bos(*add_bos);
  v1::TokenizeReply reply;
  RETURN_IF_ERROR(ToStatus((*stub)->Tokenize(&context, request, &reply)));
  return std::vector<int32_t>(reply.ids().begin(), reply.ids().end());
}

int GenerateResult::NumTokens() const {
  size_t num_tokens = 0;
  for (const GeneratedChoice& choice : choices) num_tokens += choice.tokens.size();
  return int(num_tokens);
}

double GenerateResult::TokensPerSecond() const {
  // The server may merge deltas, so arrival times hide the steps: its own clock is better.
  if (finished.has_value() && finished->timings().decode_us() > 0) {
    const int num_firsts = int(
        std::ranges::count_if(choices, [](const auto& choice) { return !choice.tokens.empty(); }));
    return (NumTokens() - num_firsts) * 1e6 / double(finished->timings().decode_us());
  }
  const int64_t elapsed_us = last_token_us - first_token_us;
  if (elapsed_us <= 0) return 0;
  return (NumTokens() - num_first_tokens) * 1e6 / double(elapsed_us);
}

absl::Status RunGenerate(Service* stub, const v1::GenerateRequest& request, Interrupt* interrupt,
                         const OnDelta& on_delta, GenerateResult* result) {
  *result = GenerateResult();
  result->choices.resize(size_t(std::clamp(request.has_n() ? request.n() : 1, 1, kMaxChoices)));
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  const auto start = std::chrono::steady_clock::now();
  context.AddMetadata(kPrefixHeader, PrefixKey(request));
  const auto reader = (*stub)->Generate(&context, request);
  v1::GenerateReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_started()) {
      result->started = reply.started();
    } else if (reply.has_prompt_logprobs()) {
      const auto& tokens = reply.prompt_logprobs().tokens();
      result->prompt_tokens.insert(result->prompt_tokens.end(), tokens.begin(), tokens.end());
    } else if (reply.has_delta()) {
      AddDelta(reply.delta(), MicrosSince(start), result);
      on_delta(reply.delta());
    } else if (reply.has_finished()) {
      result->finished = reply.finished();
    }
  }
  return ToStatus(reader->Finish());
}

std::string FinishReasonName(v1::FinishReason reason) {
  return std::string(absl::StripPrefix(v1::FinishReason_Name(reason), "FINISH_REASON_"));
}

absl::StatusOr<ScoredItems> RunScore(Service* stub, const v1::ScoreRequest& request,
                                     Interrupt* interrupt, const OnScore& on_score,
                                     v1::ScoreFinished* finished,
                                     std::map<int, absl::Status>* item_errors) {
  ScoredItems items;
  int num_missing = 0;
  for (const auto& item : request.items()) {
    items.emplace_back(size_t(item.continuations_size()));
    num_missing += item.continuations_size();
  }
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  context.AddMetadata(kPrefixHeader, PrefixKey(request));
  const auto reader = (*stub)->Score(&context, request);
  std::map<int, absl::Status> errors;  // by item
  v1::ScoreReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_tokens()) {
      const v1::ScoreTokens& block = reply.tokens();
      if (auto* found = Find(&items, block.item(), block.continuation())) {
        found->tokens.insert(found->tokens.end(), block.tokens().begin(), block.tokens().end());
      }
    } else if (reply.has_score()) {
      const v1::ContinuationScore& score = reply.score();
      if (auto* found = Find(&items, score.item(), score.continuation())) {
        found->score = score;
        --num_missing;
        on_score(score);
      }
    } else if (reply.has_error()) {
      const int item = reply.error().item();
      if (item < 0 || item >= request.items_size()) continue;
      const bool is_new =
          errors
              .emplace(item, absl::Status(static_cast<absl::StatusCode>(reply.error().code()),
                                          reply.error().message()))
              .second;
      if (is_new) num_missing -= request.items(item).continuations_size();
    } else if (reply.has_finished() && finished != nullptr) {
      *finished = reply.finished();
    }
  }
  RETURN_IF_ERROR(ToStatus(reader->Finish()));
  if (item_errors == nullptr && !errors.empty()) return errors.begin()->second;
  if (num_missing != 0) {
    return absl::InternalError(StrCat("the server left out ", num_missing, " scores"));
  }
  if (item_errors != nullptr) *item_errors = std::move(errors);
  return items;
}

absl::StatusOr<std::vector<InputVectors>> RunEmbed(Service* stub, const v1::EmbedRequest& request,
                                                   Interrupt* interrupt) {
  std::vector<InputVectors> inputs(size_t(request.inputs_size()));
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  context.AddMetadata(kPrefixHeader, PrefixKey(request));
  const auto reader = (*stub)->Embed(&context, request);
  v1::EmbedReply reply;
  bool is_malformed = false;
  while (reader->Read(&reply)) {
    if (!reply.has_vectors()) continue;
    const v1::EmbeddingVectors& block = reply.vectors();
    if (block.input() < 0 || block.input() >= request.inputs_size()) continue;
    InputVectors& input = inputs[size_t(block.input())];
    if (input.size == 0) input.size = block.size();
    input.num_layers = std::max(request.layers_size(), 1);
    const size_t num_before = input.values.size();
    input.values.insert(input.values.end(), block.values().begin(), block.values().end());
    for (size_t i = 0; i + 1 < block.fp16_values().size(); i += sizeof(uint16_t)) {
      uint16_t bits = 0;
      std::memcpy(&bits, &block.fp16_values()[i], sizeof(bits));
      input.values.push_back(FloatFromHalf(bits));
    }
    is_malformed =
        is_malformed || block.size() <= 0 || block.size() != input.size ||
        std::max(block.num_layers(), 1) != input.num_layers ||
        (input.values.size() - num_before) % (size_t(block.size()) * size_t(input.num_layers)) != 0;
    if (is_malformed) break;
  }
  if (is_malformed) context.TryCancel();
  const absl::Status status = ToStatus(reader->Finish());
  if (is_malformed) return absl::InternalError("the server sent vectors of different sizes");
  RETURN_IF_ERROR(status);
  const auto num_missing =
      std::ranges::count_if(inputs, [](const auto& input) { return input.values.empty(); });
  if (num_missing != 0) {
    return absl::InternalError(StrCat("the server left out ", num_missing, " inputs"));
  }
  return inputs;
}

absl::StatusOr<CapturedAttention> RunCapture(Service* stub,
                                             const v1::CaptureAttentionRequest& request,
                                             Interrupt* interrupt,
                                             const std::function<void(int)>& on_rows) {
  CapturedAttention captured;
  grpc::ClientContext context;
  const Interrupt::Watch watch(interrupt, &context);
  context.AddMetadata(kPrefixHeader, PrefixKey(request));
  const auto reader = (*stub)->CaptureAttention(&context, request);
  v1::CaptureAttentionReply reply;
  while (reader->Read(&reply)) {
    if (reply.has_started()) {
      captured.started = reply.started();
    } else if (reply.has_prompt()) {
      const auto& tokens = reply.prompt().tokens();
      captured.prompt.insert(captured.prompt.end(), tokens.begin(), tokens.end());
    } else if (reply.has_weights()) {
      const auto& rows = reply.weights().rows();
      captured.rows.insert(captured.rows.end(), rows.begin(), rows.end());
      on_rows(rows.size());
    } else if (reply.has_statistics()) {
      const auto& heads = reply.statistics().heads();
      captured.statistics.insert(captured.statistics.end(), heads.begin(), heads.end());
    } else if (reply.has_finished()) {
      captured.finished = reply.finished();
    }
  }
  RETURN_IF_ERROR(ToStatus(reader->Finish()));
  for (const v1::RowWeights& row : captured.rows) {
    if (IsInPrompt(row, captured.prompt.size())) continue;
    return absl::InternalError(
        StrCat("the server sent keys of row ", row.row(), " that are outside the prompt"));
  }
  return captured;
}

}  // namespace lssar::cli
