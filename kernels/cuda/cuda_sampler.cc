#include "kernels/cuda/cuda_sampler.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "kernels/philox.h"
#include "kernels/sample_math.h"

namespace lssar {
namespace {

// Results of a call: rows, then the top log-probabilities of each row.
size_t ResultBytes(size_t num_rows, size_t max_top) {
  return num_rows * (sizeof(CudaSampledRow) + max_top * sizeof(CudaTopLogprob));
}

}  // namespace

CudaSampleIds CudaSampler::AddIds(std::span<const int32_t> ids) {
  const int32_t first = int32_t(ids_.size());
  for (const int32_t id : ids) ids_.push_back({.id = id});
  return {.first = first, .count = int32_t(ids.size())};
}

CudaSampleIds CudaSampler::AddMask(std::span<const uint32_t> mask) {
  const int32_t first = int32_t(ids_.size());
  for (size_t i = 0; i < mask.size(); i += 2) {
    ids_.push_back(
        {.id = std::bit_cast<int32_t>(mask[i]), .value = i + 1 < mask.size() ? mask[i + 1] : 0});
  }
  return {.first = first, .count = int32_t(ids_.size()) - first};
}

CudaSampleRow CudaSampler::DescribeDraw(const SampleRequest& row, int num_adjusted) {
  const SamplingParams& params = *row.params;
  CudaSampleRow to{.draw = DrawFor(params.seed, uint32_t(row.choice), uint64_t(row.position)),
                   .least_weight = LeastWeight(params.min_p),
                   .rate = params.temperature == 0 ? 0 : WeightRate(params.temperature),
                   .top_p = params.top_p,
                   .top_k = params.top_k,
                   .banned = {},
                   .allowed = {},
                   .biases = {},
                   .counts = {},
                   .mask = {}};
  if (!params.AdjustsLogits() && row.mask.empty()) return to;
  to.scores_row = num_adjusted;
  to.mask = AddMask(row.mask);
  to.banned = AddIds(params.banned_ids);
  to.allowed = AddIds(params.allowed_ids);
  to.biases.first = int32_t(ids_.size());
  for (const auto& [id, bias] : params.logit_bias) {
    ids_.push_back({.id = id, .value = std::bit_cast<uint32_t>(bias)});
  }
  to.counts.first = int32_t(ids_.size());
  to.biases.count = to.counts.first - to.biases.first;
  if (!params.HasPenalties()) return to;
  to.repetition_penalty = params.repetition_penalty;
  to.presence_penalty = params.presence_penalty;
  to.frequency_penalty = params.frequency_penalty;
  for (const TokenCount& count : row.counts) {
    ids_.push_back({.id = count.id, .value = uint32_t(count.num_in_output)});
  }
  to.counts.count = int32_t(row.counts.size());
  return to;
}

int CudaSampler::DescribeRows(const SampleArgs& args) {
  rows_.clear();
  ids_.clear();
  int num_adjusted = 0;
  for (const SampleRequest& row : args.rows) {
    LSSAR_CHECK(row.target < args.vocab && row.num_logprobs <= args.vocab);
    LSSAR_CHECK(row.num_logprobs <= kMaxTopLogprobs);
    rows_.push_back(
        row.target >= 0
            ? CudaSampleRow{.banned = {}, .allowed = {}, .biases = {}, .counts = {}, .mask = {}}
            : DescribeDraw(row, num_adjusted));
    rows_.back().target = row.target;
    rows_.back().num_logprobs = row.num_logprobs;
    num_adjusted += rows_.back().scores_row >= 0;
  }
  return num_adjusted;
}

unsigned char* CudaSampler::CopyRows() {
  const size_t rows_bytes = rows_.size() * sizeof(CudaSampleRow);
  const size_t ids_bytes = ids_.size() * sizeof(CudaSampleId);
  auto* const to = context_.Reserve<unsigned char>(rows_memory_, rows_bytes + ids_bytes);
  if (to == nullptr || !context_.CopyIn(to, rows_.data(), rows_bytes, "copying sample requests")) {
    return nullptr;
  }
  const bool copied = ids_.empty() || context_.CopyIn(to + rows_bytes, ids_.data(), ids_bytes,
                                                      "copying ids of sample requests");
  return copied ? to : nullptr;
}

void CudaSampler::Sample(const SampleArgs& args) {
  const size_t num_rows = args.rows.size();
  LSSAR_CHECK(args.out.size() == num_rows && args.vocab >= 1 && args.vocab <= kMaxSampleVocab);
  LSSAR_CHECK(args.NumIds() <= args.vocab);
  if (!context_.IsOk() || num_rows == 0) return;
  const size_t num_adjusted = size_t(DescribeRows(args));
  size_t max_top = 0;
  for (const SampleRequest& row : args.rows) {
    max_top = std::max(max_top, size_t(std::max(0, row.num_logprobs)));
  }
  if (results_.size() == calls_.size()) {
    results_.push_back(std::make_unique<PinnedMemory>(context_.Driver()));
  }
  const size_t result_bytes = ResultBytes(num_rows, max_top);
  absl::StatusOr<void*> results = results_[calls_.size()]->Reserve(result_bytes);
  if (!results.ok()) return context_.RecordError(results.status());
  const size_t scores_bytes = num_adjusted * size_t(args.vocab) * sizeof(float);
  float* const scores =
      num_adjusted == 0 ? nullptr : context_.Reserve<float>(scores_memory_, scores_bytes);
  auto* const sampled = context_.Reserve<unsigned char>(sampled_memory_, result_bytes);
  unsigned char* const rows = CopyRows();
  if ((scores == nullptr && num_adjusted > 0) || sampled == nullptr || rows == nullptr) return;

  const int started = context_.Kernels().sample(
      {.logits = args.logits,
       .vocab = args.vocab,
       .num_ids = args.NumIds(),
       .num_rows = int(num_rows),
       .rows = reinterpret_cast<const CudaSampleRow*>(rows),
       .ids = reinterpret_cast<const CudaSampleId*>(rows + num_rows * sizeof(CudaSampleRow)),
       .scores = scores,
       .sampled = reinterpret_cast<CudaSampledRow*>(sampled),
       .top = reinterpret_cast<CudaTopLogprob*>(sampled + num_rows * sizeof(CudaSampledRow)),
       .max_top = int(max_top)},
      context_.Stream());
  if (!context_.Check(started, "sampling")) return;
  if (!context_.Check(context_.Driver().CopyOutAsync(*results, sampled, result_bytes),
                      "copying sample results")) {
    return;
  }
  calls_.push_back({.out = args.out, .max_top = max_top});
}

void CudaSampler::Unpack(const Call& call, const void* results) {
  const auto* const rows = static_cast<const CudaSampledRow*>(results);
  const auto* top = reinterpret_cast<const CudaTopLogprob*>(rows + call.out.size());
  for (size_t i = 0; i < call.out.size(); ++i, top += call.max_top) {
    SampleResult& out = call.out[i];
    out.id = rows[i].id;
    out.finite = rows[i].finite != 0;
    out.is_best = rows[i].is_best != 0;
    out.logprob = rows[i].logprob;
    out.top.clear();
    for (uint32_t n = 0; n < rows[i].num_top; ++n) {
      out.top.push_back({.id = top[n].id, .logprob = top[n].logprob});
    }
  }
}

void CudaSampler::Publish() {
  for (size_t i = 0; i < calls_.size() && context_.IsOk(); ++i) {
    Unpack(calls_[i], results_[i]->Address());
  }
  calls_.clear();
}

}  // namespace lssar
