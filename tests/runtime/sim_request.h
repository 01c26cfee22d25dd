// Random requests, what the fake model must answer to them, and a sink that checks it.
#ifndef LSSAR_TESTS_RUNTIME_SIM_REQUEST_H_
#define LSSAR_TESTS_RUNTIME_SIM_REQUEST_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "models/config.h"
#include "runtime/request.h"

namespace lssar {

using SimRandom = std::mt19937_64;

// [low, high]
inline int Between(SimRandom* random, int low, int high) {
  return low + int((*random)() % uint64_t(high - low + 1));
}
inline bool OneIn(SimRandom* random, int n) { return (*random)() % uint64_t(n) == 0; }

// Prompts begin with one of a few texts; some requests have many choices, some are scores,
// some look at attention, some stay out of the prefix cache. Without a deadline.
// Requires  max_model_len >= 8
Request MakeSimRequest(SimRandom* random, const ModelConfig& config, int max_model_len,
                       int max_choices);

// Compares everything it is told with what the request's rows give, computed from the definition of
// the fake model alone: no pages, no batches. A request that is cut short must have got a beginning
// of its answer.
class SimSink : public OutputSink {
 public:
  SimSink(const Request& request, const ModelConfig& config);

  std::atomic<bool> has_room = true;

  bool IsWritable() const override { return has_room; }
  void OnAdmitted(const RequestStats& stats) override;
  void OnPromptLogprobs(PromptDelta delta) override;
  void OnTokens(GenerateDelta delta) override;
  void OnScore(ContinuationScore score) override;
  void OnWeights(std::vector<RowWeights> rows) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

  bool IsDone() const { return is_done_; }
  // Once it is done.
  const absl::Status& Status() const { return status_; }
  const RequestStats& Stats() const { return stats_; }
  // The first thing that was not as it should be; empty: nothing. Once it is done.
  const std::string& Failure() const { return failure_; }

 private:
  struct Choice {
    std::vector<int32_t> ids;
    std::optional<FinishReason> finish;
  };
  void Fail(const std::string& what);
  void CheckChoice(int choice);
  void CheckPrompt();
  void CheckScore(int index, const ContinuationScore& score);
  void CheckWeights();

  const Request request_;
  const ModelConfig config_;
  double rope_base_ = 0;
  bool is_admitted_ = false;
  std::atomic<bool> is_done_ = false;
  absl::Status status_;
  RequestStats stats_;
  std::vector<Choice> choices_;
  std::vector<TokenResult> prompt_;
  std::vector<ContinuationScore> scores_;
  std::vector<RowWeights> weights_;
  std::string failure_;
};

}  // namespace lssar

#endif  // LSSAR_TESTS_RUNTIME_SIM_REQUEST_H_
