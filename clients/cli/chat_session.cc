#include "clients/cli/chat_session.h"

#include <algorithm>
#include <utility>

#include "clients/cli/connection.h"
#include "kernels/str_cat.h"

namespace lssar::cli {
namespace {

// What a template may put around a message.
constexpr int kTemplateTokens = 8;

void AddMessage(const std::string& role, const std::string& content, v1::Chat* chat) {
  v1::ChatMessage* message = chat->add_messages();
  message->set_role(role);
  message->set_content(content);
}

}  // namespace

ChatSession::ChatSession(v1::Inference::StubInterface* stub, const SamplingFlags& sampling,
                         int max_model_len)
    : stub_(stub), sampling_(sampling), max_model_len_(max_model_len) {}

absl::StatusOr<int> ChatSession::EstimateRoom(const std::string& text) const {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_bos(false);
  v1::TokenizeReply reply;
  absl::Status status = ToStatus(stub_->Tokenize(&context, request, &reply));
  if (!status.ok()) return status;
  return max_model_len_ - num_context_tokens_ - reply.ids_size() - kTemplateTokens;
}

absl::StatusOr<v1::GenerateRequest> ChatSession::MakeRequest(const std::string& text) const {
  const absl::StatusOr<int> room = EstimateRoom(text);
  if (!room.ok()) return room.status();
  if (*room < 1) {
    return absl::ResourceExhaustedError(
        StrCat("the context is full: the chat takes ", num_context_tokens_, " of ", max_model_len_,
               " tokens, and this message needs ", 1 - *room, " more"));
  }
  v1::GenerateRequest request;
  absl::Status status = FillRequest(sampling_, &request);
  if (!status.ok()) return status;
  if (request.has_max_tokens()) request.set_max_tokens(std::min(request.max_tokens(), *room));
  if (request.has_min_tokens()) request.set_min_tokens(std::min(request.min_tokens(), *room));
  if (!system_.empty()) AddMessage("system", system_, request.mutable_chat());
  request.mutable_chat()->mutable_messages()->MergeFrom(chat_.messages());
  AddMessage("user", text, request.mutable_chat());
  return request;
}

absl::Status ChatSession::Say(const std::string& text, Interrupt* interrupt,
                              const OnDelta& on_delta, GenerateResult* result) {
  const absl::StatusOr<v1::GenerateRequest> request = MakeRequest(text);
  if (!request.ok()) return request.status();
  absl::Status status = RunGenerate(stub_, *request, interrupt, on_delta, result);
  const std::string& answer = result->choices[0].text;
  num_generated_tokens_ += result->NumTokens();
  // An answer that was cut is an answer; a question without one would stand twice in a row.
  if (status.ok() || !answer.empty()) {
    AddMessage("user", text, &chat_);
    AddMessage("assistant", answer, &chat_);
    num_context_tokens_ = result->started.num_prompt_tokens() + result->NumTokens();
    ++num_answers_;
  }
  return interrupt->Fired() ? absl::OkStatus() : status;
}

void ChatSession::Reset() {
  chat_.Clear();
  num_context_tokens_ = 0;
}

}  // namespace lssar::cli
