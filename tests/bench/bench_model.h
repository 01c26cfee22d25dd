// A loaded model with its own pages, stepped by hand: what model_bench times, without scheduler,
// sampler or network.
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
  std::optional<DType> dtype;  // of the weights
  DType kv_cache_dtype = DType::kF16;
  int num_threads = 0;
  int num_sequences = 16;
  int tokens_per_sequence = 0;  // when all sequences run, each on its own pages
  int max_tokens = 0;           // of sequence 0 when it runs alone, on all pages
  std::vector<int32_t> text;    // ids of every sequence, from position 0 on; empty: synthetic
};

class BenchModel {
 public:
  static absl::StatusOr<std::unique_ptr<BenchModel>> Create(const BenchModelOptions& options);

  // Computes positions [from, to) of a sequence in chunks of `chunk_size` tokens, and the logits of
  // the last one. Beyond tokens_per_sequence, sequence 0 overwrites the others' pages.
  void Prefill(int sequence, int from, int to, int chunk_size);
  // Fills positions [0, to) of a sequence with random keys and values of unit length: a cache for
  // DecodeStep that takes no prefill.
  void FillRandom(int sequence, int to);
  // Computes the token at `position` of each of the first `num_sequences` sequences, with logits.
  // Samples nothing, as the peer does not.
  void DecodeStep(int num_sequences, int position);
  // Computes `num_rows` tokens of sequence 0 from `position` on, each with its logits, in one step:
  // what verifying a draft costs.
  void VerifyStep(int num_rows, int position);

  const ModelConfig& Config() const { return checkpoint_.config; }
  const Checkpoint& Model() const { return checkpoint_; }
  int NumThreads() const { return backend_->NumThreads(); }
  std::string Describe() const { return backend_->Describe(); }
  // Attention statistics of the steps since the last call.
  AttentionStats TakeStats();
  // Time and bytes of each op in the steps since the last call.
  OpCosts TakeCosts() { return backend_->TakeCosts(); }
  // Bytes of a token in one layer and head of the pools of K and of V, scales included.
  double KeyRowBytes() const;
  double ValueRowBytes() const;

 private:
  BenchModel() = default;
  int32_t TokenAt(int position) const;
  void RunStep();  // batch_
  // Copies the batch's logits, waits for the step and adds up its statistics.
  absl::Status FinishStep(const ForwardBatch& batch);

  std::unique_ptr<TimedBackend> backend_;
  Checkpoint checkpoint_;
  PagePool pool_;
  std::vector<std::vector<int32_t>> pages_;  // by sequence
  std::vector<int32_t> text_;
  std::vector<AttentionStats> step_stats_;  // by sequence of the batch
  AttentionStats stats_;
  ForwardBatch batch_;
  std::vector<float> logits_;
};

}  // namespace lssar::bench

#endif  // LSSAR_TESTS_BENCH_BENCH_MODEL_H_
