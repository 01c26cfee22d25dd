// One Generate call: the engine's deltas on their way to one client.
#ifndef LSSAR_SERVER_GENERATE_STREAM_H_
#define LSSAR_SERVER_GENERATE_STREAM_H_

#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "runtime/engine.h"
#include "server/call_record.h"
#include "server/reply_stream.h"

namespace lssar {

class GenerateStream final : public ReplyStream, public TokenSink {
 public:
  GenerateStream(grpc::CallbackServerContext& context, const ServiceParts& parts)
      : ReplyStream(context, parts.stream), record_("Generate", context, parts) {}

  // Validates and submits, or ends with the reason. Call once, before gRPC gets the object.
  void Begin(const grpc::ByteBuffer& bytes);

  // Engine thread.
  bool HasRoom() const override { return HasSpace(); }
  void OnAdmitted(const RequestStats& stats) override;
  void OnPromptLogprobs(PromptDelta delta) override;
  void OnTokens(GenerateDelta delta) override;
  void OnScore(ContinuationScore score) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

 private:
  // What one choice's next delta holds so far.
  struct Held {
    v1::Delta delta;
    int num_steps = 0;
  };

  absl::Status Submit(const grpc::ByteBuffer& bytes);
  void MeasureTokens(const GenerateDelta& delta);
  void SendHeld(Held& held);
  Waiting* Merge(std::deque<Waiting>& waiting, google::protobuf::Message& reply) override;
  void OnSpace() override;
  void OnClientGone() override;
  void OnEnding() override { record_.LeaveKey(); }
  void OnFinished(const absl::Status& status) override;

  CallRecord record_;
  const Tokenizer* tokenizer_ = nullptr;
  int stream_interval_ = 1;
  bool wants_logprobs_ = false;
  uint64_t seed_ = 0;
  std::vector<Held> held_;  // [n]
  // When each choice last had a token; the epoch: never.
  std::vector<Clock::time_point> last_token_at_;  // [n]
  bool has_token_ = false;
  std::optional<FinishReason> finish_;  // of the choice that ended last

  std::mutex handle_mutex_;
  std::optional<Engine::Handle> handle_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GENERATE_STREAM_H_
