#include "server/grpc/embed_call.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "lssar/v1/inference.pb.h"
#include "server/api/parse_request.h"
#include "server/api/reply_fields.h"
#include "server/config/limits.h"
#include "server/grpc/adapter.h"
#include "server/served_model.h"

namespace lssar {

class EmbedCall::EmbedSink final : public ItemSink {
 public:
  using ItemSink::ItemSink;
  void OnEmbeddings(EmbeddingBlock block) override {
    static_cast<EmbedCall&>(Call()).SendVectors(Item(), block);
  }
};

absl::Status EmbedCall::Start(const grpc::ByteBuffer& bytes) {
  v1::EmbedRequest message;
  RETURN_IF_ERROR(ReadMessage(bytes, &message));
  ASSIGN_OR_RETURN(std::vector<Request> items, ParseEmbed(message, context_.MakeParseContext()));
  SubmitItems(std::move(items));
  return absl::OkStatus();
}

std::shared_ptr<OutputSink> EmbedCall::MakeSink(int item) {
  return std::make_shared<EmbedSink>(std::static_pointer_cast<EmbedCall>(shared_from_this()), item);
}

void EmbedCall::SendFinished(const RequestStats& total) {
  v1::EmbedReply reply;
  v1::EmbedFinished& finished = *reply.mutable_finished();
  finished.set_checkpoint_hash(context_.Model().GetCheckpoint().hash);
  *finished.mutable_usage() = ToUsage(total);
  *finished.mutable_timings() = ToTimings(total);
  *finished.mutable_receipt() = Receipt();
  Send(std::move(reply));
}

void EmbedCall::SendVectors(int input, const EmbeddingBlock& block) {
  const auto size = size_t(block.size);
  const size_t num_vectors = block.values.size() / size;
  const size_t vectors_per_message = std::max(size_t{1}, limits::kMaxFloatsPerMessage / size);
  for (size_t first = 0; first < num_vectors; first += vectors_per_message) {
    const size_t end = std::min(num_vectors, first + vectors_per_message);
    v1::EmbedReply reply;
    v1::EmbeddingVectors& vectors = *reply.mutable_vectors();
    vectors.set_input(input);
    vectors.set_first(block.first + int(first));
    vectors.set_size(block.size);
    vectors.mutable_values()->Add(block.values.begin() + std::ptrdiff_t(first * size),
                                  block.values.begin() + std::ptrdiff_t(end * size));
    Send(std::move(reply));
  }
}

}  // namespace lssar
