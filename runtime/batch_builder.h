// Plan -> the model's input.
#ifndef LSSAR_RUNTIME_BATCH_BUILDER_H_
#define LSSAR_RUNTIME_BATCH_BUILDER_H_

#include <span>

#include "models/language_model.h"
#include "runtime/scheduler.h"
#include "runtime/sequence.h"

namespace lssar {

// Writes `batch` anew: element i of its sequences is entry i of the plan. Its page spans point into
// the sequences, which must stay as they are until the step is over.
// Requires  `plan` is over `running`
void BuildForwardBatch(const StepPlan& plan, std::span<Sequence* const> running,
                       ForwardBatch* batch);

}  // namespace lssar

#endif  // LSSAR_RUNTIME_BATCH_BUILDER_H_
