#include "models/text/sentence_piece_normalizer.h"

#include "base/utf8.h"
#include "models/text/pre_tokenizer.h"
#include "models/text/text_normalizer.h"
#include "models/text/tokenizer.h"

namespace lssar {
namespace {

// The next part of a text, and what it becomes.
struct Part {
  size_t num_bytes = 0;
  std::string_view normalized;
};

Part NextPart(const SentencePieceFile& file, const AddedTokens& symbols, std::string_view text) {
  if (const size_t size = symbols.FindAtStart(text).num_bytes; size > 0) {
    return {.num_bytes = size, .normalized = text.substr(0, size)};
  }
  const CharacterMap::Rule rule = file.character_map.Match(text);
  if (rule.num_bytes > 0) return {.num_bytes = rule.num_bytes, .normalized = rule.replacement};
  // A rule that ends within a character leaves bytes that are no character.
  const Utf8Unit unit = NextUtf8(text);
  if (unit.kind != Utf8Kind::kCharacter)
    return {.num_bytes = 1, .normalized = kReplacementCharacter};
  return {.num_bytes = unit.num_bytes, .normalized = text.substr(0, unit.num_bytes)};
}

}  // namespace

absl::Status NormalizeForSentencePiece(const SentencePieceFile& file, const AddedTokens& symbols,
                                       std::string_view text, bool begins_text,
                                       absl::FunctionRef<bool()> should_stop, std::string* out) {
  out->clear();
  const size_t num_bytes = text.size();
  const auto stopped = [] { return absl::CancelledError("the encoding was stopped"); };
  size_t polled_at = 0;  // bytes of the text that are left
  const auto is_stopped = [&] {
    if (polled_at != 0 && text.size() + Tokenizer::kEncodePollBytes > polled_at) return false;
    polled_at = text.size();
    return should_stop();
  };
  while (file.remove_extra_whitespaces && begins_text && !text.empty()) {
    if (is_stopped()) return stopped();
    const Part part = NextPart(file, symbols, text);
    if (part.normalized != " ") break;
    text.remove_prefix(part.num_bytes);
  }
  if (text.empty()) return absl::OkStatus();

  const std::string_view space = file.escape_whitespaces ? kSpaceSymbol : " ";
  out->reserve(text.size() + text.size() / 2);
  const bool has_prefix = file.add_dummy_prefix && begins_text;
  if (has_prefix && !file.treat_whitespace_as_suffix) *out += space;
  bool follows_space = file.remove_extra_whitespaces && begins_text;
  while (!text.empty()) {
    if (is_stopped()) return stopped();
    Part part = NextPart(file, symbols, text);
    text.remove_prefix(part.num_bytes);
    while (follows_space && part.normalized.starts_with(' ')) part.normalized.remove_prefix(1);
    if (!part.normalized.empty()) {
      for (const char c : part.normalized) {
        if (c == ' ') {
          *out += space;
        } else {
          *out += c;
        }
      }
      follows_space = part.normalized.ends_with(' ');
      if (out->size() > MaxNormalizedBytes(num_bytes)) return TooLongWhenNormalized(num_bytes);
    }
    if (!file.remove_extra_whitespaces) follows_space = false;
  }
  while (file.remove_extra_whitespaces && out->ends_with(space)) {
    out->erase(out->size() - space.size());
  }
  if (has_prefix && file.treat_whitespace_as_suffix) *out += space;
  return absl::OkStatus();
}

}  // namespace lssar
