// An Embed call: submits its inputs as engine requests and sends their vectors.
#ifndef LSSAR_SERVER_GRPC_EMBED_CALL_H_
#define LSSAR_SERVER_GRPC_EMBED_CALL_H_

#include <memory>
#include <utility>

#include "server/grpc/multi_request_call.h"

namespace lssar {

class EmbedCall final : public MultiRequestCall {
 public:
  EmbedCall(std::unique_ptr<GrpcStream> stream, const ServiceParts& parts)
      : MultiRequestCall("Embed", CallKind::kEmbed, std::move(stream), parts) {}

 private:
  class EmbedSink;

  absl::Status Start(const grpc::ByteBuffer& bytes) override;
  std::shared_ptr<OutputSink> MakeSink(int item) override;
  void SendFinished(const RequestStats& total) override;
  void SendVectors(int input, const EmbeddingBlock& block);
};

}  // namespace lssar

#endif  // LSSAR_SERVER_GRPC_EMBED_CALL_H_
