// A CaptureAttention call: sends attention weights to the client.
#ifndef LSSAR_SERVER_GRPC_CAPTURE_CALL_H_
#define LSSAR_SERVER_GRPC_CAPTURE_CALL_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/grpc/streaming_call.h"

namespace lssar {

class CaptureCall final : public SingleRequestCall {
 public:
  CaptureCall(std::unique_ptr<GrpcStream> stream, const ServiceParts& parts)
      : SingleRequestCall("CaptureAttention", CallKind::kCapture, std::move(stream), parts) {}

  // Engine thread.
  void OnAdmitted(const RequestStats& stats) override;
  void OnWeights(std::vector<RowWeights> rows) override;
  void OnStatistics(std::vector<HeadStatistics> heads) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

 private:
  absl::StatusOr<Request> Parse(const grpc::ByteBuffer& bytes) override;
  void SendPrompt();

  std::vector<int32_t> prompt_;  // up to the last captured row
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_CAPTURE_CALL_H_
