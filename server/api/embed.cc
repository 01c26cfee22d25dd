#include "server/api/embed.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "server/api/parse_request.h"
#include "server/loaded_model.h"

namespace lssar {

absl::StatusOr<std::vector<SubRequest>> EmbedMethod::Parse() {
  ASSIGN_OR_RETURN(std::vector<lssar::Request> requests,
                   ParseEmbed(request, Context().MakeParseContext()));
  request.clear_inputs();  // frees the memory: the parsed inputs are what remains of them
  Context().AddLogFields({{"num_items", requests.size()}});
  return Items(std::move(requests));
}

void EmbedMethod::OnResult(int input, EngineResult result) {
  const auto& block = std::get<EmbeddingBlock>(result);
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

void EmbedMethod::OnEnd(const absl::Status& status, const RequestStats& total) {
  if (!status.ok()) return;
  v1::EmbedReply reply;
  reply.mutable_finished()->set_checkpoint_hash(Context().Model().GetCheckpoint().hash);
  SetFinished(total, reply.mutable_finished());
  Send(std::move(reply));
}

}  // namespace lssar
