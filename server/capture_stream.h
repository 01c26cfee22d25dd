// One CaptureAttention call: attention weights on their way to one client.
#ifndef LSSAR_SERVER_CAPTURE_STREAM_H_
#define LSSAR_SERVER_CAPTURE_STREAM_H_

#include <cstdint>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/request_stream.h"

namespace lssar {

class CaptureStream final : public RequestStream {
 public:
  CaptureStream(grpc::CallbackServerContext& context, const ServiceParts& parts)
      : RequestStream("CaptureAttention", CallKind::kCapture, context, parts) {}

  // Engine thread.
  void OnAdmitted(const RequestStats& stats) override;
  void OnWeights(std::vector<RowWeights> rows) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

 private:
  absl::StatusOr<Request> Parse(const grpc::ByteBuffer& bytes) override;
  void SendPrompt();

  std::vector<int32_t> prompt_;  // up to the last row
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CAPTURE_STREAM_H_
