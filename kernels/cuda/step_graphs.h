// Decode steps as CUDA graphs: one launch for about ten kernels a layer.
//
// A step that fits a bucket (DecodeBucket in launch_plan.h) runs with the bucket's number of rows;
// the tables mark the extra rows as padding. What differs between steps of a bucket (pages,
// positions, ids) is copied to fixed addresses first, so that the recorded kernels can be replayed.
// The bits of a step do not depend on its bucket.
#ifndef LSSAR_KERNELS_CUDA_STEP_GRAPHS_H_
#define LSSAR_KERNELS_CUDA_STEP_GRAPHS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "kernels/backend.h"
#include "kernels/cuda/attention_stats.h"
#include "kernels/cuda/cuda_context.h"
#include "kernels/cuda/device_tables.h"
#include "kernels/cuda/launch_plan.h"

namespace lssar {

// Graphs stored, at most: those of one model's buckets (11 numbers of rows, 9 of splits) and some.
// The least recently used one is dropped first.
inline constexpr size_t kMaxStepGraphs = 128;

class StepGraphs {
 public:
  StepGraphs(CudaContext& context, DeviceTables& tables, AttentionStatsBuffer& stats,
             size_t max_graphs)
      : context_(context), tables_(tables), stats_(stats), max_graphs_(max_graphs) {}
  ~StepGraphs() { DropAll(); }
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Backend::RunStep. Steps that are not pure decode run their ops. If Prepare has not
  // recorded a bucket, its first step runs its ops, which reserve their workspaces; the second is
  // recorded; later ones are replayed.
  // Requires  statistics that can count for args.counters
  void Run(const StepArgs& args, absl::FunctionRef<void()> ops);

  // Backend::PrepareSteps: records every bucket of such steps. The ops run once for each number of
  // rows, so that kernels are loaded and workspaces reserved.
  // Requires  as Run; one row
  void Prepare(const StepArgs& args, int max_rows, int max_keys, absl::FunctionRef<void()> ops);

 private:
  // Equal in all steps that one graph replays.
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
    int num_counted_heads = 0;
    bool has_run = false;     // its ops ran once in this shape
    bool is_refused = false;  // recording failed
    int64_t last_step = 0;
  };

  static Key KeyOf(const StepArgs& args, const DecodeBucket& bucket);
  Entry& Find(const Key& key);
  // Starts counting and makes the step's tables. False: an error.
  bool Enter(const StepArgs& args, const DecodeBucket& bucket);
  void Record(Entry& entry, absl::FunctionRef<void()> ops);
  void Drop(Entry& entry);
  void DropAll();

  CudaContext& context_;
  DeviceTables& tables_;
  AttentionStatsBuffer& stats_;
  const size_t max_graphs_;
  std::vector<Entry> entries_;
  int64_t num_steps_ = 0;
  int64_t num_freed_ = 0;  // CudaDriver::NumFreed when the entries were made
};

}  // namespace lssar

#endif  // LSSAR_KERNELS_CUDA_STEP_GRAPHS_H_
