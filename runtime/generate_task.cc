// Generation: samples token after token until something ends the text.
#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/text/tokenizer.h"
#include "runtime/detokenizer.h"
#include "runtime/ending_ids.h"
#include "runtime/sequence.h"
#include "runtime/sequence_task.h"
#include "runtime/token_counts.h"
#include "runtime/token_masks.h"

namespace lssar {
namespace {

// One choice. The token that ends the text (EOS, a stop id) is among the delta's tokens and the
// counts but not in the text: a caller that wants one token's log-probability gets it even when the
// token is EOS.
class GenerateTask final : public SequenceTask {
 public:
  struct Options {
    const GenerateParams* params = nullptr;
    std::span<const int32_t> prompt;
    int choice = 0;
    const Tokenizer* tokenizer = nullptr;             // null: no text
    std::shared_ptr<const StopStrings> stop_strings;  // null: none
    // For the tokens before min_tokens; null: there are none.
    std::shared_ptr<const SamplingParams> early_sampling;
    const ModelConfig* config = nullptr;  // says what EOS is
    std::unique_ptr<TokenMasks> masks;    // null: any token may come
  };
  // What `options` points at must outlive the task.
  explicit GenerateTask(Options options)
      : options_(std::move(options)),
        detokenizer_(options_.tokenizer, options_.stop_strings,
                     options_.params->skips_special_tokens) {
    if (options_.params->sampling.HasPenalties()) counts_.AddPrompt(options_.prompt);
    if (NeedsPromptLogprobs()) prompt_scores_.reserve(options_.prompt.size());
  }

  bool NeedsLogits(const Sequence& sequence, int position) const override {
    if (position + 1 >= int(sequence.tokens.size())) return true;
    return NeedsPromptLogprobs() && PredictsPrompt(position) && position >= next_prompt_position_;
  }

  int FirstLogitsPosition(const Sequence& sequence) const override {
    if (NeedsPromptLogprobs() && PredictsPrompt(next_prompt_position_)) {
      return next_prompt_position_;
    }
    return int(sequence.tokens.size()) - 1;
  }

  void OnCachedScores(int first, std::span<const TokenScore> scores) override {
    // The cache does not store the N best.
    if (!NeedsPromptLogprobs() || options_.params->num_prompt_logprobs > 0) return;
    for (size_t i = 0; i < scores.size() && PredictsPrompt(next_prompt_position_); ++i) {
      const int ahead = first + int(i) - next_prompt_position_ - 1;
      if (ahead < 0) continue;
      if (ahead > 0 || !scores[i].is_known) return;
      AddPromptToken({.id = options_.prompt[size_t(first) + i], .logprob = scores[i].logprob},
                     scores[i]);
    }
  }

  void GetScores(int first, std::span<TokenScore> scores) const override {
    for (size_t i = 0; i < scores.size(); ++i) {
      const int idx = first + int(i) - 1;  // the first token of a text has no score
      if (idx >= 0 && idx < int(prompt_scores_.size())) scores[i] = prompt_scores_[size_t(idx)];
    }
  }

  bool IsStreaming() const override { return true; }

  // The last token of the text is sampled and never computed.
  int MaxDraftTokens() const override {
    return std::min(options_.params->speculative_tokens,
                    options_.params->max_tokens - num_generated_ - 1);
  }

  SampleRequest MakeSampleRequest(const Sequence& sequence, int position) override {
    const GenerateParams& params = *options_.params;
    if (PredictsPrompt(position)) {
      return {.target = sequence.tokens[size_t(position) + 1],
              .counts = {},
              .num_logprobs = params.num_prompt_logprobs};
    }
    const bool is_early = position + 1 - int(options_.prompt.size()) < params.min_tokens;
    const SamplingParams* sampling = is_early ? options_.early_sampling.get() : &params.sampling;
    if (!params.banned_sequences.empty()) {
      sampling = WithoutSequences(sequence, position, sampling);
    }
    return {.params = sampling,
            .counts = CountsAt(sequence, position),
            .mask = MaskAt(sequence, position, !is_early, *sampling),
            .choice = options_.choice,
            .position = position + 1,
            .num_logprobs = params.num_logprobs};
  }

  void OnSampleResult(int position, SampleResult* result) override {
    if (PredictsPrompt(position)) {
      const TokenScore score = {
          .logprob = result->logprob, .is_known = true, .is_greedy = result->is_best};
      AddPromptToken(MakeTokenResult(result), score);
    } else {
      const int num_draft = position + 1 - num_tokens_;
      const auto finish =
          options_.masks == nullptr ? std::nullopt : options_.masks->FinishAfter(size_t(num_draft));
      sampled_.push_back({.token = MakeTokenResult(result), .finish = finish});
    }
  }

  // Nothing is sampled in a step that computes a part of the prompt, several tokens in a step that
  // verifies a draft.
  void Advance(Sequence* sequence) override {
    for (Sampled& sampled : sampled_) {
      if (finish_) break;
      if (sampled.finish) {
        finish_ = sampled.finish;
        EndText(std::nullopt);
      } else {
        AddToken(sequence, std::move(sampled.token));
      }
    }
    sampled_.clear();
    step_sampling_.clear();
  }

  void Publish(OutputSink* sink) override {
    if (!prompt_delta_.tokens.empty()) {
      sink->OnResult(std::exchange(prompt_delta_, {}));
    }
    if (delta_.tokens.empty() && !delta_.finish) return;
    delta_.choice = options_.choice;
    sink->OnResult(std::exchange(delta_, {}));
  }

  bool IsDone() const override { return finish_.has_value(); }
  int NumGenerated() const override { return num_generated_; }

 private:
  void AddToken(Sequence* sequence, TokenResult token) {
    const int32_t id = token.id;
    delta_.tokens.push_back(std::move(token));
    finish_ = FinishReasonOf(id);
    if (!finish_) {
      const bool match = num_generated_ >= options_.params->min_tokens;
      detokenizer_.Push(id, match, &delta_.text);
      if (detokenizer_.StopString() != nullptr) finish_ = FinishReason::kStopString;
    }
    ++num_generated_;
    if (!finish_ && num_generated_ == options_.params->max_tokens) finish_ = FinishReason::kLength;
    if (!finish_) {
      sequence->tokens.push_back(id);
      if (options_.params->sampling.HasPenalties()) counts_.AddOutput(id);
      if (options_.masks != nullptr) options_.masks->Accept(id);
      return;
    }
    EndText(id);
  }

  // last_id: the token that ended the text, if one did.
  void EndText(std::optional<int32_t> last_id) {
    detokenizer_.Finish(&delta_.text);
    if (const std::string* stop = detokenizer_.StopString()) {
      finish_ = FinishReason::kStopString;
      delta_.stop_string = *stop;
    } else if (last_id && options_.params->includes_stop && finish_ != FinishReason::kLength) {
      detokenizer_.Push(*last_id, /*match=*/false, &delta_.text);
      detokenizer_.Finish(&delta_.text);
    }
    delta_.finish = finish_;
  }

  // The counts of the penalties for the token after `position`, draft tokens up to it included.
  std::span<const TokenCount> CountsAt(const Sequence& sequence, int position) {
    const int num_draft = position + 1 - int(sequence.tokens.size());
    if (num_draft <= 0 || !options_.params->sampling.HasPenalties()) return counts_.Counts();
    if (draft_counts_.size() < sequence.draft.size()) draft_counts_.resize(sequence.draft.size());
    std::vector<TokenCount>* const counts = &draft_counts_[size_t(num_draft) - 1];
    counts_.CountWith(std::span(sequence.draft).first(size_t(num_draft)), counts);
    return *counts;
  }

  // `params` without the ids that would complete a banned sequence behind `position`, draft tokens
  // up to it included.
  const SamplingParams* WithoutSequences(const Sequence& sequence, int position,
                                         const SamplingParams* params) {
    const int num_tokens = int(sequence.tokens.size());
    const auto token_at = [&](int i) {
      return i < num_tokens ? sequence.tokens[size_t(i)] : sequence.draft[size_t(i - num_tokens)];
    };
    SamplingParams* changed = nullptr;
    for (const std::vector<int32_t>& banned : options_.params->banned_sequences) {
      const int first = position + 2 - int(banned.size());
      if (first < int(options_.prompt.size())) continue;  // sequences of the output alone
      bool is_begun = true;
      for (int i = first; i <= position && is_begun; ++i) {
        is_begun = token_at(i) == banned[size_t(i - first)];
      }
      if (!is_begun) continue;
      if (changed == nullptr) changed = &step_sampling_.emplace_back(*params);
      changed->banned_ids.push_back(banned.back());
    }
    return changed == nullptr ? params : changed;
  }

  // The mask of the token after `position`; empty: all, or the text ends instead.
  std::span<const uint32_t> MaskAt(const Sequence& sequence, int position, bool may_end,
                                   const SamplingParams& sampling) {
    num_tokens_ = int(sequence.tokens.size());
    if (options_.masks == nullptr) return {};
    const auto output = std::span(sequence.tokens).subspan(options_.prompt.size());
    const auto draft = std::span(sequence.draft).first(size_t(position + 1 - num_tokens_));
    return options_.masks->After(output, draft, may_end, sampling).words;
  }

  bool NeedsPromptLogprobs() const {
    return options_.choice == 0 && options_.params->num_prompt_logprobs >= 0;
  }
  // Whether the logits at `position` predict a token of the prompt.
  bool PredictsPrompt(int position) const { return position + 1 < int(options_.prompt.size()); }

  void AddPromptToken(TokenResult token, const TokenScore& score) {
    prompt_scores_.push_back(score);
    if (prompt_delta_.tokens.empty()) prompt_delta_.first = next_prompt_position_ + 1;
    prompt_delta_.tokens.push_back(std::move(token));
    ++next_prompt_position_;
  }

  // The reason why `id` itself ends the text. Before min_tokens no such id is sampled.
  std::optional<FinishReason> FinishReasonOf(int32_t id) const {
    const GenerateParams& params = *options_.params;
    if (std::ranges::count(params.stop_ids, id) > 0) return FinishReason::kStopId;
    if (options_.config->IsEos(id) && !params.ignore_eos) return FinishReason::kEos;
    return std::nullopt;
  }

  const Options options_;
  Detokenizer detokenizer_;
  TokenCounts counts_;  // maintained only where a penalty needs it
  int num_generated_ = 0;
  int next_prompt_position_ = 0;           // the first whose log-probability is not known yet
  std::vector<TokenScore> prompt_scores_;  // element i belongs to prompt token i + 1
  std::optional<FinishReason> finish_;

  // Results of the step.
  struct Sampled {
    TokenResult token;
    std::optional<FinishReason> finish;  // set: the text ends without the token
  };
  std::vector<Sampled> sampled_;                       // in the order of their positions
  int num_tokens_ = 0;                                 // of the sequence, without its draft
  std::vector<std::vector<TokenCount>> draft_counts_;  // element i: with i + 1 draft tokens
  std::deque<SamplingParams> step_sampling_;           // of positions that ban a sequence's end
  PromptDelta prompt_delta_;
  GenerateDelta delta_;
};

// `params` without the ids that end a text.
std::shared_ptr<const SamplingParams> EarlySampling(const GenerateParams& params,
                                                    const ModelConfig& config) {
  if (params.min_tokens == 0) return nullptr;
  auto sampling = std::make_shared<SamplingParams>(params.sampling);
  for (const int32_t id : EndingIds(params, config)) sampling->banned_ids.push_back(id);
  return sampling;
}

}  // namespace

void AddGenerateTasks(const Checkpoint& checkpoint, SequenceGroup* group) {
  const Request& request = group->request;
  const GenerateParams& params = *request.Generate();
  std::shared_ptr<const StopStrings> stop_strings;
  if (!params.stop_strings.empty()) {
    stop_strings = std::make_shared<StopStrings>(params.stop_strings, params.includes_stop);
  }
  const auto early_sampling = EarlySampling(params, checkpoint.config);
  const std::shared_ptr<const Grammar>& grammar = params.grammar;
  int choice = 0;
  for (Sequence& sequence : group->sequences) {
    std::unique_ptr<TokenMasks> masks;
    if (grammar != nullptr) {
      masks = std::make_unique<TokenMasks>(grammar, checkpoint.config.NumTokenIds(),
                                           EndingIds(params, checkpoint.config));
    }
    sequence.num_prompt_tokens = int(request.prompt.size());
    sequence.task = std::make_unique<GenerateTask>(
        GenerateTask::Options{.params = &params,
                              .prompt = request.prompt,
                              .choice = choice++,
                              .tokenizer = checkpoint.tokenizer.get(),
                              .stop_strings = stop_strings,
                              .early_sampling = early_sampling,
                              .config = &checkpoint.config,
                              .masks = std::move(masks)});
  }
}

}  // namespace lssar
