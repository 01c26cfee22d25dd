// What the engine computes, step by step: generate and score requests alone and in batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/sample.h"
#include "runtime/token_counts.h"
#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

// The output by definition of the fake model and of sampling, without pages, batches or an engine.
std::vector<int32_t> Oracle(const Request& request, double rope_base) {
  auto hash = std::bit_cast<uint64_t>(rope_base);
  TokenCounts counts;
  counts.AddPrompt(request.prompt);
  for (const int32_t id : request.prompt) hash = FakeHash(hash, uint64_t(id));
  std::vector<int32_t> ids;
  while (std::ssize(ids) < request.Generate()->max_tokens) {
    std::vector<float> logits;
    for (uint64_t id = 0; id < 64; ++id) {
      logits.push_back(float(8 * (double(FakeHash(hash, id) >> 11) * 0x1p-53) - 4));
    }
    const SampleRequest row = {.params = &request.Generate()->sampling,
                               .counts = counts.Counts(),
                               .position = int(request.prompt.size() + ids.size())};
    SampleResult drawn;
    ReferenceSample({.logits = logits.data(), .vocab = 64, .rows = {&row, 1}, .out = {&drawn, 1}});
    ids.push_back(drawn.id);
    counts.AddOutput(ids.back());
    hash = FakeHash(hash, uint64_t(ids.back()));
  }
  return ids;
}

TEST(EngineStep, GeneratesWhatTheModelDefines) {
  for (const SamplingParams& sampling :
       {SamplingParams{.temperature = 0}, SamplingParams{.top_p = 0.9f, .seed = 4},
        SamplingParams{.temperature = 0, .frequency_penalty = 2},
        SamplingParams{.repetition_penalty = 3, .presence_penalty = 2, .seed = 5}}) {
    Request request = Generate(Ids(40, 1), 30);
    request.Generate()->sampling = sampling;
    const auto sink = RunAlone(request, SmallOptions());
    EXPECT_EQ(IdsOf(sink->At(0).tokens),
              Oracle(request, RopeBase(FakeCheckpoint().checkpoint.config, 70)));
    EXPECT_EQ(sink->At(0).finish, FinishReason::kLength);
    const RequestStats stats = sink->Stats();
    EXPECT_EQ(stats.num_prompt_tokens, 40);
    EXPECT_EQ(stats.num_generated_tokens, 30);
    EXPECT_EQ(stats.attention.num_value_rows, 69 * 70 / 2);  // the last token is never computed
    EXPECT_EQ(stats.attention.num_value_rows_read, 69);
  }
}

TEST(EngineStep, TheRopeBaseFollowsTheLengthBudgetAndStays) {
  SteppedEngine engine;
  ModelConfig& config = engine.fake.checkpoint.config;
  config.dynamic_ntk_factor = 2.0;
  config.max_position_embeddings = 32;
  config.hidden_size = 64;  // heads of 64, for the exponent d / (d - 2)
  std::vector<std::vector<double>> bases_of_steps;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    bases_of_steps.push_back(batch.rope_bases);
    return absl::OkStatus();
  };
  const auto expect_base = [&](const Request& request, int length_budget) {
    bases_of_steps.clear();
    engine.Submit(request);
    engine.RunAll();
    EXPECT_FALSE(bases_of_steps.empty());
    for (const auto& bases : bases_of_steps) {
      for (const double base : bases) EXPECT_EQ(base, RopeBase(config, length_budget));
    }
  };
  EXPECT_NE(RopeBase(config, 40), RopeBase(config, 200));
  expect_base(Generate(Ids(30, 1), 10), 40);
  expect_base(Generate(Ids(30, 1), 3), 32);  // 33 tokens, of which the last is not read
  expect_base(Generate(Ids(30, 1), 4), 33);
  expect_base(Score(Ids(1, 1), {Ids(32, 2)}), 32);
  Request request = Generate(Ids(30, 1), 170);
  request.Generate()->num_choices = 2;
  expect_base(request, 200);
  expect_base(Score(Ids(30, 1), {Ids(5, 1), Ids(170, 2)}), 200);
}

TEST(EngineStep, AFinishedChoiceFreesItsPagesWhileTheOthersRun) {
  SteppedEngine engine;
  Request request = Generate(Ids(40, 1), 200);
  request.Generate()->num_choices = 3;
  request.Generate()->stop_ids = {5, 6, 7};
  const Submitted submitted = engine.Submit(request);
  int num_partly_free = 0;
  do {
    ASSERT_EQ(engine.Step(), absl::OkStatus());
    int num_finished = 0;
    std::set<int32_t> used;
    engine.ForEachSequence([&](const SequenceGroup&, const Sequence& sequence) {
      num_finished += sequence.IsDone();
      EXPECT_TRUE(!sequence.IsDone() || sequence.pages.empty());
      used.insert(sequence.pages.begin(), sequence.pages.end());
    });
    ASSERT_EQ(engine.NumAvailable(), 64 - std::ssize(used));
    num_partly_free += num_finished == 1 || num_finished == 2;
  } while (!submitted.sink->IsDone());
  EXPECT_GT(num_partly_free, 0);
}

TEST(EngineStep, OutputDoesNotDependOnTheBatch) {
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) {
    Request request = Generate(Ids(1 + (i * 37) % 90, i), 1 + (i * 17) % 60, uint64_t(i));
    request.Generate()->num_choices = 1 + i % 3;
    request.Generate()->num_logprobs = i % 4 - 1;
    request.Generate()->ignore_eos = i % 2 == 0;
    if (i % 5 == 0) request.Generate()->stop_strings = {"ab", "\u00e9"};
    if (i % 7 == 0) request.Generate()->sampling.frequency_penalty = 0.5f;
    requests.push_back(std::move(request));
  }
  std::vector<std::shared_ptr<RecordingSink>> alone;
  for (const Request& request : requests) alone.push_back(RunAlone(request, SmallOptions()));
  for (const auto& [max_num_batched_tokens, page_size] :
       std::vector<std::pair<int, int>>{{24, 16}, {7, 32}, {512, 64}}) {
    EngineOptions options = SmallOptions();
    options.max_num_batched_tokens = max_num_batched_tokens;
    options.page_size = page_size;
    SteppedEngine engine(options);
    std::vector<Submitted> submitted;
    for (const Request& request : requests) submitted.push_back(engine.Submit(request));
    engine.RunAll();
    for (size_t i = 0; i < requests.size(); ++i) {
      ASSERT_EQ(submitted[i].sink->Status(), absl::OkStatus());
      for (int choice = 0; choice < requests[i].Generate()->num_choices; ++choice) {
        ASSERT_TRUE(submitted[i].sink->At(choice) == alone[i]->At(choice)) << "request " << i;
      }
    }
    EXPECT_EQ(engine.NumAvailable(), engine.Stats().num_pages);
  }
}

TEST(EngineStep, ChoicesDifferAndTheFirstEqualsTheSingleOne) {
  Request request = Generate(Ids(20, 3), 25);
  const auto one = RunAlone(request, SmallOptions());
  request.Generate()->num_choices = 4;
  const auto four = RunAlone(request, SmallOptions());
  EXPECT_TRUE(four->At(0) == one->At(0));
  for (int choice = 1; choice < 4; ++choice) {
    EXPECT_EQ(four->At(choice).tokens.size(), 25u);
    EXPECT_NE(IdsOf(four->At(choice).tokens), IdsOf(one->At(0).tokens));
  }
  EXPECT_EQ(four->Stats().num_generated_tokens, 100);
}

TEST(EngineStep, StepsStayInTheBudgetAndMixPromptsWithDecodes) {
  SteppedEngine engine;
  std::vector<int> tokens_of_steps;
  int num_mixed = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    tokens_of_steps.push_back(int(batch.token_ids.size()));
    const auto num_decodes = std::ranges::count(batch.sequences, 1, &SequenceSlice::num_rows);
    num_mixed += num_decodes > 0 && num_decodes < std::ssize(batch.sequences);
    return absl::OkStatus();
  };
  for (int i = 0; i < 12; ++i) engine.Submit(Generate(Ids(60, i), 20));
  engine.RunAll();
  EXPECT_LE(std::ranges::max(tokens_of_steps), 24);
  EXPECT_GT(num_mixed, 10);
  const EngineStats stats = engine.Stats();
  EXPECT_EQ(stats.num_steps, std::ssize(tokens_of_steps));
  EXPECT_EQ(stats.num_prompt_tokens, 12 * 60);
  EXPECT_EQ(stats.num_generated_tokens, 12 * 20);
}

TEST(EngineStep, ScoreGivesTheLogprobsThatGenerateGave) {
  Request request = Generate(Ids(33, 5), 40);
  request.Generate()->num_logprobs = 3;
  const auto generated = RunAlone(request, SmallOptions());
  const std::vector<TokenResult> tokens = generated->At(0).tokens;
  // Between other continuations, and long enough for several steps.
  const auto scored = RunAlone(
      Score(request.prompt, {Ids(3, 8), IdsOf(tokens), {7}, IdsOf(tokens)}), SmallOptions());
  ASSERT_EQ(scored->Scores().size(), 4u);
  for (const int i : {1, 3}) {
    const ContinuationScore score = scored->Scores()[size_t(i)];
    EXPECT_EQ(score.index, i);
    EXPECT_TRUE(score.tokens == tokens);
    double sum = 0;
    for (const TokenResult& token : tokens) sum += double(token.logprob);
    EXPECT_EQ(score.logprob, sum);
    EXPECT_FALSE(score.is_greedy);
  }
  EXPECT_EQ(scored->Stats().num_prompt_tokens, 33 + 3 + 40 + 1 + 40);
}

TEST(EngineStep, GreedyTextIsGreedyWhenScored) {
  Request request = Generate(Ids(10, 6), 12);
  request.Generate()->sampling.temperature = 0;
  request.Generate()->num_logprobs = 1;
  const auto generated = RunAlone(request, SmallOptions());
  for (const TokenResult& token : generated->At(0).tokens) {
    ASSERT_EQ(token.top.size(), 1u);
    EXPECT_EQ(token.top[0].id, token.id);
    EXPECT_EQ(token.top[0].logprob, token.logprob);
  }
  const auto scored =
      RunAlone(Score(request.prompt, {IdsOf(generated->At(0).tokens)}), SmallOptions());
  EXPECT_TRUE(scored->Scores()[0].is_greedy);
}

// The context is computed once; each continuation has the same bits as alone.
TEST(EngineStep, ContinuationsShareTheirContext) {
  const std::vector<std::vector<int32_t>> continuations = {Ids(5, 1), Ids(1, 2), Ids(30, 3),
                                                           Ids(5, 1)};
  SteppedEngine engine;
  int num_tokens = 0;
  engine.fake.model->on_forward = [&](const ForwardBatch& batch) {
    num_tokens += int(batch.token_ids.size());
    return absl::OkStatus();
  };
  const Submitted submitted = engine.Submit(Score(Ids(100, 9), continuations));
  engine.RunAll();
  EXPECT_EQ(num_tokens, 99 + 5 + 1 + 30 + 5);
  for (size_t i = 0; i < continuations.size(); ++i) {
    const auto alone = RunAlone(Score(Ids(100, 9), {continuations[i]}), SmallOptions());
    EXPECT_TRUE(submitted.sink->Scores()[i].tokens == alone->Scores()[0].tokens);
  }
}

TEST(EngineStep, PromptLogprobsEqualScores) {
  const std::vector<int32_t> prompt = Ids(70, 4);
  Request request = Generate(prompt, 5);
  request.Generate()->num_choices = 2;
  const auto plain = RunAlone(request, SmallOptions());
  request.Generate()->num_prompt_logprobs = 3;
  const auto generated = RunAlone(request, SmallOptions());
  const auto scored =
      RunAlone(Score({prompt[0]}, {{prompt.begin() + 1, prompt.end()}}), SmallOptions());
  EXPECT_EQ(generated->Prompt().size(), 69u);
  EXPECT_TRUE(generated->Prompt() == scored->Scores()[0].tokens);
  for (int choice = 0; choice < 2; ++choice) {
    EXPECT_TRUE(generated->At(choice) == plain->At(choice));
  }
}

TEST(EngineStep, EosStopIdsAndStopStringsEndTheText) {
  Request request = Generate(Ids(9, 2), 200, 77);
  const std::vector<TokenResult> all = RunAlone(request, SmallOptions())->At(0).tokens;
  const std::vector<int32_t> ids = IdsOf(all);

  request.Generate()->ignore_eos = false;
  const auto eos = RunAlone(request, SmallOptions())->At(0);
  const auto eos_at = std::ranges::find(ids, FakeModel::kEosId) - ids.begin();
  ASSERT_LT(eos_at, 200) << "this seed must sample an EOS";
  EXPECT_EQ(eos.finish, FinishReason::kEos);
  EXPECT_EQ(std::ssize(eos.tokens), eos_at + 1);

  // Neither EOS nor a stop id is sampled before min_tokens.
  request.Generate()->sampling.logit_bias = {{FakeModel::kEosId, 100}};
  for (const int min_tokens : {1, 7}) {
    request.Generate()->min_tokens = min_tokens;
    const auto early = RunAlone(request, SmallOptions())->At(0);
    EXPECT_EQ(early.finish, FinishReason::kEos);
    EXPECT_EQ(std::ssize(early.tokens), min_tokens + 1);
  }
  request.Generate()->sampling.logit_bias = {};
  request.Generate()->stop_ids = {ids[1]};
  request.Generate()->min_tokens = 100;
  const auto masked = IdsOf(RunAlone(request, SmallOptions())->At(0).tokens);
  ASSERT_GE(std::ssize(masked), 100);
  const std::span early(masked.begin(), 100);
  EXPECT_EQ(std::ranges::count(early, FakeModel::kEosId) + std::ranges::count(early, ids[1]), 0);
  request.Generate()->min_tokens = 0;

  request.Generate()->stop_ids = {60, ids[3], 61};
  const auto stop_id = RunAlone(request, SmallOptions())->At(0);
  EXPECT_EQ(stop_id.finish, FinishReason::kStopId);
  const auto first = std::ranges::find_first_of(ids, request.Generate()->stop_ids) - ids.begin();
  EXPECT_EQ(std::ssize(stop_id.tokens), first + 1);

  request.Generate()->ignore_eos = true;
  request.Generate()->stop_ids = {};
  const std::string text = RunAlone(request, SmallOptions())->At(0).text;
  request.Generate()->stop_strings = {text.substr(20, 7), "never seen"};
  const auto stop_string = RunAlone(request, SmallOptions())->At(0);
  EXPECT_EQ(stop_string.finish, FinishReason::kStopString);
  EXPECT_EQ(stop_string.stop_string, text.substr(20, 7));
  EXPECT_EQ(stop_string.text, text.substr(0, text.find(text.substr(20, 7))));
  EXPECT_LT(stop_string.tokens.size(), 40u);
}

}  // namespace
}  // namespace lssar
