// Each rpc's bytes to an engine request, as gRPC hands them over.
// Input   the rpc (one byte), the message in Protobuf's wire format
#include <vector>

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/parsed_request.h"

namespace lssar {
namespace {

template <typename Message>
bool Read(std::span<const uint8_t> bytes, Message* message) {
  return message->ParseFromArray(bytes.data(), int(bytes.size()));
}

void CheckError(const absl::Status& status) {
  LSSAR_CHECK(absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status));
  LSSAR_CHECK(!status.message().empty());
}

}  // namespace

LSSAR_FUZZ_TARGET(rpc_request) {
  if (bytes.empty()) return;
  const ParseContext& context = FuzzContext();
  const auto message_bytes = bytes.subspan(1);
  switch (bytes[0] % 6) {
    case 0: {
      v1::GenerateRequest message;
      if (!Read(message_bytes, &message)) return;
      auto parsed = ParseGenerate(message, context);
      if (!parsed.ok()) return CheckError(parsed.status());
      LSSAR_CHECK(parsed->stream_interval >= 1);
      return CheckRequest(std::move(parsed->request));
    }
    case 1: {
      v1::ScoreRequest message;
      if (!Read(message_bytes, &message)) return;
      auto parsed = ParseScore(message, context);
      if (!parsed.ok()) return CheckError(parsed.status());
      LSSAR_CHECK(parsed->items.size() == parsed->item_indices.size());
      for (size_t i = 0; i < parsed->items.size(); ++i) {
        LSSAR_CHECK(parsed->item_indices[i] >= 0 && parsed->item_indices[i] < message.items_size());
        CheckRequest(std::move(parsed->items[i]));
      }
      return;
    }
    case 2: {
      v1::EmbedRequest message;
      if (!Read(message_bytes, &message)) return;
      message.set_apply_head(false);  // asks the model, which is not loaded
      auto parsed = ParseEmbed(message, context);
      if (!parsed.ok()) return CheckError(parsed.status());
      LSSAR_CHECK(std::ssize(*parsed) == message.inputs_size());
      for (Request& request : *parsed) CheckRequest(std::move(request));
      return;
    }
    case 3: {
      v1::CaptureAttentionRequest message;
      if (!Read(message_bytes, &message)) return;
      auto parsed = ParseCapture(message, context);
      if (!parsed.ok()) return CheckError(parsed.status());
      return CheckRequest(*std::move(parsed));
    }
    case 4: {
      v1::TokenizeRequest message;
      if (!Read(message_bytes, &message)) return;
      const auto ids = ParseTokenize(message, context);
      if (!ids.ok()) return CheckError(ids.status());
      for (const int32_t id : *ids) {
        LSSAR_CHECK(id >= 0 && id < context.checkpoint->config.vocab_size);
      }
      return;
    }
    default: {
      v1::DetokenizeRequest message;
      if (!Read(message_bytes, &message)) return;
      const auto ids = ParseDetokenize(message, context);
      if (!ids.ok()) return CheckError(ids.status());
      LSSAR_CHECK(std::ssize(*ids) == message.ids_size());
    }
  }
}

}  // namespace lssar
