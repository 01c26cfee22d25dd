#include "server/api/tokenize.h"

#include <string>

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
  reply.set_text(Decode(tokenizer, ids));
  for (const int32_t id : ids) reply.add_pieces(std::string(tokenizer.PieceBytes(id)));
  return reply;
}

}  // namespace lssar
