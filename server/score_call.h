// One Score call: its items as engine requests, a few at a time, their scores to one client.
#ifndef LSSAR_SERVER_SCORE_CALL_H_
#define LSSAR_SERVER_SCORE_CALL_H_

#include <grpcpp/alarm.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "runtime/engine.h"
#include "server/streaming_call.h"

namespace lssar {

class ScoreCall final : public StreamingCall {
 public:
  ScoreCall(grpc::CallbackServerContext& grpc_context, const ServiceParts& parts)
      : StreamingCall("Score", CallKind::kScore, grpc_context, parts) {}

 private:
  class ItemSink;

  // Items of one call that the engine has at once: a call of 1024 items must not fill its queue.
  static constexpr int kMaxItemsInFlight = 8;
  // Until the next try when others fill the engine's queue and no item of this call is in it.
  static constexpr auto kRetryPause = std::chrono::milliseconds(20);

  absl::Status Start(const grpc::ByteBuffer& bytes) override;

  // Hands over items as long as there is room; ends the call after the last.
  void SubmitMore();
  absl::Status SubmitNext();
  void RetryLater();
  void SendScore(int item, const ContinuationScore& score);
  void OnItemDone(int item, const absl::Status& status, const RequestStats& stats);

  void OnSpace() override;
  void OnClientGone() override;

  const Tokenizer* tokenizer_ = nullptr;
  bool per_token_ = false;
  std::vector<Request> items_;

  std::mutex items_mutex_;  // before the stream's own and the engine's
  size_t next_item_ = 0;
  std::map<int, Engine::Handle> in_flight_;
  absl::Status error_;  // the first one; no item is submitted after it
  bool has_ended_ = false;
  RequestStats total_;
  std::unique_ptr<grpc::Alarm> retry_;  // set: a try is pending
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SCORE_CALL_H_
