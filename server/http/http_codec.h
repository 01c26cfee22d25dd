// How one path of the HTTP port speaks: JSON of the request to lssar.v1, and lssar.v1 replies to
// JSON or to events.
#ifndef LSSAR_SERVER_HTTP_HTTP_CODEC_H_
#define LSSAR_SERVER_HTTP_HTTP_CODEC_H_

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/api/method.h"
#include "server/http/field_names.h"
#include "server/http/http_error.h"
#include "server/http/http_exchange.h"

namespace lssar {

// Threads  Decode and OnParsed: a worker's; then one call at a time
class HttpCodec {
 public:
  HttpCodec() = default;
  virtual ~HttpCodec() = default;
  HttpCodec(const HttpCodec&) = delete;
  HttpCodec& operator=(const HttpCodec&) = delete;

  // Both outlive this. Call first.
  void Bind(CallContext* context, HttpExchange* exchange) {
    context_ = context;
    exchange_ = exchange;
  }
  // Before OnParsed, for calls of the engine: the receipt as JSON.
  void SetReceipt(std::string receipt) { receipt_ = std::move(receipt); }

  // Sets the method's request. Errors  as of openai_request.h
  virtual absl::Status Decode(const HttpRequest& request) = 0;
  // For errors of the method's Parse.
  virtual FieldNames Names() const { return {}; }
  // Takes memory for the reply. Errors  INVALID_ARGUMENT: it would be too large; those of HoldReply
  virtual absl::Status OnParsed(CallContext* /*context*/,
                                const std::vector<SubRequest>& /*items*/) {
    return absl::OkStatus();
  }
  // From OnParsed on: the answer is a stream of events.
  virtual bool IsStream() const { return false; }
  virtual void OnReply(int prompt, Message& reply) = 0;
  // The answer has begun and OnEnd was called, but there is more to send: SendMore is called on a
  // worker when there is space again.
  virtual bool HasMore() const { return false; }
  virtual void SendMore() {}
  // Asked where OnEnd will be called without an error. The call then counts for its key until the
  // codec calls ReleaseKey: the answer is so large that its client may read it for hours.
  virtual bool HoldsKey() const { return false; }
  // Sends the rest, and ends the answer. Not called for an error before the answer has begun.
  virtual void OnEnd(const absl::Status& status) = 0;
  // The model as the body of ParseBody calls it, or the first of its names; empty before that.
  const std::string& ModelName() const { return model_name_; }
  // The answer to a call that has failed before its answer has begun.
  HttpReply Error(const absl::Status& status) const {
    return InShapeOf(exchange_->Request().Path(), ErrorReply(status));
  }

 protected:
  const CallContext& Context() const { return *context_; }
  HttpExchange& Exchange() const { return *exchange_; }
  void ReleaseKey() { context_->ReleaseKey(); }
  void ReleaseModel() { context_->ReleaseModel(); }
  const std::string& Receipt() const { return receipt_; }
  // The request's body, which asks for a served model. Errors  those of ParseJson and ReadModelName
  absl::StatusOr<nlohmann::json> ParseBody(const HttpRequest& request);

 private:
  CallContext* context_ = nullptr;
  HttpExchange* exchange_ = nullptr;
  std::string receipt_;
  std::string model_name_;
};

// A kind of call, and how a path speaks about it.
struct HttpMethod {
  std::unique_ptr<Method> method;
  std::unique_ptr<HttpCodec> codec;
};

// `CodecMethod` with a codec that knows it.
template <typename Codec, typename CodecMethod, typename... Arguments>
HttpMethod MakeHttpMethod(Arguments... arguments) {
  auto method = std::make_unique<CodecMethod>();
  auto codec = std::make_unique<Codec>(arguments..., method.get());
  return {.method = std::move(method), .codec = std::move(codec)};
}

HttpMethod MakeCompletion();      // POST /v1/completions
HttpMethod MakeChatCompletion();  // POST /v1/chat/completions
// POST /lm_eval/v1/completions: openai_request.h, AddBosForLmEval.
HttpMethod MakeLmEvalCompletion();
HttpMethod MakeResponse();  // POST /v1/responses
HttpMethod MakeMessage();   // POST /v1/messages

// POST of a path whose reply is a list.
struct ListPath {
  std::string_view path;
  std::string_view rpc;  // the call's name in the log line
  CallKind kind;
  HttpMethod (*make)();
};
// Scores, embeddings, attention.
std::span<const ListPath> ListPaths();

// For calls that the engine has no part in: a method without requests and replies.
std::unique_ptr<Method> MakeNoMethod();

// The same with the JSON of the reply, which a worker makes.
using JsonAnswer =
    std::function<absl::StatusOr<std::string>(const HttpRequest&, const CallContext&)>;
HttpMethod MakeAnswer(JsonAnswer answer);

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_HTTP_CODEC_H_
