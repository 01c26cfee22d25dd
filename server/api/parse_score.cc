#include "server/api/parse_parts.h"

#include <map>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "models/text/white_space.h"
#include "runtime/limits.h"
#include "server/api/fields.h"

namespace lssar {
namespace {

// lm-evaluation-harness moves white space from the end of the context to the continuation.
size_t TrailingSpace(std::string_view text) { return text.size() - TrimRight(text).size(); }

class ItemReader {
 public:
  ItemReader(const v1::ScoreItem& item, int index, const ParseContext& context)
      : item_(item),
        field_(StrCat("items[", index, "]")),
        parse_(context),
        checkpoint_(*context.checkpoint),
        max_model_len_(context.max_model_len) {}

  // Adds to `num_repeat_bytes`, of limits::kMaxScoreRepeatBytes over the whole call.
  absl::StatusOr<Request> Read(int64_t* num_repeat_bytes) {
    num_repeat_bytes_ = num_repeat_bytes;
    RETURN_IF_ERROR(CheckCount(field_ + ".continuations", size_t(item_.continuations_size()), 1,
                               limits::kMaxContinuations));
    RETURN_IF_ERROR(ReadContext());
    ScoreParams params;
    for (int i = 0; i < item_.continuations_size(); ++i) {
      if (parse_.should_stop()) return absl::CancelledError("the call has ended");
      ASSIGN_OR_RETURN(auto ids, ReadContinuation(i));
      params.continuations.push_back(std::move(ids));
    }
    Request request;
    request.prompt = std::move(context_ids_);
    request.params = std::move(params);
    return request;
  }

 private:
  bool HasTextContinuation() const {
    for (const v1::TextOrTokens& continuation : item_.continuations()) {
      if (continuation.has_text()) return true;
    }
    return false;
  }

  absl::Status ReadContext() {
    const v1::TextOrTokens& context = item_.context();
    if (context.has_tokens()) {
      ASSIGN_OR_RETURN(context_ids_,
                       CheckIds(field_ + ".context.tokens.ids", context.tokens().ids(),
                                checkpoint_.config.vocab_size));
    } else if (context.has_text()) {
      RETURN_IF_ERROR(ReadTextContext());
    }
    if (!context_ids_.empty()) return absl::OkStatus();
    if (!checkpoint_.config.bos_id) {
      return UnmetField(field_ + ".context", StrCat("is empty, and checkpoint ", checkpoint_.name,
                                                    " has no BOS to use instead"));
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
    if (!HasTextContinuation() || checkpoint_.tokenizer == nullptr) {
      ASSIGN_OR_RETURN(context_ids_, EncodeField(field_ + ".context.text", context_text_, parse_,
                                                 BosOf(checkpoint_)));
      return absl::OkStatus();
    }
    RETURN_IF_ERROR(CheckTextBytes(field_ + ".context.text", context_text_.size(), parse_));
    // Each continuation is tokenized together with the end of the context alone.
    const Tokenizer::StableSplit split = checkpoint_.tokenizer->SplitStable(context_text_);
    end_of_context_ = split.rest;
    RETURN_IF_ERROR(CountRepeats());
    ASSIGN_OR_RETURN(context_ids_, EncodeField(field_ + ".context.text", split.front, parse_,
                                               BosOf(checkpoint_)));
    num_front_ids_ = context_ids_.size();
    ASSIGN_OR_RETURN(const auto end,
                     EncodeField(field_ + ".context.text", end_of_context_, parse_, {}));
    context_ids_.insert(context_ids_.end(), end.begin(), end.end());
    return absl::OkStatus();
  }

  // Counts the end of the context, which is tokenized again with each continuation of text.
  absl::Status CountRepeats() const {
    const auto num_texts =
        std::count_if(item_.continuations().begin(), item_.continuations().end(),
                      [](const v1::TextOrTokens& one) { return one.has_text(); });
    *num_repeat_bytes_ += std::ssize(end_of_context_) * num_texts;
    if (*num_repeat_bytes_ <= limits::kMaxScoreRepeatBytes) return absl::OkStatus();
    return FieldError(
        field_,
        StrCat("has ", num_texts, " continuations of a context whose last ", end_of_context_.size(),
               " bytes have no space between two letters, and are tokenized again with each; one "
               "request may repeat ",
               limits::kMaxScoreRepeatBytes, " bytes: send fewer continuations, or token ids"));
  }

  // The context's trailing space moves only to continuations of text, so they cannot share the
  // context with continuations of ids.
  absl::Status CheckAllText() const {
    for (int i = 0; i < item_.continuations_size(); ++i) {
      if (item_.continuations(i).has_tokens()) {
        return FieldError(
            StrCat(field_, ".continuations[", i, "]"),
            "is token ids while others are text; because the context ends in white space, which "
            "moves to the continuations, all continuations must be text");
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<int32_t>> ReadContinuation(int index) const {
    const v1::TextOrTokens& continuation = item_.continuations(index);
    const std::string field = StrCat(field_, ".continuations[", index, "]");
    ASSIGN_OR_RETURN(auto ids, continuation.has_text()
                                   ? EncodeContinuation(field + ".text", continuation.text())
                                   : CheckIds(field + ".tokens.ids", continuation.tokens().ids(),
                                              checkpoint_.config.vocab_size));
    if (ids.empty()) {
      return FieldError(field, "adds no token to the context; it must add at least 1");
    }
    if (context_ids_.size() + ids.size() > size_t(max_model_len_)) {
      return ContextLengthError(
          field,
          StrCat("has ", ids.size(), " tokens after a context of ", context_ids_.size(),
                 "; together they must be at most max_model_len ", max_model_len_),
          max_model_len_);
    }
    return ids;
  }

  absl::StatusOr<std::vector<int32_t>> EncodeContinuation(const std::string& field,
                                                          const std::string& text) const {
    RETURN_IF_ERROR(CheckText(field, text));
    // After a context of ids, or an empty one, the continuation is encoded by itself.
    if (!item_.context().has_text() || context_text_.empty()) {
      return EncodeField(field, StrCat(moved_space_, text), parse_, {});
    }
    const std::string joined = StrCat(end_of_context_, moved_space_, text);
    const bool has_front = end_of_context_.size() < context_text_.size();
    ASSIGN_OR_RETURN(std::vector<int32_t> whole,
                     EncodeField(field, joined, parse_,
                                 has_front ? std::vector<int32_t>() : BosOf(checkpoint_)));
    // The ids of the front precede those of `joined`; BOS counts among the front's where there is a
    // front.
    const size_t num_context =
        std::min(context_ids_.size() - (has_front ? num_front_ids_ : 0), whole.size());
    whole.erase(whole.begin(), whole.begin() + std::ptrdiff_t(num_context));
    return whole;
  }

  const v1::ScoreItem& item_;
  const std::string field_;
  const ParseContext& parse_;
  const Checkpoint& checkpoint_;
  const int max_model_len_;
  int64_t* num_repeat_bytes_ = nullptr;
  std::string context_text_;  // without its trailing white space where that moves
  std::string moved_space_;
  std::string_view end_of_context_;  // of context_text_: from its stable split on
  std::vector<int32_t> context_ids_;
  size_t num_front_ids_ = 0;  // of them: of BOS and the text before end_of_context_
};

// One request for each rope base among the continuations. Without dynamic NTK there is one base.
std::vector<Request> SplitByRopeBase(Request request, const ModelConfig& config) {
  std::vector<std::vector<int32_t>> continuations = std::move(request.Score()->continuations);
  request.Score()->continuations.clear();
  std::map<double, Request> parts;
  for (size_t i = 0; i < continuations.size(); ++i) {
    const int num_read = int(request.prompt.size() + continuations[i].size()) - 1;
    ScoreParams& part =
        *parts.try_emplace(RopeBase(config, num_read), request).first->second.Score();
    part.continuations.push_back(std::move(continuations[i]));
    part.indices.push_back(int(i));
  }
  std::vector<Request> requests;
  for (auto& [rope_base, part] : parts) requests.push_back(std::move(part));
  // The indices are only needed where continuations are apart.
  if (requests.size() == 1) requests[0].Score()->indices.clear();
  return requests;
}

}  // namespace

absl::StatusOr<ParsedScore> ParseScore(const v1::ScoreRequest& message,
                                       const ParseContext& context) {
  RETURN_IF_ERROR(CheckCount("items", size_t(message.items_size()), 1, limits::kMaxScoreItems));
  RETURN_IF_ERROR(CheckRange("top_logprobs", message.top_logprobs(), 0,
                             MaxLogprobs(context.checkpoint->config)));
  if (message.top_logprobs() > 0 && !message.per_token()) {
    return FieldError("top_logprobs", StrCat("is ", message.top_logprobs(),
                                             "; it may be set only where per_token is true"));
  }
  RETURN_IF_ERROR(CheckCount("logprob_token_ids", size_t(message.logprob_token_ids_size()), 0,
                             limits::kMaxLogprobIds));
  ASSIGN_OR_RETURN(const std::vector<int32_t> logprob_ids,
                   CheckIds("logprob_token_ids", message.logprob_token_ids(),
                            context.checkpoint->config.vocab_size));
  if (message.full_distribution() && !logprob_ids.empty()) {
    return FieldError("logprob_token_ids",
                      "is set; it must be empty where full_distribution is true, which has all");
  }
  Request shared;
  RETURN_IF_ERROR(ReadScheduling(message, context, &shared));
  ParsedScore parsed;
  int64_t num_repeat_bytes = 0;
  int64_t num_tokens = 0;
  for (int i = 0; i < message.items_size(); ++i) {
    absl::StatusOr<Request> read = ItemReader(message.items(i), i, context).Read(&num_repeat_bytes);
    if (!read.ok()) {
      const bool is_of_item =
          absl::IsInvalidArgument(read.status()) || absl::IsFailedPrecondition(read.status());
      // Not a limit of the whole call.
      if (!is_of_item || num_repeat_bytes > limits::kMaxScoreRepeatBytes) return read.status();
      parsed.errors.emplace(i, read.status());
      continue;
    }
    Request& request = *read;
    request.priority = shared.priority;
    request.use_prefix_cache = shared.use_prefix_cache;
    request.cache_salt = shared.cache_salt;
    request.attention = shared.attention;
    request.steering = shared.steering;
    request.Score()->num_logprobs = message.top_logprobs();
    request.Score()->logprob_ids = logprob_ids;
    request.Score()->full_distribution = message.full_distribution();
    for (Request& part : SplitByRopeBase(std::move(request), context.checkpoint->config)) {
      num_tokens += NumPromptTokens(part);
      if (num_tokens > limits::kMaxScoreTokens) {
        return FieldError(StrCat("items[", i, "]"),
                          StrCat("makes the request exceed ", limits::kMaxScoreTokens,
                                 " tokens of contexts and continuations; send fewer items"));
      }
      parsed.items.push_back(std::move(part));
      parsed.item_indices.push_back(i);
    }
  }
  if (parsed.items.empty()) return parsed.errors.begin()->second;
  return parsed;
}

}  // namespace lssar
