// One Score call: its items as engine requests, a few at a time, their scores to one client.
#ifndef LSSAR_SERVER_SCORE_STREAM_H_
#define LSSAR_SERVER_SCORE_STREAM_H_

#include <grpcpp/alarm.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "lssar/v1/inference.pb.h"
#include "runtime/engine.h"
#include "server/call_record.h"
#include "server/reply_stream.h"

namespace lssar {

class ScoreStream final : public ReplyStream<v1::ScoreReply> {
 public:
  ScoreStream(grpc::CallbackServerContext& context, const CallObservers& observers)
      : record_("Score", context, observers) {}

  // Validates all items and submits the first ones, or ends with the reason. Call once, before gRPC
  // gets the object.
  void Begin(CallGate& gate, const grpc::ByteBuffer& bytes);

 private:
  class ItemSink;

  // Items of one call that the engine has at once: a call of 1024 items must not fill its queue.
  static constexpr int kMaxItemsInFlight = 8;
  // Replies that wait for a slow client before no further item is submitted.
  static constexpr size_t kMaxWaiting = 256;
  // Until the next try when others fill the engine's queue and no item of this call is in it.
  static constexpr auto kRetryPause = std::chrono::milliseconds(20);

  absl::Status Submit(CallGate& gate, const grpc::ByteBuffer& bytes);

  // Hands over items as long as there is room; ends the call after the last.
  void SubmitMore();
  absl::Status SubmitNext();
  void RetryLater();
  void SendScore(int item, const ContinuationScore& score);
  void OnItemDone(int item, const absl::Status& status, const RequestStats& stats);

  void OnWritten() override { SubmitMore(); }
  void OnClientGone() override;
  void OnFinished(const absl::Status& status) override;

  CallRecord record_;
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

#endif  // LSSAR_SERVER_SCORE_STREAM_H_
