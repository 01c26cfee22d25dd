// Makes drafts of the tokens that may follow a sequence.
#ifndef LSSAR_RUNTIME_DRAFTER_H_
#define LSSAR_RUNTIME_DRAFTER_H_

namespace lssar {

struct Sequence;

// Threads   the engine's thread only
class Drafter {
 public:
  virtual ~Drafter() = default;
  // Appends at most `num_draft` token ids of the vocabulary to sequence->draft. A wrong id costs
  // time and nothing else.
  // Requires  the sequence has one pending token
  virtual void Propose(int num_draft, Sequence* sequence) = 0;
};

}  // namespace lssar

#endif  // LSSAR_RUNTIME_DRAFTER_H_
