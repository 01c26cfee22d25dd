// Score: log-probabilities of continuations after contexts.
#ifndef LSSAR_SERVER_API_SCORE_H_
#define LSSAR_SERVER_API_SCORE_H_

#include <map>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/api/method.h"

namespace lssar {

class ScoreMethod final : public Method {
 public:
  v1::ScoreRequest request;

  Message* Request() override { return &request; }
  absl::StatusOr<std::vector<SubRequest>> Parse() override;
  void OnResult(int item, EngineResult result) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;

  // The errors of items that cannot be scored, once the request is parsed.
  const std::map<int, absl::Status>& Errors() const { return errors_; }

 private:
  void SendLogprobs(int item, const LogprobBlock& block);

  const Tokenizer* tokenizer_ = nullptr;
  std::vector<int> item_indices_;  // of the requests
  std::map<int, absl::Status> errors_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_SCORE_H_
