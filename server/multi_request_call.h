// A streaming call that submits several engine requests, a few at a time: Score and Embed.
#ifndef LSSAR_SERVER_MULTI_REQUEST_CALL_H_
#define LSSAR_SERVER_MULTI_REQUEST_CALL_H_

#include <grpcpp/alarm.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/engine.h"
#include "server/streaming_call.h"

namespace lssar {

class MultiRequestCall : public StreamingCall {
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
      call_->OnItemDone(item_, status, stats);
    }

   protected:
    MultiRequestCall& Call() const { return *call_; }
    int Item() const { return item_; }

   private:
    const std::shared_ptr<MultiRequestCall> call_;
    const int item_;
  };

  virtual std::shared_ptr<OutputSink> MakeSink(int item) = 0;
  // Sends the last message. `total`: summed over the items.
  virtual void SendFinished(const RequestStats& total) = 0;

  // Submits the first items. Call once, from Start.
  void SubmitItems(std::vector<Request> items);

 private:
  // A call of 1024 items must not fill the engine's queue.
  static constexpr int kMaxItemsInFlight = 8;
  // Delay before the next attempt if the engine's queue is full of other requests.
  static constexpr auto kRetryInterval = std::chrono::milliseconds(20);

  // Submits items while there is capacity; ends the call after the last one.
  void SubmitMore();
  absl::Status SubmitNext();
  void RetryLater();
  void OnItemDone(int item, const absl::Status& status, const RequestStats& stats);

  void OnSpace() final;
  void OnClientGone() final;

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

#endif  // LSSAR_SERVER_MULTI_REQUEST_CALL_H_
