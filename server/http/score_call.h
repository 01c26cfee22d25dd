// POST /v1/score: log-probabilities of continuations after contexts.
#ifndef LSSAR_SERVER_HTTP_SCORE_CALL_H_
#define LSSAR_SERVER_HTTP_SCORE_CALL_H_

#include <memory>
#include <string>
#include <vector>

#include "server/http/engine_call.h"
#include "server/http/openai_reply.h"

namespace lssar {

class HttpScoreCall final : public EngineCall {
 public:
  HttpScoreCall(std::shared_ptr<HttpExchange> exchange, const ServiceParts& parts)
      : EngineCall("POST /v1/score", CallKind::kScore, std::move(exchange), parts) {}

 private:
  absl::StatusOr<std::vector<Item>> Parse() override;
  void OnScore(int item, ContinuationScore score) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;

  TokenFormat format_;
  bool per_token_ = false;
  int num_top_ = 0;
  std::vector<int> item_indices_;    // of the requests
  std::vector<std::string> scores_;  // of each item: the elements of its "continuations"
};

}  // namespace lssar

#endif  // LSSAR_SERVER_HTTP_SCORE_CALL_H_
