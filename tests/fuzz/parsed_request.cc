#include "tests/fuzz/parsed_request.h"

#include <cmath>
#include <span>

#include "kernels/attention_math.h"
#include "models/attention_override.h"
#include "runtime/limits.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/server/zoo_checkpoint.h"

namespace lssar {
namespace {

void CheckIds(std::span<const int32_t> ids) {
  for (const int32_t id : ids) {
    LSSAR_CHECK(id >= 0 && id < FuzzContext().checkpoint->config.vocab_size);
  }
}

void CheckAscending(std::span<const int32_t> values, int end) {
  LSSAR_CHECK(!values.empty());
  for (size_t i = 0; i < values.size(); ++i) {
    LSSAR_CHECK(values[i] >= 0 && values[i] < end);
    LSSAR_CHECK(i == 0 || values[i - 1] < values[i]);
  }
}

void CheckSampling(const SamplingParams& sampling) {
  LSSAR_CHECK(std::isfinite(sampling.temperature) && sampling.temperature >= 0);
  LSSAR_CHECK(sampling.top_k >= 0);
  LSSAR_CHECK(sampling.top_p >= 0 && sampling.top_p <= 1);
  LSSAR_CHECK(sampling.min_p >= 0 && sampling.min_p <= 1);
  LSSAR_CHECK(std::isfinite(sampling.repetition_penalty) && sampling.repetition_penalty > 0);
  LSSAR_CHECK(std::abs(sampling.presence_penalty) <= 2);
  LSSAR_CHECK(std::abs(sampling.frequency_penalty) <= 2);
  for (const auto& [id, bias] : sampling.logit_bias) {
    CheckIds({&id, 1});
    LSSAR_CHECK(!std::isnan(bias));
  }
  CheckIds(sampling.allowed_ids);
  CheckIds(sampling.banned_ids);
}

}  // namespace

const ParseContext& FuzzContext() {
  static const Checkpoint checkpoint = ZooCheckpointWithoutWeights();
  static const ParseContext context = {.checkpoint = &checkpoint,
                                       .max_model_len = kFuzzMaxModelLen,
                                       .default_seed = 7,
                                       .allow_attention_override = true};
  return context;
}

void CheckRequest(Request request) {
  const ModelConfig& config = FuzzContext().checkpoint->config;
  if (FaultIsPlanted() && request.Generate() && request.Generate()->max_tokens >= 6 &&
      request.Generate()->max_tokens <= 12) {
    request.prompt.back() = config.vocab_size;
  }
  LSSAR_CHECK(!request.prompt.empty() && request.prompt.size() <= size_t(kFuzzMaxModelLen));
  LSSAR_CHECK(request.priority >= -10 && request.priority <= 10);
  CheckIds(request.prompt);
  if (request.attention) {
    LSSAR_CHECK(request.attention->layers.size() == size_t(config.num_hidden_layers));
    LSSAR_CHECK(!IsSameAttention(request.attention->layers, config.attention));
    for (const AttentionSpec& spec : request.attention->layers) {
      LSSAR_CHECK(CheckAttentionSpec(spec).ok());
    }
    LSSAR_CHECK(request.attention->name == DescribeAttention(request.attention->layers));
  }
  const auto num_prompt = int64_t(request.prompt.size());
  if (request.Generate()) {
    const GenerateParams& params = *request.Generate();
    CheckSampling(params.sampling);
    LSSAR_CHECK(params.max_tokens >= 1 && num_prompt + params.max_tokens <= kFuzzMaxModelLen);
    LSSAR_CHECK(params.min_tokens >= 0 && params.min_tokens <= params.max_tokens);
    LSSAR_CHECK(params.num_choices >= 1);
    for (const std::string& stop : params.stop_strings) LSSAR_CHECK(!stop.empty());
    CheckIds(params.stop_ids);
    LSSAR_CHECK(params.num_logprobs >= -1 && params.num_prompt_logprobs >= -1);
  }
  if (request.Score()) {
    LSSAR_CHECK(!request.Score()->continuations.empty());
    for (const auto& continuation : request.Score()->continuations) {
      LSSAR_CHECK(!continuation.empty());
      LSSAR_CHECK(num_prompt + int64_t(continuation.size()) <= kFuzzMaxModelLen);
      CheckIds(continuation);
    }
  }
  if (request.Capture()) {
    CheckAscending(request.Capture()->layers, config.num_hidden_layers);
    CheckAscending(request.Capture()->heads, config.num_attention_heads);
    CheckAscending(request.Capture()->rows, int(request.prompt.size()));
    LSSAR_CHECK(request.Capture()->top_k >= 0);
  }
}

}  // namespace lssar
