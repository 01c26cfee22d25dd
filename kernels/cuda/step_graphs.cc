#include "kernels/cuda/step_graphs.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"

namespace lssar {

void StepGraphs::Run(const StepArgs& args, absl::FunctionRef<void()> ops) {
  const std::optional<DecodeBucket> bucket =
      DecodeBucketFor(*args.rows, args.max_rows, context_.Device().has_clusters);
  if (!bucket || !context_.IsOk()) return ops();
  if (!Enter(args, *bucket)) return;

  Entry& entry = Find(KeyOf(args, *bucket));
  StepShape shape{
      .num_rows = args.rows->num_rows, .padded_rows = bucket->num_rows, .ids = tables_.BucketIds()};
  context_.SetShape(&shape);
  if (entry.has_run && entry.graph == nullptr && !entry.is_refused) Record(entry, ops);
  if (entry.graph != nullptr) {
    shape.num_counted_heads = entry.num_counted_heads;
    context_.Check(context_.Driver().LaunchGraph(entry.graph), "a decode step");
  } else {
    shape.num_counted_heads = 0;
    ops();
    entry.has_run = context_.IsOk();  // or kernels may not be loaded, workspaces not reserved
  }
  context_.SetShape(nullptr);
  tables_.LeaveBucket();
  if (args.counters != nullptr) {
    stats_.AddRows(*args.rows, shape.num_counted_heads);
  }
}

void StepGraphs::Prepare(const StepArgs& args, int max_rows, int max_keys,
                         absl::FunctionRef<void()> ops) {
  LSSAR_CHECK(args.rows->num_rows == 1);
  int last_rows = 0;
  for (const DecodeBucket& bucket :
       DecodeBuckets(max_rows, max_keys, args.max_rows, context_.Device().has_clusters)) {
    if (!context_.IsOk() || !Enter(args, bucket)) return;
    StepShape shape{.num_rows = 1, .padded_rows = bucket.num_rows, .ids = tables_.BucketIds()};
    context_.SetShape(&shape);
    if (std::exchange(last_rows, bucket.num_rows) != bucket.num_rows) ops();
    shape.num_counted_heads = 0;
    Entry& entry = Find(KeyOf(args, bucket));
    entry.has_run = context_.IsOk();
    if (entry.graph == nullptr && entry.has_run) Record(entry, ops);
    context_.SetShape(nullptr);
    tables_.LeaveBucket();
  }
}

bool StepGraphs::Enter(const StepArgs& args, const DecodeBucket& bucket) {
  if (args.counters != nullptr && !stats_.Begin(args.counters, args.rows->sequences.size())) {
    return false;
  }
  return tables_.EnterBucket(args, bucket);
}

StepGraphs::Key StepGraphs::KeyOf(const StepArgs& args, const DecodeBucket& bucket) {
  return {.owner = args.owner,
          .k_pool = args.kv.k,
          .v_pool = args.kv.v,
          .counts = args.counters != nullptr,
          .bucket = bucket};
}

StepGraphs::Entry& StepGraphs::Find(const Key& key) {
  // Graphs may hold addresses of memory that has been freed.
  const int64_t num_freed = context_.Driver().NumFreed();
  if (num_freed != num_freed_) DropAll();
  num_freed_ = num_freed;

  ++num_steps_;
  auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (found == entries_.end()) {
    if (entries_.size() == max_graphs_) {
      found = std::min_element(
          entries_.begin(), entries_.end(),
          [](const Entry& a, const Entry& b) { return a.last_step < b.last_step; });
      Drop(*found);
    } else {
      found = entries_.emplace(entries_.end());
    }
    found->key = key;
  }
  found->last_step = num_steps_;
  return *found;
}

// A step that cannot be recorded, most likely for lack of memory, runs its ops: equal bits, slower.
void StepGraphs::Record(Entry& entry, absl::FunctionRef<void()> ops) {
  CudaDriver& driver = context_.Driver();
  entry.is_refused = true;
  if (driver.BeginCapture() != kCudaSuccess) return;
  context_.SetCapturing(true);
  ops();
  context_.SetCapturing(false);
  void* graph = nullptr;
  const bool is_recorded = driver.EndCapture(graph) == kCudaSuccess;
  if (!context_.IsOk()) {
    // An op failed. If it also fails outside the capture, that run reports the error.
    context_.TakeStatus().IgnoreError();
    if (is_recorded) driver.DestroyGraph(graph);
    return;
  }
  if (!is_recorded) return;
  entry.graph = graph;
  entry.num_counted_heads = context_.Shape()->num_counted_heads;
  entry.is_refused = false;
}

void StepGraphs::Drop(Entry& entry) {
  if (entry.graph != nullptr) context_.Driver().DestroyGraph(entry.graph);
  entry = {};
}

void StepGraphs::DropAll() {
  for (Entry& entry : entries_) Drop(entry);
  entries_.clear();
}

}  // namespace lssar
