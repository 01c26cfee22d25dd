// An OutputSink that records everything and checks the order of the calls.
#ifndef LSSAR_TESTS_SUPPORT_RECORDING_SINK_H_
#define LSSAR_TESTS_SUPPORT_RECORDING_SINK_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/request.h"

namespace lssar {

// Equal bits.
inline bool operator==(const TokenLogprob& a, const TokenLogprob& b) {
  return a.id == b.id && std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob);
}
inline bool operator==(const TokenResult& a, const TokenResult& b) {
  return a.id == b.id && std::bit_cast<uint32_t>(a.logprob) == std::bit_cast<uint32_t>(b.logprob) &&
         a.top == b.top;
}

inline bool operator==(const KeyWeight& a, const KeyWeight& b) {
  return a.key == b.key && std::bit_cast<uint32_t>(a.weight) == std::bit_cast<uint32_t>(b.weight);
}
inline bool operator==(const RowWeights& a, const RowWeights& b) {
  return a.layer == b.layer && a.head == b.head && a.row == b.row &&
         a.num_nonzero == b.num_nonzero && a.num_zero == b.num_zero && a.entropy == b.entropy &&
         a.dropped == b.dropped && a.keys == b.keys;
}

// Time limit of a request; only a hang reaches it.
inline constexpr std::chrono::minutes kPatience(5);

class RecordingSink : public OutputSink {
 public:
  struct Choice {
    std::vector<TokenResult> tokens;
    std::string text;
    std::optional<FinishReason> finish;
    std::string stop_string;
    bool operator==(const Choice&) const = default;
  };

  // IsWritable's answer. Threads: any.
  std::atomic<bool> is_writable = true;
  // Called from OnDone, on the engine thread, before Wait returns.
  std::function<void()> on_done;

  bool IsWritable() const override { return is_writable; }
  void OnAdmitted(const RequestStats& stats) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(admitted_.has_value());
    EXPECT_FALSE(status_.has_value());
    admitted_ = stats;
  }
  void OnResult(EngineResult result) override {
    const std::lock_guard lock(mutex_);
    EXPECT_TRUE(admitted_.has_value());
    EXPECT_FALSE(status_.has_value()) << "a call after OnDone";
    std::visit([this](auto& kind) { Record(std::move(kind)); }, result);
  }
  void OnDone(const absl::Status& status, const RequestStats& stats) override {
    EXPECT_NE(std::this_thread::get_id(), submitter_) << "OnDone on the thread of Submit";
    if (on_done) on_done();
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "OnDone came twice";
    status_ = status;
    stats_ = stats;
    done_.notify_all();
  }

  // The submitting thread; OnDone must not run on it. Unset where a test drives the steps itself.
  void SetSubmitter(std::thread::id id) { submitter_ = id; }

  // Waits for OnDone; returns its status.
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    const bool is_done = done_.wait_for(lock, kPatience, [this] { return status_.has_value(); });
    EXPECT_TRUE(is_done) << "no OnDone within " << kPatience.count() << " minutes";
    return status_.value_or(absl::UnknownError("no OnDone"));
  }

  bool IsAdmitted() const {
    return Locked([this] { return admitted_.has_value(); });
  }
  bool IsDone() const {
    return Locked([this] { return status_.has_value(); });
  }
  std::optional<absl::Status> Status() const {
    return Locked([this] { return status_; });
  }
  RequestStats AdmittedStats() const {
    return Locked([this] { return admitted_.value(); });
  }
  RequestStats Stats() const {
    return Locked([this] { return stats_; });
  }
  Choice At(int choice) const {
    return Locked([&] { return choices_.contains(choice) ? choices_.at(choice) : Choice{}; });
  }
  std::vector<TokenResult> Prompt() const {
    return Locked([this] { return prompt_; });
  }
  std::vector<ContinuationScore> Scores() const {
    return Locked([this] { return scores_; });
  }
  // By continuation: ScoreParams::logprob_ids or all ids, of each position.
  std::map<int, std::vector<float>> Logprobs() const {
    return Locked([this] { return logprobs_; });
  }
  // Values of a LogprobBlock.
  size_t LargestBlock() const {
    return Locked([this] { return largest_block_; });
  }
  // By (row, layer, head).
  std::map<std::array<int, 3>, RowWeights> Weights() const {
    return Locked([this] { return weights_; });
  }
  std::vector<HeadStatistics> Statistics() const {
    return Locked([this] { return statistics_; });
  }
  // All vectors, one after another.
  std::vector<float> Embeddings() const {
    return Locked([this] { return embeddings_; });
  }
  // Weights of one step.
  size_t LargestStep() const {
    return Locked([this] { return largest_step_; });
  }

 private:
  template <typename Read>
  std::invoke_result_t<Read> Locked(const Read& read) const {
    const std::lock_guard lock(mutex_);
    return read();
  }
  void Record(PromptDelta delta) {
    EXPECT_EQ(delta.first, int(prompt_.size()) + 1);
    EXPECT_TRUE(choices_.empty()) << "prompt log-probabilities come before all output";
    for (TokenResult& token : delta.tokens) prompt_.push_back(std::move(token));
  }
  void Record(GenerateDelta delta) {
    Choice& choice = choices_[delta.choice];
    EXPECT_FALSE(choice.finish.has_value());
    EXPECT_TRUE(!delta.tokens.empty() || delta.finish);
    for (TokenResult& token : delta.tokens) choice.tokens.push_back(std::move(token));
    choice.text += delta.text;
    choice.finish = delta.finish;
    choice.stop_string = delta.stop_string;
  }
  void Record(ContinuationScore score) {
    EXPECT_EQ(score.index, int(scores_.size()));
    scores_.push_back(std::move(score));
  }
  void Record(LogprobBlock block) {
    EXPECT_FALSE(block.values.empty());
    EXPECT_GE(block.index, int(scores_.size())) << "after the score";
    std::vector<float>& values = logprobs_[block.index];
    EXPECT_EQ(block.first * block.size, int(values.size())) << "in order, without gaps";
    values.insert(values.end(), block.values.begin(), block.values.end());
    largest_block_ = std::max(largest_block_, block.values.size());
  }
  void Record(std::vector<RowWeights> rows) {
    EXPECT_FALSE(rows.empty());
    largest_step_ = std::max(largest_step_, rows.size());
    for (RowWeights& row : rows) {
      const std::array<int, 3> at = {row.row, row.layer, row.head};
      EXPECT_TRUE(weights_.empty() || weights_.rbegin()->first < at) << "twice, or out of order";
      weights_.emplace(at, std::move(row));
    }
  }
  void Record(std::vector<HeadStatistics> heads) {
    EXPECT_TRUE(statistics_.empty()) << "twice";
    statistics_ = std::move(heads);
  }
  void Record(EmbeddingBlock block) {
    EXPECT_FALSE(block.values.empty());
    EXPECT_EQ(block.first * block.num_layers * block.size, int(embeddings_.size()));
    embeddings_.insert(embeddings_.end(), block.values.begin(), block.values.end());
  }

  std::thread::id submitter_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::optional<RequestStats> admitted_;
  std::optional<absl::Status> status_;
  RequestStats stats_;
  std::map<int, Choice> choices_;
  std::vector<TokenResult> prompt_;
  std::vector<ContinuationScore> scores_;
  std::map<int, std::vector<float>> logprobs_;
  size_t largest_block_ = 0;
  std::map<std::array<int, 3>, RowWeights> weights_;
  std::vector<HeadStatistics> statistics_;
  size_t largest_step_ = 0;
  std::vector<float> embeddings_;
};

// Results of a request: tokens and texts (generate), log-probabilities (score), weights (capture).
inline void ExpectEqualBits(const RecordingSink& a, const RecordingSink& b,
                            const Request& request) {
  if (request.Generate()) {
    for (int choice = 0; choice < request.Generate()->num_choices; ++choice) {
      EXPECT_FALSE(a.At(choice).tokens.empty());
      EXPECT_TRUE(a.At(choice) == b.At(choice)) << "choice " << choice;
    }
    EXPECT_TRUE(a.Prompt() == b.Prompt());
    return;
  }
  if (request.Capture()) {
    const size_t num_heads = request.Capture()->layers.size() * request.Capture()->heads.size();
    EXPECT_EQ(a.Weights().size(), request.Capture()->rows.size() * num_heads);
    EXPECT_TRUE(a.Weights() == b.Weights());
    return;
  }
  if (request.Embed()) {
    EXPECT_FALSE(a.Embeddings().empty());
    EXPECT_TRUE(a.Embeddings() == b.Embeddings());
    return;
  }
  const auto scores = a.Scores(), others = b.Scores();
  ASSERT_EQ(scores.size(), request.Score()->continuations.size());
  ASSERT_EQ(scores.size(), others.size());
  EXPECT_TRUE(a.Logprobs() == b.Logprobs());
  for (size_t i = 0; i < scores.size(); ++i) {
    EXPECT_TRUE(scores[i].tokens == others[i].tokens) << "continuation " << i;
    EXPECT_EQ(scores[i].logprob, others[i].logprob);
    EXPECT_TRUE(std::isfinite(scores[i].logprob));
    EXPECT_EQ(scores[i].is_greedy, others[i].is_greedy);
  }
}

}  // namespace lssar

#endif  // LSSAR_TESTS_SUPPORT_RECORDING_SINK_H_
