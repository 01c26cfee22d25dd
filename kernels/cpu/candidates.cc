#include "kernels/cpu/candidates.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "kernels/cpu/sample_weights.h"
#include "kernels/sample_math.h"

namespace lssar {
namespace {

// The digits of a key, the highest first.
struct Digit {
  int shift;
  uint32_t mask;
};
constexpr Digit kDigits[] = {{21, 0x7FF}, {10, 0x7FF}, {0, 0x3FF}};
constexpr size_t kNumBins = 0x800;

constexpr size_t Padded(size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

}  // namespace

size_t Candidates::NumBytes(size_t vocab) {
  return Padded(vocab * sizeof(float)) + Padded(vocab * sizeof(int32_t)) +
         Padded(vocab * sizeof(uint64_t)) + kNumBins * sizeof(uint64_t);
}

Candidates::Candidates(std::span<const float> logits, void* memory)
    : vocab_(logits.size()), count_(logits.size()) {
  auto* at = static_cast<unsigned char*>(memory);
  scores_ = reinterpret_cast<float*>(at);
  at += Padded(vocab_ * sizeof(float));
  ids_ = reinterpret_cast<int32_t*>(at);
  at += Padded(vocab_ * sizeof(int32_t));
  weights_ = reinterpret_cast<uint64_t*>(at);
  at += Padded(vocab_ * sizeof(uint64_t));
  bins_ = reinterpret_cast<uint64_t*>(at);
  std::copy(logits.begin(), logits.end(), scores_);
}

void Candidates::Adjust(const SampleRequest& row) {
  const SamplingParams& params = *row.params;
  const auto holds = [this](int32_t id) { return size_t(id) < vocab_; };  // else: padding
  for (size_t id = 0; id < vocab_ && !row.mask.empty(); ++id) {
    if (!MaskHas(row.mask, id)) scores_[id] = kNotAllowed;
  }
  for (const int32_t id : params.banned_ids) {
    if (holds(id)) scores_[id] = kNotAllowed;
  }
  if (!params.allowed_ids.empty()) {
    // The memory of the weights is free here: it holds the allowed scores.
    auto* const allowed = reinterpret_cast<float*>(weights_);
    std::fill_n(allowed, vocab_, kNotAllowed);
    for (const int32_t id : params.allowed_ids) {
      if (holds(id)) allowed[id] = scores_[id];
    }
    std::copy_n(allowed, vocab_, scores_);
  }
  for (const auto& [id, bias] : params.logit_bias) {
    if (holds(id)) scores_[id] = Biased(scores_[id], bias);
  }
  if (!params.HasPenalties()) return;
  const Penalties penalties{.repetition = double{params.repetition_penalty},
                            .presence = double{params.presence_penalty},
                            .frequency = double{params.frequency_penalty}};
  for (const TokenCount& count : row.counts) {
    if (!holds(count.id)) continue;
    scores_[count.id] = Penalised(scores_[count.id], count.num_in_output, penalties);
  }
}

void Candidates::Filter(const SamplingParams& params, float best) {
  std::iota(ids_, ids_ + count_, 0);
  if (params.top_k > 0 && size_t(params.top_k) < count_) {
    RetainPrefix(FindPrefix(nullptr, uint64_t(params.top_k)));
  }
  WeighScores({scores_, count_}, best, WeightRate(params.temperature), weights_);
  if (params.top_p < 1)
    RetainPrefix(FindPrefix(weights_, WantedWeight(params.top_p, TotalWeight())));
  if (params.min_p > 0) {
    const uint64_t least = LeastWeight(params.min_p);
    Retain([this, least](size_t i) { return weights_[i] >= least; });
  }
}

// Radix search by digit: finds the bin in which the sum of amounts reaches `wanted`, among the keys
// that start with the digits found so far.
Candidates::RankPrefix Candidates::FindPrefix(const uint64_t* amounts, uint64_t wanted) {
  uint32_t key = 0, known = 0;
  for (const Digit& digit : kDigits) {
    std::fill_n(bins_, kNumBins, 0);
    for (size_t i = 0; i < count_; ++i) {
      const uint32_t rank = RankKey(scores_[i]);
      if (((rank ^ key) & known) != 0) continue;
      bins_[(rank >> digit.shift) & digit.mask] += amounts == nullptr ? 1 : amounts[i];
    }
    uint32_t bin = digit.mask;
    for (; bins_[bin] < wanted; --bin) {
      LSSAR_CHECK(bin > 0);
      wanted -= bins_[bin];
    }
    key |= bin << digit.shift;
    known |= digit.mask << digit.shift;
  }
  for (size_t i = 0;; ++i) {
    LSSAR_CHECK(i < count_);
    if (RankKey(scores_[i]) != key) continue;
    const uint64_t amount = amounts == nullptr ? 1 : amounts[i];
    if (wanted <= amount) return {.key = key, .id = ids_[i]};
    wanted -= amount;
  }
}

template <typename Predicate>
void Candidates::Retain(Predicate predicate) {
  size_t count = 0;
  for (size_t i = 0; i < count_; ++i) {
    if (!predicate(i)) continue;
    scores_[count] = scores_[i];
    ids_[count] = ids_[i];
    weights_[count] = weights_[i];
    ++count;
  }
  count_ = count;
}

void Candidates::RetainPrefix(const RankPrefix& prefix) {
  Retain([this, prefix](size_t i) {
    const uint32_t rank = RankKey(scores_[i]);
    return rank > prefix.key || (rank == prefix.key && ids_[i] <= prefix.id);
  });
}

uint64_t Candidates::TotalWeight() const {
  return std::accumulate(weights_, weights_ + count_, uint64_t{0});
}

int32_t Candidates::Pick(uint64_t draw) const {
  const uint64_t target = ScaledDraw(draw, TotalWeight());
  uint64_t sum = 0;
  for (size_t i = 0;; ++i) {
    LSSAR_CHECK(i < count_);
    sum += weights_[i];
    if (sum > target) return ids_[i];
  }
}

}  // namespace lssar
