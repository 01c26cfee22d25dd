// Decode steps as CUDA graphs: some ten kernels a layer, started by one call.
//
// A step that fits a bucket (step_plan.h) runs in the bucket's shape: rows up to the bucket's
// count, those past the step's own marked as none in the tables. What differs between such steps
// (pages, positions, ids) goes to fixed addresses before; so the kernels of one step are those of
// the next, and are recorded once. A step's bits do not depend on its bucket.
#ifndef LSSAR_KERNELS_CUDA_STEP_GRAPHS_H_
#define LSSAR_KERNELS_CUDA_STEP_GRAPHS_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_stats.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/step_plan.h"
#include "kernels/cuda/step_tables.h"

namespace lssar {

// At most this many are kept; the least recently used goes.
inline constexpr int kMaxStepGraphs = 32;

class StepGraphs {
 public:
  StepGraphs(CudaContext& context, StepTables& tables, AttentionStatsBuffer& counts)
      : context_(context), tables_(tables), counts_(counts) {}
  ~StepGraphs() { DropAll(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Backend::RunStep. The first step of a bucket runs its ops, which find and keep their
  // workspaces; the second is recorded; the others are replayed. Others than decode steps run their
  // ops. Requires  counts that are free for args.counters
  void Run(const StepArgs& args, absl::FunctionRef<void()> ops);

 private:
  // What is the same in all steps that one graph stands for.
  struct Key {
    const void* owner = nullptr;
    const void* k_pool = nullptr;
    const void* v_pool = nullptr;
    bool counts = false;
    DecodeBucket bucket;
    bool operator==(const Key&) const = default;
  };
  struct Entry {
    Key key;
    void* graph = nullptr;
    int num_counted_ops = 0;
    bool has_run = false;     // its ops, in this shape
    bool is_refused = false;  // it could not be recorded
    int64_t last_step = 0;
  };

  Entry& Find(const Key& key);
  void Record(Entry& entry, absl::FunctionRef<void()> ops);
  void Drop(Entry& entry);
  void DropAll();

  CudaContext& context_;
  StepTables& tables_;
  AttentionStatsBuffer& counts_;
  std::vector<Entry> entries_;
  int64_t num_steps_ = 0;
  int64_t num_freed_ = 0;  // of the driver, when the entries were made
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_STEP_GRAPHS_H_
