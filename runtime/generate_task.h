// One choice of a generate request: samples token after token until something ends the text.
#ifndef LSSAR_RUNTIME_GENERATE_TASK_H_
#define LSSAR_RUNTIME_GENERATE_TASK_H_

#include <memory>
#include <optional>
#include <string>

#include "models/tokenizer.h"
#include "runtime/sequence_task.h"
#include "runtime/text_stream.h"
#include "runtime/token_counts.h"

namespace lssar {

// The token that ends a text (EOS, a stop id) is among the delta's tokens and the counts, and not
// in the text: whoever asks for one token's log-probability gets it even when it is EOS.
class GenerateTask : public SequenceTask {
 public:
  struct Options {
    const GenerateParams* params = nullptr;
    std::span<const int32_t> prompt;
    int choice = 0;
    const Tokenizer* tokenizer = nullptr;             // null: no text
    std::shared_ptr<const StopStrings> stop_strings;  // null: none
    std::optional<int32_t> eos_id;
  };
  // What `options` points at must outlive the task.
  explicit GenerateTask(Options options);

  bool WantsLogits(const Sequence& sequence, int position) const override;
  int FirstWantedRow(const Sequence& sequence) const override;
  void TakeCached(int first, std::span<const TokenScore> scores) override;
  void ReadScores(int first, std::span<TokenScore> scores) const override;
  bool Streams() const override { return true; }
  SampleRequest Ask(const Sequence& sequence, int position) const override;
  void Take(int position, SampleResult* row) override;
  void Advance(Sequence* sequence) override;
  void Publish(OutputSink* sink) override;
  bool IsDone() const override { return finish_.has_value(); }
  int NumGenerated() const override { return num_generated_; }

 private:
  bool WantsPromptRows() const {
    return options_.choice == 0 && options_.params->num_prompt_logprobs >= 0;
  }
  bool IsPromptRow(int position) const { return position + 1 < int(options_.prompt.size()); }
  void AddPromptToken(TokenResult token, const TokenScore& score);
  // The reason that `id` itself ends the text for.
  std::optional<FinishReason> EndsText(int32_t id) const;
  void AddText(int32_t id);

  const Options options_;
  TextStream text_;
  TokenCounts counts_;  // kept only where a penalty looks at them
  int num_generated_ = 0;
  int next_prompt_row_ = 0;                // whose log-probability has not been taken
  std::vector<TokenScore> prompt_scores_;  // of the tokens after the rows before that
  std::optional<FinishReason> finish_;

  // Of the step.
  std::optional<TokenResult> drawn_;
  PromptDelta prompt_delta_;
  GenerateDelta delta_;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_GENERATE_TASK_H_
