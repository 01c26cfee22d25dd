#include "server/api/tokenize.h"

#include <string>
#include <string_view>

#include "base/status_macros.h"

namespace lssar {

absl::StatusOr<v1::TokenizeReply> TokenizeText(const v1::TokenizeRequest& request,
                                               const ParseContext& context) {
  ASSIGN_OR_RETURN(const auto ids, ParseTokenize(request, context));
  const Tokenizer& tokenizer = *context.checkpoint->tokenizer;
  v1::TokenizeReply reply;
  for (const int32_t id : ids) {
    reply.add_ids(id);
    reply.add_pieces(std::string(tokenizer.PieceBytes(id)));
  }
  return reply;
}

absl::StatusOr<v1::DetokenizeReply> DetokenizeIds(const v1::DetokenizeRequest& request,
                                                  const ParseContext& context) {
  ASSIGN_OR_RETURN(const auto ids, ParseDetokenize(request, context));
  const Tokenizer& tokenizer = *context.checkpoint->tokenizer;
  v1::DetokenizeReply reply;
  const bool skips = !request.has_skip_special_tokens() || request.skip_special_tokens();
  reply.set_text(Decode(tokenizer, ids, skips));
  for (const int32_t id : ids) {
    std::string_view piece = tokenizer.PieceBytes(id);
    if (piece.empty() && !skips) piece = tokenizer.SpecialTokenName(id);
    reply.add_pieces(std::string(piece));
  }
  return reply;
}

}  // namespace lssar
