// A kind of call: what it asks of the engine, and the lssar.v1 replies that it makes of results.
// The ports turn their bytes into its request and its replies into bytes.
#ifndef LSSAR_SERVER_API_METHOD_H_
#define LSSAR_SERVER_API_METHOD_H_

#include <google/protobuf/message.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/call_context.h"
#include "server/api/receipt.h"
#include "server/api/reply_fields.h"
#include "server/api/reply_queue.h"
#include "server/api/sub_requests.h"
#include "server/config/limits.h"

namespace lssar {

using Message = google::protobuf::Message;
using MessageQueue = ReplyQueue<std::unique_ptr<Message>>;

// Threads  Parse: a worker's; then one call at a time
class Method {
 public:
  // Takes a reply. `prompt`: the index of its request in GenerateMethod::prompts; else 0.
  using SendReply = std::function<void(int prompt, std::unique_ptr<Message> reply)>;

  Method() = default;
  virtual ~Method() = default;
  Method(const Method&) = delete;
  Method& operator=(const Method&) = delete;

  // Both outlive this. Call before Parse.
  void Bind(CallContext* context, SendReply send) {
    context_ = context;
    send_ = std::move(send);
  }

  // The lssar.v1 request, which the port sets before Parse.
  virtual Message* Request() = 0;

  // Validates the request. The call has been admitted.
  // Errors  those of parse_request.h
  virtual absl::StatusOr<std::vector<SubRequest>> Parse() = 0;

  // The events of the items that Parse has returned, by index.
  virtual void OnAdmitted(int /*item*/, const RequestStats& /*stats*/) {}
  // Not OK: no reply can tell this result. OnResult is not called for it, nor for the item's later
  // ones, and the call ends with that error.
  virtual absl::Status CheckResult(const EngineResult& /*result*/) const {
    return absl::OkStatus();
  }
  virtual void OnResult(int /*item*/, EngineResult /*result*/) {}
  virtual void OnItemEnd(int /*item*/, const RequestStats& /*stats*/) {}
  // Sends the last replies. `total`: over all items.
  virtual void OnEnd(const absl::Status& status, const RequestStats& total) = 0;

  // The reason of the choice that finished last; nullopt: another kind than Generate.
  virtual std::optional<FinishReason> Finish() const { return std::nullopt; }

  // Merges `reply` into a reply that waits, and returns that one; null if none fits.
  virtual MessageQueue::Entry* Merge(std::deque<MessageQueue::Entry>& /*waiting*/,
                                     Message& /*reply*/) {
    return nullptr;
  }

 protected:
  CallContext& Context() const { return *context_; }

  template <typename Reply>
  void Send(Reply reply, int prompt = 0) {
    send_(prompt, std::make_unique<Reply>(std::move(reply)));
  }

  // Calls `send(first, end)` for consecutive blocks of [0, size), each of at most
  // limits::kMaxTokensPerMessage: large replies are streamed in several messages.
  template <typename SendBlock>
  static void ForEachBlock(size_t size, const SendBlock& send) {
    for (size_t first = 0; first < size; first += limits::kMaxTokensPerMessage) {
      send(first, std::min(size, first + limits::kMaxTokensPerMessage));
    }
  }

  // Parse has made `requests`: at least one.
  std::vector<SubRequest> Items(std::vector<lssar::Request> requests) {
    SetReceipt(requests.front());
    std::vector<SubRequest> items;
    items.reserve(requests.size());
    for (lssar::Request& request : requests) items.push_back({.request = std::move(request)});
    return items;
  }
  void SetReceipt(const lssar::Request& request) {
    receipt_ = MakeReceipt(context_->Model(), request);
  }

  // Sets the fields that the first reply to a prompt has.
  template <typename Started>
  void SetStarted(const RequestStats& stats, Started* started) const {
    started->set_request_id(context_->RequestId());
    started->set_checkpoint_hash(context_->Model().GetCheckpoint().hash);
    started->set_num_prompt_tokens(stats.num_prompt_tokens);
    started->set_num_cached_tokens(stats.num_cached_tokens);
    started->set_attention(receipt_.attention());
  }

  // Sets the fields that the last reply of every engine call has.
  template <typename Finished>
  void SetFinished(const RequestStats& total, Finished* finished) {
    *finished->mutable_usage() = ToUsage(total);
    *finished->mutable_timings() = ToTimings(total);
    *finished->mutable_receipt() = std::move(receipt_);
  }

 private:
  CallContext* context_ = nullptr;
  SendReply send_;
  v1::Receipt receipt_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_API_METHOD_H_
