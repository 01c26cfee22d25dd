// Score requests: contexts and continuations as lm-evaluation-harness tokenises them.
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/limits.h"
#include "server/fields.h"
#include "server/parse_request.h"
#include "server/parse_sharing.h"

namespace lssar {
namespace {

// Bytes of white space at the end of `text`: what Python's str.rstrip() would take, since that is
// what moves from the context to the continuation in lm-evaluation-harness.
size_t TrailingSpace(std::string_view text) {
  static constexpr std::array<std::string_view, 19> kWide = {
      "\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
      "\u2004", "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
      "\u2028", "\u2029", "\u202f", "\u205f", "\u3000"};
  constexpr std::string_view kNarrow = " \t\n\v\f\r\x1c\x1d\x1e\x1f";
  size_t end = text.size();
  for (bool found = true; found && end > 0;) {
    found = kNarrow.find(text[end - 1]) != std::string_view::npos;
    if (found) --end;
    for (size_t i = 0; i < kWide.size() && !found; ++i) {
      found = text.substr(0, end).ends_with(kWide[i]);
      if (found) end -= kWide[i].size();
    }
  }
  return text.size() - end;
}

class ItemReader {
 public:
  ItemReader(const v1::ScoreItem& item, int index, const ParseContext& context)
      : item_(item),
        field_(StrCat("items[", index, "]")),
        checkpoint_(*context.checkpoint),
        max_model_len_(context.max_model_len) {}

  absl::StatusOr<Request> Read() {
    RETURN_IF_ERROR(CheckCount(field_ + ".continuations", size_t(item_.continuations_size()), 1,
                               limits::kMaxContinuations));
    RETURN_IF_ERROR(ReadContext());
    ScoreParams params;
    for (int i = 0; i < item_.continuations_size(); ++i) {
      auto ids = ReadContinuation(i);
      if (!ids.ok()) return ids.status();
      params.continuations.push_back(*std::move(ids));
    }
    Request request;
    request.prompt = std::move(context_ids_);
    request.score = std::move(params);
    return request;
  }

 private:
  bool HasTextContinuation() const {
    for (const v1::ScoreText& continuation : item_.continuations()) {
      if (continuation.has_text()) return true;
    }
    return false;
  }

  // BOS where the checkpoint puts it before text.
  std::vector<int32_t> TextBos() const {
    if (!checkpoint_.add_bos || !checkpoint_.config.bos_id) return {};
    return {*checkpoint_.config.bos_id};
  }

  absl::Status ReadContext() {
    const v1::ScoreText& context = item_.context();
    if (context.has_tokens()) {
      auto ids = CheckIds(field_ + ".context.tokens.ids", context.tokens().ids(),
                          checkpoint_.config.vocab_size);
      if (!ids.ok()) return ids.status();
      context_ids_ = *std::move(ids);
    } else if (context.has_text()) {
      RETURN_IF_ERROR(ReadTextContext());
    }
    if (!context_ids_.empty()) return absl::OkStatus();
    if (!checkpoint_.config.bos_id) {
      return absl::FailedPreconditionError(StrCat(field_, ".context is empty, and checkpoint ",
                                                  checkpoint_.name, " has no BOS to stand for it"));
    }
    context_ids_ = {*checkpoint_.config.bos_id};
    return absl::OkStatus();
  }

  absl::Status ReadTextContext() {
    context_text_ = item_.context().text();
    RETURN_IF_ERROR(CheckText(field_ + ".context.text", context_text_));
    const size_t num_space_bytes = HasTextContinuation() ? TrailingSpace(context_text_) : 0;
    if (num_space_bytes > 0) RETURN_IF_ERROR(CheckAllText());
    moved_space_ = context_text_.substr(context_text_.size() - num_space_bytes);
    context_text_.resize(context_text_.size() - num_space_bytes);
    if (context_text_.empty()) return absl::OkStatus();
    auto ids = EncodeField(field_ + ".context.text", context_text_, checkpoint_.tokenizer.get(),
                           TextBos());
    if (!ids.ok()) return ids.status();
    context_ids_ = *std::move(ids);
    return absl::OkStatus();
  }

  // Where the context's trailing space moves, there is no one context for text and ids alike.
  absl::Status CheckAllText() const {
    for (int i = 0; i < item_.continuations_size(); ++i) {
      if (item_.continuations(i).has_tokens()) {
        return absl::InvalidArgumentError(StrCat(
            field_, ".continuations[", i,
            "] is tokens beside continuations of text, and the "
            "context ends in white space, which moves to a continuation of text; it must be text"));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int32_t>> ReadContinuation(int index) const {
    const v1::ScoreText& continuation = item_.continuations(index);
    const std::string field = StrCat(field_, ".continuations[", index, "]");
    auto ids = continuation.has_text()
                   ? EncodeContinuation(field + ".text", continuation.text())
                   : CheckIds(field + ".tokens.ids", continuation.tokens().ids(),
                              checkpoint_.config.vocab_size);
    if (!ids.ok()) return ids.status();
    if (ids->empty()) {
      return absl::InvalidArgumentError(
          StrCat(field, " has 0 tokens of its own; it must have at least 1"));
    }
    if (context_ids_.size() + ids->size() > size_t(max_model_len_)) {
      return absl::InvalidArgumentError(
          StrCat(field, " has ", ids->size(), " tokens after a context of ", context_ids_.size(),
                 "; together they must be at most max_model_len ", max_model_len_));
    }
    return ids;
  }

  absl::StatusOr<std::vector<int32_t>> EncodeContinuation(const std::string& field,
                                                          const std::string& text) const {
    RETURN_IF_ERROR(CheckText(field, text));
    // After a context of ids, or none, the continuation is a text of its own.
    if (!item_.context().has_text() || context_text_.empty()) {
      return EncodeField(field, StrCat(moved_space_, text), checkpoint_.tokenizer.get(), {});
    }
    auto whole = EncodeField(field, StrCat(context_text_, moved_space_, text),
                             checkpoint_.tokenizer.get(), TextBos());
    if (!whole.ok()) return whole.status();
    const size_t num_context = std::min(context_ids_.size(), whole->size());
    whole->erase(whole->begin(), whole->begin() + static_cast<std::ptrdiff_t>(num_context));
    return whole;
  }

  const v1::ScoreItem& item_;
  const std::string field_;
  const Checkpoint& checkpoint_;
  const int max_model_len_;
  std::string context_text_;  // without its trailing white space where that moves
  std::string moved_space_;
  std::vector<int32_t> context_ids_;
};

}  // namespace

absl::StatusOr<ParsedScore> ParseScore(const v1::ScoreRequest& message,
                                       const ParseContext& context) {
  RETURN_IF_ERROR(CheckCount("items", size_t(message.items_size()), 1, limits::kMaxScoreItems));
  RETURN_IF_ERROR(CheckRange("top_logprobs", message.top_logprobs(), 0, limits::kMaxLogprobs));
  Request shared;
  RETURN_IF_ERROR(ReadSharing(message, shared));
  ParsedScore call;
  call.per_token = message.per_token();
  for (int i = 0; i < message.items_size(); ++i) {
    auto request = ItemReader(message.items(i), i, context).Read();
    if (!request.ok()) return request.status();
    request->priority = shared.priority;
    request->use_prefix_cache = shared.use_prefix_cache;
    request->cache_salt = shared.cache_salt;
    request->score->num_logprobs = call.per_token ? message.top_logprobs() : 0;
    call.items.push_back(*std::move(request));
  }
  return call;
}

}  // namespace lssar
