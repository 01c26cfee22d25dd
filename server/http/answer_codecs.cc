// POST /v1/responses and POST /v1/messages: one answer to one chat, as OpenAI's Responses API and
// Anthropic's Messages API write it.
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "server/api/generate.h"
#include "server/http/answer_request.h"
#include "server/http/http_codec.h"
#include "server/http/json_text.h"
#include "server/http/openai_reply.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

// What both have in common: one prompt, one choice.
class AnswerCodec : public HttpCodec {
 public:
  explicit AnswerCodec(GenerateMethod* method) : method_(*method) {}

  absl::Status Decode(const HttpRequest& request) final {
    {
      ASSIGN_OR_RETURN(const nlohmann::json body, ParseBody(request));
      ASSIGN_OR_RETURN(request_, Read(body));
    }
    KeepSchemaOrder(request.body, request_.completion.constraint, &request_.completion.prompts);
    RETURN_IF_ERROR(
        AskForCall(request.body, request_.completion.tools, &request_.completion.prompts.front()));
    answer_ = TextOrCall(request_.completion.tools);
    method_.prompts = std::exchange(request_.completion.prompts, {});
    method_.default_max_tokens = request_.completion.max_tokens;
    return absl::OkStatus();
  }

  absl::Status OnParsed(CallContext* context, const std::vector<SubRequest>& items) final {
    const GenerateParams& params = *items.front().request.Generate();
    sampling_ = params.sampling;
    logprobs_ = ChatLogprobs(TokenFormat{.checkpoint = &context->Model().GetCheckpoint()});
    const int64_t num_logprobs =
        HasLogprobs() ? int64_t{params.max_tokens} * (1 + params.num_logprobs) : 0;
    RETURN_IF_ERROR(CheckReplyLogprobs("top_logprobs", num_logprobs, "ask for fewer tokens"));
    // A stream repeats the whole answer in its last four events, which wait together.
    return context->HoldReply((IsStream() ? 5 : 1) * num_logprobs * ChatLogprobs::kBytesPerLogprob);
  }

  bool IsStream() const final { return request_.completion.stream; }

  void OnReply(int /*prompt*/, Message& message) final {
    const auto& reply = static_cast<const v1::GenerateReply&>(message);
    if (reply.has_started()) {
      usage_.set_num_prompt_tokens(reply.started().num_prompt_tokens());
      usage_.set_num_cached_tokens(reply.started().num_cached_tokens());
      if (!IsStream()) return;
      Exchange().BeginStream();
      SendBegin();
      BeginItem();
    } else if (reply.has_delta()) {
      AddDelta(reply.delta());
    } else if (reply.has_finished()) {
      usage_ = reply.finished().usage();
      timings_ = TimingsJson(reply.finished());
    }
  }

  void OnEnd(const absl::Status& status) final {
    if (!Exchange().HasStarted()) {
      Exchange().Reply({.status = 200, .body = Whole()});
      return;
    }
    if (status.ok()) {
      SendFinish();
    } else {
      SendFailure(status);
    }
    Exchange().EndStream();
  }

 protected:
  virtual absl::StatusOr<AnswerRequest> Read(const nlohmann::json& body) const = 0;
  // The body of an answer that is not streamed.
  virtual std::string Whole() const = 0;
  // The events of a stream. The item is the text or the call, whose name is known.
  virtual void SendBegin() = 0;
  virtual void SendItemBegin() = 0;
  // `logprobs`: of the delta's tokens, a JSON list; empty: not asked for.
  virtual void SendText(std::string_view text, const std::string& logprobs) = 0;
  virtual void SendArguments(std::string_view arguments) = 0;
  virtual void SendFinish() = 0;
  virtual void SendFailure(const absl::Status& status) = 0;

  void SendEvent(std::string_view type, const std::string& json) {
    Exchange().Send(StrCat("event: ", type, "\ndata: ", json, "\n\n"));
  }

  const AnswerRequest& Request() const { return request_; }
  const SamplingParams& Sampling() const { return sampling_; }
  bool HasLogprobs() const { return request_.completion.num_logprobs >= 0; }
  const TextOrCall& Answer() const { return answer_; }
  // So far: the text or the call's arguments.
  const std::string& Text() const { return text_; }
  bool HasItem() const { return has_item_; }
  // A JSON list.
  std::string Logprobs() const { return StrCat("[", all_logprobs_, "]"); }
  v1::FinishReason Finish() const { return finish_; }
  const std::string& StopString() const { return stop_string_; }
  const v1::Usage& Usage() const { return usage_; }
  const std::string& Timings() const { return timings_; }

 private:
  void BeginItem() {
    if (has_item_ || !(answer_.IsText() || answer_.IsCall())) return;
    has_item_ = true;
    SendItemBegin();
  }

  void AddDelta(const v1::Delta& delta) {
    answer_.Add(delta);
    const std::string text = answer_.IsCall() ? answer_.TakeArguments() : answer_.TakeText();
    text_ += text;
    finish_ = delta.finish_reason();
    stop_string_ = delta.stop_string();
    std::string logprobs;
    if (HasLogprobs()) {
      for (const v1::Token& token : delta.tokens()) {
        logprobs_.Add(token, request_.completion.num_logprobs);
      }
    }
    if (HasLogprobs() && answer_.IsText()) {
      logprobs_.TakeList(&logprobs);
      if (!all_logprobs_.empty() && logprobs.size() > 2) all_logprobs_ += ',';
      all_logprobs_.append(logprobs, 1, logprobs.size() - 2);
    }
    if (!IsStream()) return;
    BeginItem();
    if (answer_.IsCall()) {
      if (!text.empty()) SendArguments(text);
    } else if (answer_.IsText() && !(text.empty() && delta.tokens().empty())) {
      SendText(text, logprobs);
    }
  }

  GenerateMethod& method_;
  AnswerRequest request_;  // without its prompt, which the method has
  SamplingParams sampling_;
  TextOrCall answer_;  // without what is in text_
  std::string text_;
  bool has_item_ = false;  // the stream has told what the answer is
  ChatLogprobs logprobs_{TokenFormat()};
  std::string all_logprobs_;
  v1::FinishReason finish_ = v1::FINISH_REASON_UNSPECIFIED;
  std::string stop_string_;
  v1::Usage usage_;
  std::string timings_ = "null";
};

std::string NumberJson(float number) {
  std::string json;
  AppendJsonNumber(number, &json);
  return json;
}

class ResponseCodec final : public AnswerCodec {
 public:
  using AnswerCodec::AnswerCodec;
  FieldNames Names() const override { return GenerateNames(Request().completion, "input"); }

 private:
  absl::StatusOr<AnswerRequest> Read(const nlohmann::json& body) const override {
    return ReadResponse(body);
  }

  // A text that its format allows nothing more of has not become one that fits.
  bool IsCut() const {
    return Finish() == v1::FINISH_REASON_LENGTH || Finish() == v1::FINISH_REASON_DEAD_END;
  }
  std::string_view CutReason() const {
    return Finish() == v1::FINISH_REASON_DEAD_END ? "dead_end" : "max_output_tokens";
  }
  bool IsCall() const { return Answer().IsCall(); }
  std::string ItemId() const { return StrCat(IsCall() ? "fc_" : "msg_", Context().RequestId()); }

  // The text as a part of the message.
  std::string PartJson() const {
    return StrCat("{\"type\":\"output_text\",\"text\":", JsonString(Text()),
                  ",\"annotations\":[],\"logprobs\":", Logprobs(), "}");
  }
  std::string CallJson(std::string_view status, std::string_view arguments) const {
    return StrCat("{\"type\":\"function_call\",\"id\":\"", ItemId(), "\",\"call_id\":\"call_",
                  Context().RequestId(), "\",\"name\":\"", Answer().Name(),
                  "\",\"arguments\":", JsonString(arguments), ",\"status\":\"", status, "\"}");
  }
  std::string MessageJson(std::string_view status, const std::string& parts) const {
    return StrCat("{\"type\":\"message\",\"id\":\"", ItemId(), "\",\"status\":\"", status,
                  "\",\"role\":\"assistant\",\"content\":[", parts, "]}");
  }
  // The item with all that has come.
  std::string ItemJson(std::string_view status) const {
    return IsCall() ? CallJson(status, Text()) : MessageJson(status, PartJson());
  }
  std::string FinishedItemJson() const {
    const bool is_whole = IsCall() ? Answer().IsWholeCall() : !IsCut();
    return ItemJson(is_whole ? "completed" : "incomplete");
  }
  std::string ResponseUsageJson() const {
    const v1::Usage& usage = Usage();
    return StrCat("{\"input_tokens\":", usage.num_prompt_tokens(),
                  ",\"input_tokens_details\":{\"cached_tokens\":", usage.num_cached_tokens(),
                  ",\"cache_write_tokens\":0},\"output_tokens\":", usage.num_generated_tokens(),
                  ",\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":",
                  usage.num_prompt_tokens() + usage.num_generated_tokens(), "}");
  }

  // `error`: JSON. `output`: the items. `end`: further fields, each after a comma.
  std::string ResponseJson(std::string_view status, const std::string& error,
                           const std::string& output, const std::string& end) const {
    return StrCat(
        "{\"id\":\"resp_", Context().RequestId(),
        "\",\"object\":\"response\",\"created_at\":", created_, ",\"status\":\"", status,
        "\",\"background\":false,\"error\":", error, ",\"incomplete_details\":",
        status == "incomplete" ? StrCat("{\"reason\":\"", CutReason(), "\"}") : "null",
        ",\"instructions\":", Request().instructions,
        ",\"max_output_tokens\":", Request().max_output_tokens,
        ",\"max_tool_calls\":null,\"metadata\":", Request().metadata,
        ",\"model\":", JsonString(ModelName()), ",\"output\":[", output,
        "],\"parallel_tool_calls\":false,\"previous_response_id\":null,\"reasoning\":{\"effort\":"
        "null,\"summary\":null},\"service_tier\":\"default\",\"store\":false,\"temperature\":",
        NumberJson(Sampling().temperature), ",\"text\":{\"format\":", Request().text_format,
        "},\"tool_choice\":", Request().tool_choice, ",\"tools\":", Request().tools,
        ",\"top_logprobs\":", std::max(0, Request().completion.num_logprobs),
        ",\"top_p\":", NumberJson(Sampling().top_p), ",\"truncation\":\"disabled\"", end, "}");
  }
  std::string UnfinishedJson() const {
    return ResponseJson("in_progress", "null", "", ",\"usage\":null");
  }

  std::string Whole() const override {
    return ResponseJson(IsCut() ? "incomplete" : "completed", "null", FinishedItemJson(),
                        StrCat(",\"usage\":", ResponseUsageJson(), ",\"timings\":", Timings(),
                               ",\"receipt\":", Receipt()));
  }

  // `fields`: each after a comma.
  void SendTyped(const std::string& type, const std::string& fields) {
    SendEvent(type, StrCat("{\"type\":\"", type, "\",\"sequence_number\":", sequence_number_++,
                           fields, "}"));
  }
  std::string ItemPlace() const {
    return StrCat(",\"item_id\":\"", ItemId(), "\",\"output_index\":0");
  }
  std::string Place() const { return ItemPlace() + ",\"content_index\":0"; }

  void SendBegin() override {
    SendTyped("response.created", ",\"response\":" + UnfinishedJson());
    SendTyped("response.in_progress", ",\"response\":" + UnfinishedJson());
  }
  void SendItemBegin() override {
    SendTyped("response.output_item.added",
              ",\"output_index\":0,\"item\":" +
                  (IsCall() ? CallJson("in_progress", "") : MessageJson("in_progress", "")));
    if (IsCall()) return;
    SendTyped("response.content_part.added",
              Place() +
                  ",\"part\":{\"type\":\"output_text\",\"text\":\"\",\"annotations\":[],"
                  "\"logprobs\":[]}");
  }
  void SendText(std::string_view text, const std::string& logprobs) override {
    SendTyped("response.output_text.delta",
              StrCat(Place(), ",\"delta\":", JsonString(text),
                     ",\"logprobs\":", logprobs.empty() ? "[]" : logprobs));
  }
  void SendArguments(std::string_view arguments) override {
    SendTyped("response.function_call_arguments.delta",
              StrCat(ItemPlace(), ",\"delta\":", JsonString(arguments)));
  }
  void SendFinish() override {
    if (IsCall()) {
      SendTyped("response.function_call_arguments.done",
                StrCat(ItemPlace(), ",\"name\":\"", Answer().Name(),
                       "\",\"arguments\":", JsonString(Text())));
    } else {
      SendTyped("response.output_text.done",
                StrCat(Place(), ",\"text\":", JsonString(Text()), ",\"logprobs\":", Logprobs()));
      SendTyped("response.content_part.done", StrCat(Place(), ",\"part\":", PartJson()));
    }
    SendTyped("response.output_item.done", ",\"output_index\":0,\"item\":" + FinishedItemJson());
    SendTyped(IsCut() ? "response.incomplete" : "response.completed", ",\"response\":" + Whole());
  }
  void SendFailure(const absl::Status& status) override {
    const std::string message(status.message().data(), status.message().size());
    SendTyped("response.failed",
              ",\"response\":" +
                  ResponseJson(
                      "failed",
                      StrCat("{\"code\":\"server_error\",\"message\":", JsonString(message), "}"),
                      HasItem() ? ItemJson("incomplete") : "", ",\"usage\":null"));
  }

  const int64_t created_ = std::time(nullptr);
  int sequence_number_ = 0;
};

class MessageCodec final : public AnswerCodec {
 public:
  using AnswerCodec::AnswerCodec;
  FieldNames Names() const override { return MessageNames(Request().completion); }

 private:
  absl::StatusOr<AnswerRequest> Read(const nlohmann::json& body) const override {
    return ReadMessage(body);
  }

  // Whether a stop sequence of the request has ended the answer, not one of the chat template.
  bool IsStopSequence() const {
    return Finish() == v1::FINISH_REASON_STOP_STRING &&
           std::ranges::count(Request().stop_sequences, StopString()) > 0;
  }
  // `"stop_reason":...,"stop_sequence":...`
  std::string StopJson() const {
    if (Finish() == v1::FINISH_REASON_UNSPECIFIED) {
      return "\"stop_reason\":null,\"stop_sequence\":null";
    }
    if (IsStopSequence()) {
      return StrCat("\"stop_reason\":\"stop_sequence\",\"stop_sequence\":",
                    JsonString(StopString()));
    }
    return StrCat("\"stop_reason\":\"",
                  Answer().IsWholeCall()                 ? "tool_use"
                  : Finish() == v1::FINISH_REASON_LENGTH ? "max_tokens"
                                                         : "end_turn",
                  "\",\"stop_sequence\":null");
  }
  // Cached tokens are no part of input_tokens.
  std::string MessageUsageJson() const {
    const v1::Usage& usage = Usage();
    return StrCat("{\"input_tokens\":", usage.num_prompt_tokens() - usage.num_cached_tokens(),
                  ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":",
                  usage.num_cached_tokens(), ",\"output_tokens\":", usage.num_generated_tokens(),
                  "}");
  }
  std::string MessageJson(const std::string& content, const std::string& end) const {
    return StrCat(
        "{\"id\":\"msg_", Context().RequestId(),
        "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", JsonString(ModelName()),
        ",\"content\":[", content, "],", StopJson(), ",\"usage\":", MessageUsageJson(), end, "}");
  }
  std::string Extensions() const {
    return StrCat(",\"timings\":", Timings(), ",\"receipt\":", Receipt());
  }

  std::string CallJson(std::string_view input) const {
    return StrCat("{\"type\":\"tool_use\",\"id\":\"toolu_", Context().RequestId(), "\",\"name\":\"",
                  Answer().Name(), "\",\"input\":", input, "}");
  }
  std::string TextJson(std::string_view text) const {
    return StrCat("{\"type\":\"text\",\"text\":", JsonString(text), ",\"citations\":null}");
  }
  // The input of a call that was cut is no JSON: it is told as a text.
  std::string Whole() const override {
    return MessageJson(Answer().IsWholeCall() ? CallJson(Text()) : TextJson(Text()), Extensions());
  }

  // `fields`: each after a comma.
  void SendTyped(const std::string& type, const std::string& fields) {
    SendEvent(type, StrCat("{\"type\":\"", type, "\"", fields, "}"));
  }

  void SendBegin() override { SendTyped("message_start", ",\"message\":" + MessageJson("", "")); }
  void SendItemBegin() override {
    SendTyped("content_block_start", StrCat(",\"index\":0,\"content_block\":",
                                            Answer().IsCall() ? CallJson("{}") : TextJson("")));
    SendTyped("ping", "");
  }
  void SendText(std::string_view text, const std::string& /*logprobs*/) override {
    if (text.empty()) return;
    SendTyped(
        "content_block_delta",
        StrCat(",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":", JsonString(text), "}"));
  }
  void SendArguments(std::string_view arguments) override {
    SendTyped("content_block_delta",
              StrCat(",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":",
                     JsonString(arguments), "}"));
  }
  void SendFinish() override {
    SendTyped("content_block_stop", ",\"index\":0");
    SendTyped("message_delta",
              StrCat(",\"delta\":{", StopJson(), "},\"usage\":", MessageUsageJson(), Extensions()));
    SendTyped("message_stop", "");
  }
  void SendFailure(const absl::Status& status) override { SendEvent("error", Error(status).body); }
};

}  // namespace

HttpMethod MakeResponse() { return MakeHttpMethod<ResponseCodec, GenerateMethod>(); }
HttpMethod MakeMessage() { return MakeHttpMethod<MessageCodec, GenerateMethod>(); }

}  // namespace lssar
