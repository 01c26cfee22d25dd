// The writing half of a streaming call: replies wait in order, one write is under way at a time.
#ifndef LSSAR_SERVER_REPLY_STREAM_H_
#define LSSAR_SERVER_REPLY_STREAM_H_

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "server/grpc_status.h"
#include "server/wire.h"

namespace lssar {

// Whoever produces (the engine's thread) only appends and never waits for the client; what waits is
// bounded by the request itself, and may be merged by Merge while a write is under way.
//
// Lifetime: the stream keeps itself alive until gRPC's OnDone, producers hold a shared_ptr until
// their last Send, so neither ever calls a dead object. Everyone must End exactly once.
//
// Threads  Send, End, NumWaiting: any
template <typename Reply>
class ReplyStream : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                    public std::enable_shared_from_this<ReplyStream<Reply>> {
 public:
  // Call once, before gRPC gets the object.
  void KeepAlive() { self_ = this->shared_from_this(); }

 protected:
  void Send(Reply reply) {
    {
      const std::lock_guard lock(mutex_);
      if (has_client_gone_ || ended_) return;
      if (!Merge(waiting_, reply)) waiting_.push_back(std::move(reply));
    }
    Advance();
  }

  // What was sent before still goes out, unless the client has gone.
  void End(absl::Status status) {
    {
      const std::lock_guard lock(mutex_);
      if (ended_) return;
      ended_ = std::move(status);
    }
    Advance();
  }

  size_t NumWaiting() const {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

  // Puts `reply` into one that waits; false: it needs a place of its own. Under the stream's lock.
  virtual bool Merge(std::deque<Reply>& /*waiting*/, Reply& /*reply*/) { return false; }
  // A write is done; the next one, if any waits, is under way.
  virtual void OnWritten() {}
  // The client cancelled, vanished, or its deadline passed: stop the work, which then Ends.
  virtual void OnClientGone() = 0;
  // Nothing of this call will happen any more. `status`: what End was given.
  virtual void OnFinished(const absl::Status& status) = 0;

 private:
  void OnWriteDone(bool ok) final {
    {
      const std::lock_guard lock(mutex_);
      is_writing_ = false;
    }
    if (!ok) {
      OnCancel();
      return;
    }
    Advance();
    OnWritten();
  }

  void OnCancel() final {
    {
      const std::lock_guard lock(mutex_);
      has_client_gone_ = true;
      waiting_.clear();
    }
    OnClientGone();
    Advance();
  }

  void OnDone() final {
    absl::Status status;
    {
      // Orders this after all that producers did, by our own lock rather than gRPC's insides.
      const std::lock_guard lock(mutex_);
      status = *ended_;
    }
    OnFinished(status);
    self_.reset();  // perhaps the last owner: nothing may follow
  }

  // Starts the next write, or finishes. Once Finish is called this may be gone.
  void Advance() {
    std::optional<Reply> reply;
    {
      const std::lock_guard lock(mutex_);
      if (is_writing_ || is_finishing_) return;
      if (!waiting_.empty()) {
        reply = std::move(waiting_.front());
        waiting_.pop_front();
        is_writing_ = true;
      } else if (ended_) {
        is_finishing_ = true;
      } else {
        return;
      }
    }
    if (!reply) {
      Finish(ToGrpcStatus(*ended_));
      return;
    }
    bytes_ = WriteMessage(*reply);
    StartWrite(&bytes_);
  }

  mutable std::mutex mutex_;
  std::deque<Reply> waiting_;
  bool is_writing_ = false;
  bool is_finishing_ = false;
  bool has_client_gone_ = false;
  std::optional<absl::Status> ended_;
  grpc::ByteBuffer bytes_;  // of the write under way
  std::shared_ptr<ReplyStream> self_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_REPLY_STREAM_H_
