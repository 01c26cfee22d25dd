// A Generate call: sends the engine's deltas to the client.
#ifndef LSSAR_SERVER_GRPC_GENERATE_CALL_H_
#define LSSAR_SERVER_GRPC_GENERATE_CALL_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "server/grpc/streaming_call.h"

namespace lssar {

class GenerateCall final : public SingleRequestCall {
 public:
  GenerateCall(std::unique_ptr<GrpcStream> stream, const ServiceParts& parts)
      : SingleRequestCall("Generate", CallKind::kGenerate, std::move(stream), parts) {}

  // Engine thread.
  void OnAdmitted(const RequestStats& stats) override;
  void OnPromptLogprobs(PromptDelta delta) override;
  void OnTokens(GenerateDelta delta) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

 private:
  // The next delta of one choice, over up to stream_interval engine steps.
  struct PendingDelta {
    v1::Delta delta;
    int num_steps = 0;
  };

  absl::StatusOr<Request> Parse(const grpc::ByteBuffer& bytes) override;
  void ObserveLatency(const GenerateDelta& delta);
  void SendPending(PendingDelta* pending);
  BufferedReply* Merge(std::deque<BufferedReply>& buffer,
                       google::protobuf::Message& reply) override;

  const Tokenizer* tokenizer_ = nullptr;
  int stream_interval_ = 1;
  bool wants_logprobs_ = false;
  uint64_t seed_ = 0;
  std::vector<PendingDelta> pending_;  // [n]
  // Time of each choice's last token; the epoch if it has none yet.
  std::vector<Clock::time_point> last_token_at_;  // [n]
  bool has_token_ = false;
  std::optional<FinishReason> finish_;  // of the choice that finished last
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_GENERATE_CALL_H_
