// A streaming call that submits several engine requests, a few at a time: Score and Embed.
#ifndef LSSAR_SERVER_GRPC_MULTI_REQUEST_CALL_H_
#define LSSAR_SERVER_GRPC_MULTI_REQUEST_CALL_H_

#include <grpcpp/alarm.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "server/api/engine_items.h"
#include "server/grpc/streaming_call.h"

namespace lssar {

class MultiRequestCall : public StreamingCall, public EngineItems::Owner {
 public:
  using StreamingCall::StreamingCall;

 protected:
  // Forwards the results of one item to the call. A subclass adds the results of its kind.
  // Threads  the engine's
  class ItemSink : public OutputSink {
   public:
    ItemSink(std::shared_ptr<MultiRequestCall> call, int item)
        : call_(std::move(call)), item_(item) {}

    bool IsWritable() const final { return call_->HasSpace(); }
    void OnAdmitted(const RequestStats& stats) final {
      call_->context_.GetMetrics().OnAdmitted(stats);
    }
    void OnDone(const absl::Status& status, const RequestStats& stats) final {
      call_->items_.OnDone(item_, status, stats);
    }

   protected:
    MultiRequestCall& Call() const { return *call_; }
    int Item() const { return item_; }

   private:
    const std::shared_ptr<MultiRequestCall> call_;
    const int item_;
  };

  // Sends the last message. `total`: summed over the items.
  virtual void SendFinished(const RequestStats& total) = 0;

  // Submits the first items. Call once, from Start.
  // Requires  at least one request
  void SubmitItems(std::vector<Request> requests);

  // Set by SubmitItems.
  const v1::Receipt& Receipt() const { return receipt_; }

 private:
  bool HasSpaceForItems() const final { return HasSpace(); }
  void RetryLater(std::chrono::milliseconds delay) final;
  void OnItemsEnd(const absl::Status& status, const RequestStats& total) final;

  void OnSpace() final { items_.Resume(); }
  void OnClientGone() final { items_.Stop(absl::CancelledError("the client closed the call")); }

  v1::Receipt receipt_;
  EngineItems items_{&context_, this};
  std::mutex retry_mutex_;
  std::unique_ptr<grpc::Alarm> retry_;  // of the last attempt
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_MULTI_REQUEST_CALL_H_
