// Tokenize and Detokenize: calls that the engine has no part in.
#ifndef LSSAR_SERVER_API_TOKENIZE_H_
#define LSSAR_SERVER_API_TOKENIZE_H_

#include <utility>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/api/method.h"
#include "server/api/parse_request.h"

namespace lssar {

// A call whose reply is ready once its request is parsed.
template <typename RequestMessage, typename Reply>
class ImmediateMethod : public Method {
 public:
  using Answer = absl::StatusOr<Reply> (*)(const RequestMessage&, const ParseContext&);
  explicit ImmediateMethod(Answer answer) : answer_(answer) {}

  Message* Request() final { return &request_; }
  absl::StatusOr<std::vector<SubRequest>> Parse() final {
    auto reply = answer_(request_, Context().MakeParseContext());
    if (!reply.ok()) return reply.status();
    reply_ = *std::move(reply);
    return std::vector<SubRequest>();
  }
  void OnEnd(const absl::Status& status, const RequestStats& /*total*/) final {
    if (status.ok()) Send(std::move(reply_));
  }

 private:
  const Answer answer_;
  RequestMessage request_;
  Reply reply_;
};

absl::StatusOr<v1::TokenizeReply> TokenizeText(const v1::TokenizeRequest& request,
                                               const ParseContext& context);
absl::StatusOr<v1::DetokenizeReply> DetokenizeIds(const v1::DetokenizeRequest& request,
                                                  const ParseContext& context);

}  // namespace lssar

#endif  // LSSAR_SERVER_API_TOKENIZE_H_
