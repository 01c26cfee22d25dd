// CaptureAttention: attention weights of a prompt.
#ifndef LSSAR_SERVER_API_CAPTURE_H_
#define LSSAR_SERVER_API_CAPTURE_H_

#include <cstdint>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/api/method.h"

namespace lssar {

class CaptureMethod final : public Method {
 public:
  v1::CaptureAttentionRequest request;

  Message* Request() override { return &request; }
  absl::StatusOr<std::vector<SubRequest>> Parse() override;
  void OnAdmitted(int item, const RequestStats& stats) override;
  void OnResult(int item, EngineResult result) override;
  void OnEnd(const absl::Status& status, const RequestStats& total) override;

 private:
  void SendPrompt();
  void SendRows(const std::vector<RowWeights>& rows);
  void SendStatistics(const std::vector<HeadStatistics>& heads);

  std::vector<int32_t> prompt_;  // up to the last captured row
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_CAPTURE_H_
