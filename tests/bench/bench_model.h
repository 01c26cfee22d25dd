// A loaded model with pages of its own, stepped by hand: what model_bench times, without scheduler,
// sampler or network around it.
#ifndef LSSAR_TESTS_BENCH_BENCH_MODEL_H_
#define LSSAR_TESTS_BENCH_BENCH_MODEL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "models/checkpoint.h"
#include "models/page_pool.h"
#include "tests/bench/timed_backend.h"

namespace lssar::bench {

struct BenchModelOptions {
  std::string directory;
  std::optional<DType> weights;
  DType kv_cache_dtype = DType::kF16;
  int num_threads = 0;
  int num_sequences = 16;
  int tokens_per_sequence = 0;  // when they run together, on pages of their own
  int max_tokens = 0;           // of sequence 0 alone, which then has all the pages
  std::vector<int32_t> text;    // ids of every sequence, from position 0 on; empty: made up
};

class BenchModel {
 public:
  static absl::StatusOr<std::unique_ptr<BenchModel>> Create(const BenchModelOptions& options);

  // Computes positions [from, to) of a sequence in chunks of `chunk` rows; logits of the last row.
  // Beyond tokens_per_sequence sequence 0 takes the others' pages.
  void Prefill(int sequence, int from, int to, int chunk);
  // The token at `position` of each of the first `num_sequences` sequences, with its logits.
  // Nothing is sampled: neither does the peer.
  void DecodeStep(int num_sequences, int position);

  const ModelConfig& Config() const { return checkpoint_.config; }
  const Checkpoint& Model() const { return checkpoint_; }
  int NumThreads() const { return backend_->NumThreads(); }
  std::string Describe() const { return backend_->Describe(); }
  // V rows that could have been read and those that were, since the last call.
  AttentionStats TakeCounters();
  // What all steps since the last call took, op by op.
  OpCosts TakeCosts() { return backend_->TakeCosts(); }
  // Bytes that one cached token's K (or V) takes in all layers, scales included.
  int64_t KeyBytesPerToken() const;

 private:
  BenchModel() = default;
  int32_t TokenAt(int position) const;
  void Run();

  std::unique_ptr<TimedBackend> backend_;
  Checkpoint checkpoint_;
  PagePool pool_;
  std::vector<std::vector<int32_t>> pages_;  // by sequence
  std::vector<int32_t> text_;
  std::vector<AttentionStats> counters_;
  AttentionStats sum_;
  ForwardBatch batch_;
  std::vector<float> logits_;
};

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_BENCH_MODEL_H_
