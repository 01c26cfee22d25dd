// Looks at the attention of chosen rows of a prompt.
#ifndef LSSAR_RUNTIME_CAPTURE_TASK_H_
#define LSSAR_RUNTIME_CAPTURE_TASK_H_

#include <vector>

#include "runtime/sequence_task.h"

namespace lssar {

// The rows before the first wanted one may come from the prefix cache; those behind the last are
// never computed. A wanted row's logits are asked for to hear whether they are finite: a NaN
// anywhere in the row's attention reaches them.
class CaptureTask : public SequenceTask, private WeightsSink {
 public:
  // `params` must outlive the task.
  explicit CaptureTask(const CaptureParams* params);

  bool WantsLogits(const Sequence& sequence, int position) const override;
  int FirstWantedRow(const Sequence& sequence) const override;
  bool Streams() const override { return false; }
  const HeadCapture* Capture() const override { return &heads_; }
  int MaxRows(const Sequence& sequence) const override;
  SampleRequest Ask(const Sequence& sequence, int position) const override;
  void Take(int position, SampleResult* row) override;
  void Advance(Sequence*) override {}
  void Publish(OutputSink* sink) override;
  bool IsDone() const override { return num_taken_ == params_->rows.size(); }
  int NumGenerated() const override { return 0; }

 private:
  void OnWeights(int layer, int head, int position, std::span<const double> weights) override;

  const CaptureParams* const params_;
  const HeadCapture heads_;
  size_t num_taken_ = 0;             // of params_->rows
  std::vector<RowWeights> weights_;  // of the step
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_CAPTURE_TASK_H_
