#include "server/api/parse_parts.h"

#include <utility>

#include "base/quote.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "runtime/limits.h"
#include "server/api/fields.h"

namespace lssar {
namespace {

absl::StatusOr<Pooling> ReadPooling(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
    case v1::POOLING_LAST: return Pooling::kLast;
    case v1::POOLING_MEAN: return Pooling::kMean;
    case v1::POOLING_TOKEN: return Pooling::kToken;
    default:
      return ValueError("pooling", int(pooling), "POOLING_LAST, POOLING_MEAN or POOLING_TOKEN");
  }
}

absl::StatusOr<std::vector<int32_t>> ReadHiddenLayers(const v1::EmbedRequest& message,
                                                      const ModelConfig& config) {
  if (message.layers().empty()) return std::vector<int32_t>{kFinalNorm};
  const int num_blocks = config.num_hidden_layers;
  std::vector<bool> is_chosen(size_t(num_blocks) + 2);
  for (int i = 0; i < message.layers_size(); ++i) {
    const int32_t layer = message.layers(i);
    const std::string field = StrCat("layers[", i, "]");
    if (layer < kFinalNorm || layer > num_blocks) {
      return ValueError(field, layer,
                        StrCat("in [-1, ", num_blocks, "]: -1 is the final norm, 0 the embedding, ",
                               num_blocks, " the stream behind the last block"));
    }
    if (message.apply_head() && layer != kFinalNorm) {
      return ValueError(field, layer, "-1 where apply_head is true: the head reads no other layer");
    }
    if (is_chosen[size_t(layer) + 1]) return ValueError(field, layer, "there once");
    is_chosen[size_t(layer) + 1] = true;
  }
  const int64_t num_floats = int64_t{message.layers_size()} * config.hidden_size;
  if (num_floats > limits::kMaxHiddenFloats) {
    return FieldError("layers",
                      StrCat("x hidden_size are ", message.layers_size(), " x ", config.hidden_size,
                             "; they must be at most ", limits::kMaxHiddenFloats));
  }
  return std::vector<int32_t>(message.layers().begin(), message.layers().end());
}

absl::StatusOr<std::vector<int32_t>> ReadInput(const std::string& field,
                                               const v1::TextOrTokens& input,
                                               const ParseContext& context) {
  const Checkpoint& checkpoint = *context.checkpoint;
  std::vector<int32_t> ids;
  if (input.has_text()) {
    ASSIGN_OR_RETURN(ids, EncodeField(field + ".text", input.text(), context, BosOf(checkpoint)));
  } else {
    ASSIGN_OR_RETURN(
        ids, CheckIds(field + ".tokens.ids", input.tokens().ids(), checkpoint.config.vocab_size));
  }
  const std::string must_be =
      StrCat("1 to max_model_len = ", context.max_model_len, " tokens long");
  if (ids.empty()) return ValueError(field, "0 tokens long", must_be);
  if (ids.size() > size_t(context.max_model_len)) {
    return ContextLengthError(field,
                              StrCat("is ", ids.size(), " tokens long; it must be ", must_be),
                              context.max_model_len);
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::vector<Request>> ParseEmbed(const v1::EmbedRequest& message,
                                                const ParseContext& context) {
  RETURN_IF_ERROR(CheckCount("inputs", size_t(message.inputs_size()), 1, limits::kMaxEmbedInputs));
  Request shared;
  RETURN_IF_ERROR(ReadScheduling(message, context, &shared));
  EmbedParams params{.apply_head = message.apply_head(), .normalize = message.normalize()};
  ASSIGN_OR_RETURN(params.pooling, ReadPooling(message.pooling()));
  ASSIGN_OR_RETURN(params.layers, ReadHiddenLayers(message, context.checkpoint->config));
  RETURN_IF_ERROR(
      CheckCount("positions", size_t(message.positions_size()), 0, size_t(context.max_model_len)));
  if (params.pooling == Pooling::kLast && !message.positions().empty()) {
    return FieldError("positions", "is set; it may be set with POOLING_MEAN or POOLING_TOKEN");
  }
  if (!message.dtype().empty() && message.dtype() != "fp32" && message.dtype() != "fp16") {
    return ValueError("dtype", Quote(message.dtype()), "\"fp32\" or \"fp16\"");
  }
  if (params.apply_head && context.checkpoint->model->NumHeadOutputs() == 0) {
    return UnmetField("apply_head", StrCat("is true, but checkpoint ", context.checkpoint->name,
                                           " has no regression head (head.weight)"));
  }
  std::vector<Request> requests;
  for (int i = 0; i < message.inputs_size(); ++i) {
    if (context.should_stop()) return absl::CancelledError("the call has ended");
    Request request = shared;
    const std::string field = StrCat("inputs[", i, "]");
    ASSIGN_OR_RETURN(request.prompt, ReadInput(field, message.inputs(i), context));
    ASSIGN_OR_RETURN(params.positions,
                     ReadPositions("positions", message.positions(), int(request.prompt.size()),
                                   StrCat("input ", i)));
    request.params = params;
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace lssar
