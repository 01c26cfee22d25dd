// A server-streaming rpc by gRPC's completion queue API, and the base of the objects that serve
// one.
#ifndef LSSAR_SERVER_GRPC_STREAM_H_
#define LSSAR_SERVER_GRPC_STREAM_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/async_stream.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "server/auth/access_control.h"
#include "server/grpc/adapter.h"
#include "server/grpc/reply_writer.h"
#include "server/net/socket_cork.h"

namespace lssar {

// What gRPC needs of a call that it has been asked for. The tags live as long as the call.
//
// To gRPC the call is a stream in both directions: it then hands over a call when the call's
// metadata are there, and reads the request when it is asked to.
struct GrpcStream {
  // `reply_writer` outlives this.
  explicit GrpcStream(ReplyWriter* reply_writer) : loop(*reply_writer) { loop.AddCall(); }
  ~GrpcStream() { loop.RemoveCall(); }
  GrpcStream(const GrpcStream&) = delete;
  GrpcStream& operator=(const GrpcStream&) = delete;

  ReplyWriter& loop;
  grpc::ServerContext context;
  grpc::ByteBuffer request;
  grpc::ServerAsyncReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer> messages{&context};
  Completion arrived, read, written, finished, done;
  bool is_done = false;                // gRPC has ended the call
  std::optional<Caller> caller;        // whose key the call has
  std::shared_ptr<SocketCork> socket;  // null: the call comes from this process
};

// Ends a call that has no StreamReactor. gRPC completes it by two events, in any order: our Finish,
// and its end of the call.
inline void EndCall(std::unique_ptr<GrpcStream> stream, const grpc::Status& status) {
  GrpcStream* const ended = stream.release();  // deleted by the last event
  const auto num_left = std::make_shared<int>(ended->is_done ? 1 : 2);
  ended->finished.run = [ended, num_left](bool) {
    if (--*num_left == 0) delete ended;
  };
  if (!ended->is_done) ended->done.run = ended->finished.run;
  ended->messages.Finish(status, &ended->finished);
}

// Reads the request of a call that has arrived, then calls `on_request`. A call that is cancelled
// before its request is there ends without it.
inline void ReadRequest(std::unique_ptr<GrpcStream> stream,
                        std::function<void(std::unique_ptr<GrpcStream>)> on_request) {
  GrpcStream* const reading = stream.release();  // owned by the completion
  reading->done.run = [reading](bool) { reading->is_done = true; };
  reading->read.run = [reading, on_request = std::move(on_request)](bool ok) {
    std::unique_ptr<GrpcStream> arrived(reading);
    if (ok && !reading->is_done) {
      on_request(std::move(arrived));
    } else {
      EndCall(std::move(arrived), ToGrpcStatus(NoRequest()));
    }
  };
  reading->messages.Read(&reading->request, &reading->read);
}

// As grpc::ServerWriteReactor, on the thread of a ReplyWriter: all methods run there.
class StreamReactor : public ReplyWriter::Stream {
 public:
  // `stream` has arrived.
  explicit StreamReactor(std::unique_ptr<GrpcStream> stream);

  SocketCork* Socket() const final { return stream_ == nullptr ? nullptr : stream_->socket.get(); }

 protected:
  // Requires  OnDone has not been called
  grpc::ServerContext& GetServerContext() { return stream_->context; }
  // The call's metadata.
  CallMetadata Metadata(std::string_view rpc, CallKind kind) const {
    CallMetadata metadata = ReadMetadata(rpc, kind, stream_->context);
    metadata.caller = stream_->caller;
    return metadata;
  }
  grpc::ByteBuffer TakeRequest() {
    grpc::ByteBuffer request;
    request.Swap(&stream_->request);
    return request;
  }

  // One write at a time; `bytes` is shared, not copied. OnWriteDone follows.
  void StartWrite(const grpc::ByteBuffer& bytes) {
    stream_->messages.Write(bytes, &stream_->written);
  }
  // Once, while no write is in progress. OnDone follows.
  void Finish(const grpc::Status& status) { stream_->messages.Finish(status, &stream_->finished); }

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
