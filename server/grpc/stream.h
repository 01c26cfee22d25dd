// A server-streaming rpc by gRPC's completion queue API, and the base of the objects that serve
// one.
#ifndef LSSAR_SERVER_GRPC_STREAM_H_
#define LSSAR_SERVER_GRPC_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <utility>

#include "server/grpc/reply_writer.h"
#include "server/net/socket_cork.h"

namespace lssar {

// What gRPC needs of a call that it has been asked for. The tags live as long as the call.
struct GrpcStream {
  // `replies` outlives this.
  explicit GrpcStream(ReplyWriter* replies) : reply_writer(*replies) { reply_writer.AddCall(); }
  ~GrpcStream() { reply_writer.RemoveCall(); }
  GrpcStream(const GrpcStream&) = delete;
  GrpcStream& operator=(const GrpcStream&) = delete;

  ReplyWriter& reply_writer;
  grpc::ServerContext context;
  grpc::ByteBuffer request;
  grpc::ServerAsyncWriter<grpc::ByteBuffer> writer{&context};
  Completion arrived, written, finished, done;
  std::shared_ptr<SocketCork> socket;  // null: the call comes from this process
};

// As grpc::ServerWriteReactor, on the thread of a ReplyWriter: all methods run there.
class StreamReactor : public ReplyWriter::Stream {
 public:
  // `stream` has arrived.
  explicit StreamReactor(std::unique_ptr<GrpcStream> stream);

  SocketCork* Socket() const final { return stream_ == nullptr ? nullptr : stream_->socket.get(); }

 protected:
  // Requires  OnDone has not been called
  grpc::ServerContext& GetServerContext() { return stream_->context; }
  grpc::ByteBuffer TakeRequest() {
    grpc::ByteBuffer request;
    request.Swap(&stream_->request);
    return request;
  }

  // One write at a time; `bytes` is shared, not copied. OnWriteDone follows.
  void StartWrite(const grpc::ByteBuffer& bytes) {
    stream_->writer.Write(bytes, &stream_->written);
  }
  // Once, while no write is in progress. OnDone follows.
  void Finish(const grpc::Status& status) { stream_->writer.Finish(status, &stream_->finished); }

  virtual void OnWriteDone(bool ok) = 0;
  // The client cancelled or disconnected, or the deadline passed. Finish must still be called.
  virtual void OnCancel() = 0;
  // The last call; it may destroy this object.
  virtual void OnDone() = 0;

 private:
  // gRPC completes a call by two events, in any order: our Finish, and its end of the call. What
  // gRPC keeps for the call is released at once: others may hold this object for longer.
  void OnEnd() {
    if (--num_ends_left_ > 0) return;
    const std::unique_ptr<GrpcStream> ended = std::move(stream_);
    OnDone();
  }

  std::unique_ptr<GrpcStream> stream_;
  int num_ends_left_ = 2;
};

inline StreamReactor::StreamReactor(std::unique_ptr<GrpcStream> stream)
    : stream_(std::move(stream)) {
  stream_->written.run = [this](bool ok) { OnWriteDone(ok); };
  stream_->finished.run = [this](bool) { OnEnd(); };
  stream_->done.run = [this](bool) {
    if (stream_->context.IsCancelled()) OnCancel();
    OnEnd();
  };
}

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_STREAM_H_
