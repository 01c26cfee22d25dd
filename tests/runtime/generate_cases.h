// Generate requests with everything that may change a text or its report, one thing a case.
#ifndef LSSAR_TESTS_RUNTIME_GENERATE_CASES_H_
#define LSSAR_TESTS_RUNTIME_GENERATE_CASES_H_

#include <functional>
#include <vector>

#include "models/attention_override.h"
#include "tests/runtime/stepped_engine.h"

namespace lssar {

struct GenerateCase {
  const char* name;
  std::function<void(Request*)> change;
};

// Everything that may change how a text is sampled, ends or is reported.
inline std::vector<GenerateCase> GenerateCases() {
  return {
      {"sampled", [](Request*) {}},
      {"greedy", [](Request* r) { r->Generate()->sampling.temperature = 0; }},
      {"filters",
       [](Request* r) {
         r->Generate()->sampling.top_k = 9;
         r->Generate()->sampling.top_p = 0.8f;
       }},
      {"penalties",
       [](Request* r) {
         r->Generate()->sampling.frequency_penalty = 0.7f;
         r->Generate()->sampling.presence_penalty = 0.4f;
         r->Generate()->sampling.repetition_penalty = 1.3f;
       }},
      {"bias",
       [](Request* r) {
         r->Generate()->sampling.logit_bias = {{7, 6.0f}, {9, 5.0f}};
       }},
      {"log-probabilities",
       [](Request* r) {
         r->Generate()->num_logprobs = 3;
         r->Generate()->num_prompt_logprobs = 2;
       }},
      {"EOS", [](Request* r) { r->Generate()->ignore_eos = false; }},
      {"stop ids",
       [](Request* r) {
         r->Generate()->stop_ids = {11, 30, 31};
       }},
      {"stop strings",
       [](Request* r) {
         r->Generate()->stop_strings = {"ab a", "\xC3\xA9", "ca"};
       }},
      {"min_tokens",
       [](Request* r) {
         r->Generate()->stop_ids = {11, 30, 31};
         r->Generate()->stop_strings = {"ab"};
         r->Generate()->min_tokens = 20;
       }},
      {"three choices",
       [](Request* r) {
         r->Generate()->num_choices = 3;
         r->Generate()->num_logprobs = 0;
       }},
      {"no prefix cache", [](Request* r) { r->use_prefix_cache = false; }},
      {"one token", [](Request* r) { r->Generate()->max_tokens = 1; }},
      {"two tokens", [](Request* r) { r->Generate()->max_tokens = 2; }},
      {"prompt of one token", [](Request* r) { r->prompt.resize(1); }},
      {"another attention",
       [](Request* r) {
         const AttentionSpec spec{.p = 3};
         r->attention = std::make_shared<AttentionOverride>(
             AttentionOverride{.layers = {spec}, .name = DescribeAttention({&spec, 1})});
       }},
  };
}

inline Request RequestOf(const GenerateCase& test_case, int salt) {
  Request request = Generate(Ids(20 + salt, salt), 40, uint64_t(salt));
  test_case.change(&request);
  return request;
}

}  // namespace lssar

#endif  // LSSAR_TESTS_RUNTIME_GENERATE_CASES_H_
