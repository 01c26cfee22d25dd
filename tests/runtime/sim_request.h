// Random requests, and a sink that checks the results against those of the fake model.
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

// Prompts begin with one of a few texts. Some requests have many choices, some are scores, some
// capture attention, some have another attention, some do not use the prefix cache. None has a
// deadline.
// Requires  max_model_len >= 8
Request MakeSimRequest(SimRandom* random, const ModelConfig& config, int max_model_len,
                       int max_choices);

// Compares every result with the definition of the fake model, computed without pages or batches. A
// request that is aborted must have received a prefix of its results.
class SimSink : public OutputSink {
 public:
  SimSink(const Request& request, const ModelConfig& config);

  std::atomic<bool> is_writable = true;

  bool IsWritable() const override { return is_writable; }
  void OnAdmitted(const RequestStats& stats) override;
  void OnResult(EngineResult result) override;
  void OnDone(const absl::Status& status, const RequestStats& stats) override;

  bool IsDone() const { return is_done_; }
  // Valid once the request is done.
  const absl::Status& Status() const { return status_; }
  const RequestStats& Stats() const { return stats_; }
  // The first wrong result; empty: none. Valid once the request is done.
  const std::string& Failure() const { return failure_; }

 private:
  struct Choice {
    std::vector<int32_t> ids;
    std::optional<FinishReason> finish;
  };
  void Fail(const std::string& what);
  void Record(PromptDelta delta);
  void Record(const GenerateDelta& delta);
  void Record(ContinuationScore score);
  void Record(std::vector<RowWeights> rows);
  template <typename Result>
  void Record(const Result& /*result*/) {
    Fail("a result of no request");
  }
  void CheckChoice(int choice);
  void CheckPrompt();
  void CheckScore(int index, const ContinuationScore& score);
  void CheckWeights();

  const Request request_;
  const ModelConfig config_;
  uint64_t first_hash_ = 0;  // before the first token
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
