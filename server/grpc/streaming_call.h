// A gRPC call that streams replies: sends them in order, one write at a time, and bounds what a
// slow client leaves unread.
#ifndef LSSAR_SERVER_GRPC_STREAMING_CALL_H_
#define LSSAR_SERVER_GRPC_STREAMING_CALL_H_

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "server/api/call_context.h"
#include "server/api/receipt.h"
#include "server/api/reply_fields.h"
#include "server/api/reply_queue.h"
#include "server/config/limits.h"
#include "server/config/options.h"
#include "server/grpc/stream.h"
#include "server/served_model.h"

namespace lssar {

// Send appends to a ReplyQueue and never waits for the client. Buffered replies are merged where
// Merge can.
//
// Slow clients: a client that is late by ReplyQueue's deadline loses the buffered replies. The work
// stops and the call ends with ABORTED; if the client does not read that either, the stream is
// reset. The server sees reading in units of HTTP/2's flow-control window, 64 KiB or more.
//
// Lifetime: the call owns itself until gRPC calls OnDone; producers hold a shared_ptr until their
// last Send. Every call must End exactly once.
//
// Threads  Send, End, HasSpace: any
class StreamingCall : public StreamReactor, public std::enable_shared_from_this<StreamingCall> {
 public:
  // `parts` outlives the call.
  StreamingCall(std::string_view rpc, CallKind kind, std::unique_ptr<GrpcStream> stream,
                const ServiceParts& parts);

  // Admits the call, then has a worker parse and start it; ends it if one of these fails. Call
  // once, on the thread of the ReplyLoop.
  void Begin();

 protected:
  using Queue = ReplyQueue<std::unique_ptr<google::protobuf::Message>>;
  using BufferedReply = Queue::Entry;

  // Parses the request and hands it to the engine. The call has been admitted. Worker thread; the
  // client may have left since.
  virtual absl::Status Start(const grpc::ByteBuffer& bytes) = 0;

  template <typename Reply>
  void Send(Reply reply) {
    Append(std::make_unique<Reply>(std::move(reply)));
  }

  // Calls `send(first, end)` for consecutive blocks of [0, size), each of at most
  // limits::kMaxTokensPerMessage: large replies are streamed in several messages.
  template <typename SendBlock>
  static void ForEachBlock(size_t size, const SendBlock& send) {
    for (size_t first = 0; first < size; first += limits::kMaxTokensPerMessage) {
      send(first, std::min(size, first + limits::kMaxTokensPerMessage));
    }
  }

  // Ends the call after the replies sent before, unless the client has left.
  void End(absl::Status status);

  // False while the buffer is over its bound.
  bool HasSpace() const { return queue_.HasSpace(); }

  // Merges `reply` into a buffered reply and returns that one; null if none fits. Runs under the
  // call's lock.
  virtual BufferedReply* Merge(std::deque<BufferedReply>& /*buffer*/,
                               google::protobuf::Message& /*reply*/) {
    return nullptr;
  }
  // HasSpace has become true again.
  virtual void OnSpace() = 0;
  // The client cancelled, disconnected or stopped reading, its deadline passed, or the call was
  // aborted. Stops the work, which then calls End; calls it at once if there is no work yet.
  virtual void OnClientGone() = 0;

  CallContext context_;

 private:
  void WriteReplies() final;
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

  void Append(std::unique_ptr<google::protobuf::Message> reply);
  // Has the loop call Advance.
  void ScheduleAdvance();
  // Starts the next write, or finishes. The thread of the ReplyLoop.
  void Advance();
  void OnAlarm();
  // Resets the stream: the write in progress never completes otherwise.
  void Reset();

  // Has OnAlarm called at the queue's deadline. Requires mutex_
  void WatchClient();

  ReplyLoop& loop_;

  std::mutex mutex_;
  Queue queue_;  // its replies and sizes are those on the wire
  int64_t writing_bytes_ = 0;
  bool is_scheduled_ = false;  // Advance follows
  bool is_writing_ = false;
  bool is_finishing_ = false;
  bool is_resetting_ = false;
  std::unique_ptr<grpc::Alarm> alarm_;  // set: the client is being watched
  std::shared_ptr<StreamingCall> self_;
};

// A streaming call that is one engine request: Generate and CaptureAttention.
class SingleRequestCall : public StreamingCall, public OutputSink {
 public:
  using StreamingCall::StreamingCall;

  // Engine thread.
  bool IsWritable() const final { return HasSpace(); }

 protected:
  // Reads and validates the request. Id and deadline are set afterwards.
  virtual absl::StatusOr<Request> Parse(const grpc::ByteBuffer& bytes) = 0;

  // Sets the fields that the first message of every call has.
  template <typename Started>
  void SetStarted(const RequestStats& stats, Started* started) const {
    started->set_request_id(context_.RequestId());
    started->set_checkpoint_hash(context_.Model().GetCheckpoint().hash);
    started->set_num_prompt_tokens(stats.num_prompt_tokens);
    started->set_num_cached_tokens(stats.num_cached_tokens);
    started->set_attention(receipt_.attention());
  }

  // Ends the call; on success sends usage, timings and receipt first.
  template <typename Reply>
  void EndWith(const absl::Status& status, const RequestStats& stats) {
    if (status.ok()) {
      Reply reply;
      *reply.mutable_finished()->mutable_usage() = ToUsage(stats);
      *reply.mutable_finished()->mutable_timings() = ToTimings(stats);
      *reply.mutable_finished()->mutable_receipt() = std::move(receipt_);
      Send(std::move(reply));
    }
    End(status);
  }

 private:
  absl::Status Start(const grpc::ByteBuffer& bytes) final;
  void OnSpace() final;
  void OnClientGone() final;

  v1::Receipt receipt_;  // set before the request is submitted
  std::mutex handle_mutex_;
  std::optional<Engine::Handle> handle_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_STREAMING_CALL_H_
