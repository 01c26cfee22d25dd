// A streaming call that is one engine request: what Generate and CaptureAttention have in common.
#ifndef LSSAR_SERVER_REQUEST_STREAM_H_
#define LSSAR_SERVER_REQUEST_STREAM_H_

#include <mutex>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "server/reply_fields.h"
#include "server/reply_stream.h"
#include "server/served_model.h"

namespace lssar {

class RequestStream : public ReplyStream, public OutputSink {
 public:
  using ReplyStream::ReplyStream;

  // Validates and submits, or ends with the reason. Call once, before gRPC gets the object.
  void Begin(const grpc::ByteBuffer& bytes);

  // Engine thread.
  bool IsWritable() const final { return HasSpace(); }

 protected:
  // Reads and validates the call's message. Id and deadline are set later.
  virtual absl::StatusOr<Request> Parse(const grpc::ByteBuffer& bytes) = 0;

  // The first message's fields that every call has.
  template <typename Started>
  void SetStarted(const RequestStats& stats, Started& started) const {
    started.set_request_id(record_.Id());
    started.set_checkpoint_hash(record_.Model().GetCheckpoint().hash);
    started.set_num_prompt_tokens(stats.num_prompt_tokens);
    started.set_num_cached_tokens(stats.num_cached_tokens);
  }

  // Ends the call, with the last message where all went well.
  template <typename Reply>
  void EndWith(const absl::Status& status, const RequestStats& stats) {
    if (status.ok()) {
      Reply reply;
      *reply.mutable_finished()->mutable_usage() = ToUsage(stats);
      *reply.mutable_finished()->mutable_timings() = ToTimings(stats);
      Send(std::move(reply));
    }
    End(status);
  }

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes);
  void OnSpace() final;
  void OnClientGone() final;

  std::mutex handle_mutex_;
  std::optional<Engine::Handle> handle_;
};

}  // namespace lssar

#endif  // LSSAR_SERVER_REQUEST_STREAM_H_
