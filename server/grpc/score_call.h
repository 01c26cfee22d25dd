// A Score call: submits its items as engine requests and sends their scores.
#ifndef LSSAR_SERVER_GRPC_SCORE_CALL_H_
#define LSSAR_SERVER_GRPC_SCORE_CALL_H_

#include <memory>
#include <utility>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "models/text/tokenizer.h"
#include "server/grpc/multi_request_call.h"

namespace lssar {

class ScoreCall final : public MultiRequestCall {
 public:
  ScoreCall(std::unique_ptr<GrpcStream> stream, const ServiceParts& parts)
      : MultiRequestCall("Score", CallKind::kScore, std::move(stream), parts) {}

 private:
  class ScoreSink;

  absl::Status Start(const grpc::ByteBuffer& bytes) override;
  std::shared_ptr<OutputSink> MakeSink(int item) override;
  void SendFinished(const RequestStats& total) override;
  void SendScore(int item, const ContinuationScore& score);

  const Tokenizer* tokenizer_ = nullptr;
  bool per_token_ = false;
  std::vector<int> item_indices_;  // of the requests
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_SCORE_CALL_H_
