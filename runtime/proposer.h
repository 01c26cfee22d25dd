// Makes drafts of the tokens that may follow sequences.
#ifndef LSSAR_RUNTIME_PROPOSER_H_
#define LSSAR_RUNTIME_PROPOSER_H_

#include <span>

namespace lssar {

struct Sequence;
struct SequenceGroup;

// A sequence with one pending token that may get a draft.
struct DraftRequest {
  const SequenceGroup* group = nullptr;
  Sequence* sequence = nullptr;
  int num_tokens = 0;  // at most, >= 1
};

// Threads   the engine's thread only
class Proposer {
 public:
  virtual ~Proposer() = default;

  // Called in every step, before Propose, which is not called in all of them. `num_decodes`: the
  // sequences of the step that have one pending token.
  virtual void BeginStep(int /*num_decodes*/) {}
  // Appends at most num_tokens ids of the vocabulary to Sequence::draft of each sequence. A wrong
  // id costs time and nothing else. False: it did other work besides, so the time that it took does
  // not show what a draft costs.
  virtual bool Propose(std::span<const DraftRequest> requests) = 0;
  // The first `num_accepted` tokens of sequence->draft were sampled, and the sequence has advanced.
  virtual void OnVerified(int /*num_accepted*/, Sequence* /*sequence*/) {}
  // The sequence ended or was preempted: frees what is kept of it.
  virtual void Free(Sequence* /*sequence*/) {}
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_PROPOSER_H_
