#include "tests/models/model_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "models/page_pool.h"

namespace lssar::testing {

ModelRunner::ModelRunner(LanguageModel* model, Backend* backend, DType kv_cache_dtype,
                         int page_size, int num_tokens)
    : model_(model) {
  // The last page of every sequence may be partly empty.
  constexpr int kMaxNumSeqs = 4;
  absl::StatusOr<PagePool> pool = MakePagePool(LayoutOf(model->Config(), kv_cache_dtype, page_size),
                                               num_tokens + kMaxNumSeqs * page_size, backend);
  LSSAR_CHECK(pool.ok());
  k_ = std::move(pool->k);
  v_ = std::move(pool->v);
  kv_ = pool->view;
  free_pages_ = std::move(pool->pages);
  std::mt19937 rng(3);
  std::shuffle(free_pages_.begin(), free_pages_.end(), rng);
}

int ModelRunner::Add(std::vector<int32_t> tokens) {
  const int num_pages = kv_.layout.PagesFor(int(tokens.size()));
  LSSAR_CHECK(num_pages <= int(free_pages_.size()));
  Sequence sequence{.tokens = std::move(tokens), .pages = {}, .num_done = 0, .logits = {}};
  sequence.pages.assign(free_pages_.end() - num_pages, free_pages_.end());
  free_pages_.resize(free_pages_.size() - size_t(num_pages));
  sequences_.push_back(std::move(sequence));
  return int(sequences_.size()) - 1;
}

void ModelRunner::Step(const std::vector<int>& num_tokens) {
  ForwardBatch batch;
  std::vector<Sequence*> row_sequences;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    Sequence& sequence = sequences_[s];
    if (num_tokens[s] == 0) continue;
    batch.sequences.push_back({.first_row = int(batch.token_ids.size()),
                               .num_rows = num_tokens[s],
                               .first_position = sequence.num_done,
                               .pages = sequence.pages});
    batch.rope_bases.push_back(RopeBase(model_->Config(), int(sequence.tokens.size())));
    for (int i = 0; i < num_tokens[s]; ++i) {
      batch.logits_indices.push_back(int(batch.token_ids.size()));
      batch.logits_sequences.push_back(int(batch.sequences.size()) - 1);
      batch.token_ids.push_back(sequence.tokens[size_t(sequence.num_done + i)]);
      row_sequences.push_back(&sequence);
    }
    sequence.num_done += num_tokens[s];
  }
  LSSAR_CHECK(model_->Forward(batch, kv_, nullptr).ok());
  const auto vocab = std::ptrdiff_t(model_->Config().vocab_size);
  std::vector<float> logits(row_sequences.size() * size_t(vocab));
  LSSAR_CHECK(model_->CopyLogits(batch, 0, int(row_sequences.size()), logits).ok());
  auto row = logits.cbegin();
  for (Sequence* sequence : row_sequences) {
    sequence->logits.insert(sequence->logits.end(), row, row + vocab);
    row += vocab;
  }
}

void ModelRunner::RunAll(int max_tokens, std::mt19937* rng) {
  const auto left = [](const Sequence& s) { return int(s.tokens.size()) - s.num_done; };
  while (true) {
    std::vector<int> num_tokens;
    bool is_done = true;
    for (const Sequence& sequence : sequences_) {
      const int drawn =
          rng == nullptr ? max_tokens : std::uniform_int_distribution<int>(0, max_tokens)(*rng);
      num_tokens.push_back(std::min(drawn, left(sequence)));
      is_done &= left(sequence) == 0;
    }
    if (is_done) return;
    if (std::accumulate(num_tokens.begin(), num_tokens.end(), 0) > 0) Step(num_tokens);
  }
}

}  // namespace lssar::testing
