// Score: log-probabilities of continuations after contexts.
#ifndef LSSAR_SERVER_API_SCORE_H_
#define LSSAR_SERVER_API_SCORE_H_

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

 private:
  const Tokenizer* tokenizer_ = nullptr;
  std::vector<int> item_indices_;  // of the requests
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_SCORE_H_
