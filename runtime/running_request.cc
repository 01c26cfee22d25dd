#include "runtime/running_request.h"

#include <algorithm>
#include <utility>

#include "runtime/capture_task.h"
#include "runtime/generate_task.h"
#include "runtime/score_task.h"

namespace lssar {

int64_t Microseconds(Clock::duration d) {
  return std::chrono::duration_cast<std::chrono::microseconds>(d).count();
}

void Add(const AttentionStats& from, AttentionStats* to) {
  to->num_value_rows += from.num_value_rows;
  to->num_value_rows_read += from.num_value_rows_read;
}

RequestStats StatsAtAdmission(const Submission& submission, Clock::time_point now) {
  return {.num_prompt_tokens = int(NumPromptTokens(submission.request)),
          .queue_us = Microseconds(now - submission.submitted_at)};
}

bool RunningRequest::IsOver() const {
  return !status.ok() ||
         std::ranges::all_of(sequences, [](const Sequence& s) { return s.IsDone(); });
}

RequestStats RunningRequest::Stats(Clock::time_point now) const {
  RequestStats stats = StatsAtAdmission(submission, admitted_at);
  const Clock::time_point prefill_end = prefilled_at.value_or(now);
  stats.num_cached_tokens = num_cached_tokens;
  stats.num_preemptions = num_preemptions;
  stats.prefill_us = Microseconds(prefill_end - admitted_at);
  stats.decode_us = Microseconds(now - prefill_end);
  for (const Sequence& sequence : sequences) {
    stats.num_generated_tokens += sequence.task->NumGenerated();
    Add(sequence.attention, &stats.attention);
  }
  return stats;
}

std::unique_ptr<RunningRequest> MakeRunning(Submission submission, int num_sequences,
                                            const Demand& demand, const Checkpoint& checkpoint,
                                            bool uses_cache) {
  auto running = std::make_unique<RunningRequest>();
  running->submission = std::move(submission);
  const Request& request = running->GetRequest();
  running->sequences.resize(size_t(num_sequences));
  std::shared_ptr<const StopStrings> stop_strings;
  if (request.generate && !request.generate->stop_strings.empty()) {
    stop_strings = std::make_shared<StopStrings>(request.generate->stop_strings);
  }
  std::shared_ptr<ScoreItem> item;
  if (request.score)
    item = std::make_shared<ScoreItem>(&*request.score, int(request.prompt.size()));
  for (int choice = 0; choice < num_sequences; ++choice) {
    Sequence& sequence = running->sequences[size_t(choice)];
    sequence.rope_base = RopeBase(checkpoint.config, demand.num_tokens);
    if (uses_cache) {
      sequence.root = PrefixRoot{.rope_base = sequence.rope_base, .salt = request.cache_salt};
    }
    if (choice > 0) sequence.state = SequenceState::kAwaitsPrompt;
    sequence.tokens.reserve(size_t(demand.num_tokens));
    sequence.pages.reserve(size_t(demand.num_pages));
    sequence.tokens = request.prompt;
    if (request.generate) {
      sequence.task = std::make_unique<GenerateTask>(
          GenerateTask::Options{.params = &*request.generate,
                                .prompt = request.prompt,
                                .choice = choice,
                                .tokenizer = checkpoint.tokenizer.get(),
                                .stop_strings = stop_strings,
                                .eos_id = checkpoint.config.eos_id});
    } else if (request.capture) {
      sequence.tokens.resize(size_t(request.capture->rows.back()) + 1);
      sequence.task = std::make_unique<CaptureTask>(&*request.capture);
    } else {
      auto task = std::make_unique<ScoreTask>(item);
      task->Start(&sequence);
      sequence.task = std::move(task);
    }
  }
  return running;
}

}  // namespace lssar
