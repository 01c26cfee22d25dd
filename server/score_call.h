// A Score call: submits its items as engine requests, a few at a time, and sends their scores.
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

  // A call of 1024 items must not fill the engine's queue.
  static constexpr int kMaxItemsInFlight = 8;
  // Delay before the next attempt if the engine's queue is full of other requests.
  static constexpr auto kRetryInterval = std::chrono::milliseconds(20);

  absl::Status Start(const grpc::ByteBuffer& bytes) override;

  // Submits items while there is capacity; ends the call after the last one.
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

  std::mutex items_mutex_;  // locked before the base class's and the engine's mutexes
  size_t next_item_ = 0;
  std::map<int, Engine::Handle> in_flight_;
  absl::Status error_;  // the first error; no item is submitted after it
  bool has_ended_ = false;
  RequestStats total_;
  std::unique_ptr<grpc::Alarm> retry_;  // set: an attempt is scheduled
};

}  // namespace lssar

#endif  // LSSAR_SERVER_SCORE_CALL_H_
