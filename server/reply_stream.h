// A streaming call and the writing half of it: replies wait in order, one write is under way at a
// time.
#ifndef LSSAR_SERVER_REPLY_STREAM_H_
#define LSSAR_SERVER_REPLY_STREAM_H_

#include <google/protobuf/message.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/call_context.h"
#include "server/options.h"

namespace lssar {

// Whoever produces (the engine's thread) only appends and never waits for the client. What a slow
// client leaves unread is merged by Merge. When more than `buffer_bytes` wait HasSpace turns false,
// until half of that is read; a producer that heeds it adds no more than one engine step's worth. A
// client that reads nothing for `client_timeout`, while the producer waits for it or has ended,
// loses what waits: the work stops, the call ends with ABORTED, and if even that is not read the
// stream is reset. What it reads shows in portions of HTTP/2's window, 64 KiB or more.
//
// Lifetime: the stream keeps itself alive until gRPC's OnDone, producers hold a shared_ptr until
// their last Send, so neither ever calls a dead object. Everyone must End exactly once.
//
// Threads  Send, End, HasSpace: any
class ReplyStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                    public std::enable_shared_from_this<ReplyStream> {
 public:
  // `context` lives until OnDone, `parts` longer.
  ReplyStream(std::string_view rpc, CallKind kind, grpc::CallbackServerContext& context,
              const ServiceParts& parts)
      : record_(rpc, context, parts), kind_(kind), context_(context), options_(parts.stream) {}

  // Call once, before gRPC gets the object.
  void KeepAlive() { self_ = shared_from_this(); }

 protected:
  struct Waiting {
    std::unique_ptr<google::protobuf::Message> reply;
    int64_t num_bytes = 0;  // on the wire; of merged ones the sum
  };

  // Lets the call in; its message is read after that.
  // Errors  those of CallContext::Enter and Engine::CheckQueueCapacity
  absl::Status Enter();

  template <typename Reply>
  void Send(Reply reply) {
    Append(std::make_unique<Reply>(std::move(reply)));
  }

  // What was sent before still goes out, unless the client has gone.
  void End(absl::Status status);

  // Any more now would be too much.
  bool HasSpace() const { return has_space_.load(std::memory_order_relaxed); }

  // Puts `reply` into one that waits and returns that one; null: it needs a place of its own. Under
  // the stream's lock.
  virtual Waiting* Merge(std::deque<Waiting>& /*waiting*/, google::protobuf::Message& /*reply*/) {
    return nullptr;
  }
  // HasSpace is true again.
  virtual void OnSpace() = 0;
  // The client cancelled, vanished, reads nothing, or its deadline passed: stop the work, which
  // then Ends.
  virtual void OnClientGone() = 0;

  CallContext record_;

 private:
  using Time = std::chrono::system_clock::time_point;  // an alarm's

  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

  void Append(std::unique_ptr<google::protobuf::Message> reply);
  // Starts the next write, or finishes. Once Finish is called this may be gone.
  void Advance();
  void OnAlarm();
  // Resets the stream, whose write under way never ends by itself.
  void Reset();

  // These under the lock.
  void DropWaiting();
  void WatchClient();
  void SetAlarm(Time at);
  absl::Duration Patience() const;
  void Cut();

  const CallKind kind_;
  grpc::CallbackServerContext& context_;
  const StreamOptions options_;
  std::atomic<bool> has_space_ = true;  // written under the lock

  std::mutex mutex_;
  std::deque<Waiting> waiting_;
  int64_t buffered_bytes_ = 0;  // of what waits and of the write under way
  int64_t writing_bytes_ = 0;
  bool is_writing_ = false;
  bool is_finishing_ = false;
  bool is_resetting_ = false;
  bool has_client_gone_ = false;
  absl::Status cut_;  // not OK: the client reads nothing
  std::optional<absl::Status> ended_;
  Time written_at_ = {}, watched_from_ = {};
  std::unique_ptr<grpc::Alarm> alarm_;  // set: the client is watched
  grpc::ByteBuffer bytes_;              // of the write under way
  std::shared_ptr<ReplyStream> self_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_REPLY_STREAM_H_
