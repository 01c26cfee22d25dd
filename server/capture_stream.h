// One CaptureAttention call: attention weights on their way to one client.
#ifndef LSSAR_SERVER_CAPTURE_STREAM_H_
#define LSSAR_SERVER_CAPTURE_STREAM_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "runtime/engine.h"
#include "server/call_record.h"
#include "server/reply_stream.h"

namespace lssar {

class CaptureStream final : public ReplyStream, public TokenSink {
 public:
  CaptureStream(grpc::CallbackServerContext& context, const ServiceParts& parts)
      : ReplyStream(context, parts.stream), record_("CaptureAttention", context, parts) {}

  // Validates and submits, or ends with the reason. Call once, before gRPC gets the object.
  void Begin(const grpc::ByteBuffer& bytes);

  // Engine thread.
  bool HasRoom() const override { return HasSpace(); }
  void OnAdmitted(const RequestStats& stats) override;
  void OnPromptLogprobs(PromptDelta delta) override;
  void OnTokens(GenerateDelta delta) override;
  void OnScore(ContinuationScore score) override;
  void OnWeights(std::vector<RowWeights> rows) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes);
  void SendPrompt();
  void OnSpace() override;
  void OnClientGone() override;
  void OnEnding() override { record_.LeaveKey(); }
  void OnFinished(const absl::Status& status) override {
    record_.EndRequest(CallKind::kCapture, status);
  }

  CallRecord record_;
  std::vector<int32_t> prompt_;  // up to the last row

  std::mutex handle_mutex_;
  std::optional<Engine::Handle> handle_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_CAPTURE_STREAM_H_
