// An HTTP call that the engine has no part in: models, tokenize, detokenize, tokenizer_info.
#ifndef LSSAR_SERVER_HTTP_UNARY_CALL_H_
#define LSSAR_SERVER_HTTP_UNARY_CALL_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/http/http_exchange.h"

namespace lssar {

// A worker computes the reply. A call whose client leaves, or that is aborted before, ends at once;
// the worker then stops.
class HttpUnaryCall final : public HttpCall, public std::enable_shared_from_this<HttpUnaryCall> {
 public:
  // Returns the JSON of the reply.
  using Answer = std::function<absl::StatusOr<std::string>(const HttpRequest&, const CallContext&)>;

  HttpUnaryCall(std::string_view rpc, std::shared_ptr<HttpExchange> exchange,
                const ServiceParts& parts);

  // Admits the call, then has a worker run `answer`. Call once.
  void Start(Answer answer);

  void OnSpace() override {}
  void OnClientGone(const absl::Status& reason) override;
  void OnFinished(const absl::Status& /*status*/) override {}

 private:
  // The first call counts.
  void End(absl::StatusOr<std::string> body);

  CallContext context_;
  const std::shared_ptr<HttpExchange> exchange_;
  std::mutex mutex_;
  bool has_ended_ = false;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_UNARY_CALL_H_
