// The gRPC port's calls: lssar.v1 messages from and to bytes.
#ifndef LSSAR_SERVER_GRPC_GRPC_CALL_H_
#define LSSAR_SERVER_GRPC_GRPC_CALL_H_

#include <grpc/grpc.h>
#include <grpcpp/alarm.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "server/api/call.h"
#include "server/grpc/stream.h"

namespace lssar {

// A call that streams its replies through a MessageQueue, one write at a time.
//
// Slow clients: a client that is late by the queue's deadline loses the buffered replies. The work
// stops and the call ends with ABORTED; if the client does not read that either, the stream is
// reset. The server sees reading in units of HTTP/2's flow-control window, 64 KiB or more.
//
// Lifetime: the call owns itself until gRPC calls OnDone; producers hold a shared_ptr.
class GrpcStreamCall final : public StreamReactor, public Call {
 public:
  // `parts` outlives the call.
  GrpcStreamCall(std::string_view rpc, CallKind kind, std::unique_ptr<Method> method,
                 std::unique_ptr<GrpcStream> stream, const ServiceContext& parts);

  // Call once, on the thread of the ReplyWriter.
  void Start();

 private:
  absl::Status Decode() override;
  bool HasSpace() const override { return queue_.HasSpace(); }
  void Send(int prompt, std::unique_ptr<Message> reply) override;
  void SendEnd(const absl::Status& status) override;
  void RunLater(std::chrono::milliseconds delay, std::function<void()> work) override;

  void WriteReplies() override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  std::shared_ptr<GrpcStreamCall> Self() {
    return std::static_pointer_cast<GrpcStreamCall>(shared_from_this());
  }
  // Has the writer call Advance.
  void ScheduleAdvance();
  // Starts the next write, or finishes. The thread of the ReplyWriter.
  void Advance();
  // Has OnAlarm called at the queue's deadline. Requires mutex_
  void WatchClient();
  void OnAlarm();
  // Resets the stream: the write in progress never completes otherwise.
  void Reset();

  ReplyWriter& reply_writer_;
  grpc::ByteBuffer bytes_;  // of the request, until it is decoded

  std::mutex mutex_;    // locked after that of Call
  MessageQueue queue_;  // its sizes are those on the wire
  int64_t writing_bytes_ = 0;
  bool is_scheduled_ = false;  // Advance follows
  bool is_writing_ = false;
  bool is_finishing_ = false;
  bool is_resetting_ = false;
  std::unique_ptr<grpc::Alarm> alarm_;  // set: the client is being watched
  std::unique_ptr<grpc::Alarm> later_;  // of RunLater
  std::shared_ptr<GrpcStreamCall> self_;
};

// A call with one reply: Tokenize and Detokenize.
//
// Slow clients: gRPC keeps the reply until the client has read it. A client that takes longer than
// ReadTime (reply_queue.h) loses it, and the call is cancelled.
//
// Lifetime: the call owns itself until gRPC calls OnDone; the worker holds a shared_ptr.
class GrpcUnaryCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  // `grpc_context` and `reply` live until OnDone; `parts` outlives the call.
  GrpcUnaryCall(std::string_view rpc, std::unique_ptr<Method> method,
                grpc::CallbackServerContext& grpc_context, const ServiceContext& parts,
                const grpc::ByteBuffer& request, grpc::ByteBuffer* reply);

  // Call once, before gRPC gets the object.
  void Start();

 private:
  absl::Status Decode() override;
  bool HasSpace() const override { return true; }
  void Send(int prompt, std::unique_ptr<Message> reply) override;
  void SendEnd(const absl::Status& status) override;
  void RunLater(std::chrono::milliseconds delay, std::function<void()> work) override;

  void OnCancel() override;
  void OnDone() override { self_.reset(); }

  // Cancels the call when its reply has not been read in time.
  void WatchClient(int64_t num_bytes);

  const grpc::ByteBuffer bytes_;
  grpc::ByteBuffer* const reply_;
  grpc::ByteBuffer reply_bytes_;
  // The call itself, which gRPC's own object may end before the alarm does.
  const std::shared_ptr<grpc_call> rpc_;
  grpc::Alarm unread_;
  std::shared_ptr<GrpcUnaryCall> self_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_GRPC_CALL_H_
