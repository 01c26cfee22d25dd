#include "server/http/http_codec.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/status_macros.h"
#include "server/http/json_text.h"
#include "server/http/openai_request.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

// The engine has nothing to do.
class NoMethod final : public Method {
 public:
  Message* Request() override { return nullptr; }
  absl::StatusOr<std::vector<SubRequest>> Parse() override { return std::vector<SubRequest>(); }
  void OnEnd(const absl::Status& /*status*/, const RequestStats& /*total*/) override {}
};

class JsonCodec final : public HttpCodec {
 public:
  explicit JsonCodec(JsonAnswer answer) : answer_(std::move(answer)) {}

  absl::Status Decode(const HttpRequest& request) override {
    ASSIGN_OR_RETURN(body_, answer_(request, Context()));
    return absl::OkStatus();
  }
  absl::Status OnParsed(CallContext* context, const std::vector<SubRequest>& /*items*/) override {
    return context->HoldReply(std::ssize(body_));
  }
  void OnReply(int /*prompt*/, Message& /*reply*/) override {}
  void OnEnd(const absl::Status& /*status*/) override {
    Exchange().Reply({.status = 200, .body = std::move(body_)});
  }

 private:
  const JsonAnswer answer_;
  std::string body_;
};

}  // namespace

absl::StatusOr<nlohmann::json> HttpCodec::ParseBody(const HttpRequest& request) {
  ASSIGN_OR_RETURN(nlohmann::json body,
                   ParseJson(request.body, [this] { return !Context().CheckStop().ok(); }));
  ASSIGN_OR_RETURN(model_name_, ReadModelName(body, Context().Model()));
  return body;
}

std::unique_ptr<Method> MakeNoMethod() { return std::make_unique<NoMethod>(); }

HttpMethod MakeAnswer(JsonAnswer answer) {
  return {.method = MakeNoMethod(), .codec = std::make_unique<JsonCodec>(std::move(answer))};
}

}  // namespace lssar
