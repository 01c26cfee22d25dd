#include "server/api/embed.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/field_error.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "kernels/float_bits.h"
#include "server/api/parse_request.h"
#include "server/loaded_model.h"

namespace lssar {
namespace {

std::string Fp16Bytes(std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(values.size() * sizeof(uint16_t), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = F16FromFloat(values[i]);
    std::memcpy(&bytes[i * sizeof(bits)], &bits, sizeof(bits));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<SubRequest>> EmbedMethod::Parse() {
  ASSIGN_OR_RETURN(std::vector<lssar::Request> requests,
                   ParseEmbed(request, Context().MakeParseContext()));
  request.clear_inputs();  // frees the memory: the parsed inputs are what remains of them
  Context().AddLogFields({{"num_items", requests.size()}});
  return Items(std::move(requests));
}

absl::Status EmbedMethod::CheckResult(const EngineResult& result) const {
  if (request.dtype() != "fp16") return absl::OkStatus();
  for (const float value : std::get<EmbeddingBlock>(result).values) {
    if (std::isfinite(value) && !std::isfinite(FloatFromF16(F16FromFloat(value)))) {
      return FieldError("dtype",
                        StrCat("is fp16, which cannot hold the value ", value, "; ask for fp32"));
    }
  }
  return absl::OkStatus();
}

void EmbedMethod::OnResult(int input, EngineResult result) {
  const auto& block = std::get<EmbeddingBlock>(result);
  const auto size = size_t(block.size) * size_t(block.num_layers);  // of a token
  const size_t num_tokens = block.values.size() / size;
  const size_t tokens_per_message = std::max(size_t{1}, limits::kMaxFloatsPerMessage / size);
  for (size_t first = 0; first < num_tokens; first += tokens_per_message) {
    const size_t end = std::min(num_tokens, first + tokens_per_message);
    v1::EmbedReply reply;
    v1::EmbeddingVectors& vectors = *reply.mutable_vectors();
    vectors.set_input(input);
    vectors.set_first(block.first + int(first));
    vectors.set_size(block.size);
    if (!request.layers().empty()) vectors.set_num_layers(block.num_layers);
    const std::span values = std::span(block.values).subspan(first * size, (end - first) * size);
    if (request.dtype() == "fp16") {
      vectors.set_fp16_values(Fp16Bytes(values));
    } else {
      vectors.mutable_values()->Add(values.begin(), values.end());
    }
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
