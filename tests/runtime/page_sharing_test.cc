// Prefix caching, forks and preemption: the same bits, and fewer computed tokens.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

// Runs one request after another in one engine and counts the computed tokens.
class CountingEngine {
 public:
  explicit CountingEngine(const EngineOptions& options = SmallOptions()) : engine(options) {
    engine.fake.model->on_forward = [this](const ForwardBatch& batch) {
      num_tokens += int(batch.token_ids.size());
      return absl::OkStatus();
    };
  }
  std::shared_ptr<RecordingSink> Run(Request request) {
    num_tokens = 0;
    const Submitted submitted = engine.Submit(std::move(request));
    engine.RunAll();
    EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
    EXPECT_EQ(engine.NumAvailable(), engine.Stats().num_pages);
    return submitted.sink;
  }

  SteppedEngine engine;
  int num_tokens = 0;
};

EngineOptions WithoutCache() {
  EngineOptions options = SmallOptions();
  options.enable_prefix_caching = false;
  return options;
}

std::vector<int32_t> Join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST(PrefixCaching, ARepeatedPromptIsMatched) {
  for (const int length : {15, 16, 17, 31, 32, 33, 100}) {
    CountingEngine session;
    const Request request = Generate(Ids(length, 1), 20);
    const auto cold = session.Run(request);
    EXPECT_EQ(session.num_tokens, length + 19);
    EXPECT_EQ(cold->AdmittedStats().num_cached_tokens, 0);
    const auto warm = session.Run(request);
    // All full pages, except that the last token is always computed: its logits give the next.
    const int num_cached = length % 16 == 0 ? length - 1 : length / 16 * 16;
    EXPECT_EQ(warm->AdmittedStats().num_cached_tokens, num_cached);
    EXPECT_EQ(warm->Stats().num_cached_tokens, num_cached);
    EXPECT_EQ(session.num_tokens, length + 19 - num_cached);
    EXPECT_TRUE(warm->At(0) == cold->At(0));
    const EngineStats stats = session.engine.Stats();
    EXPECT_EQ(stats.num_prefix_cache_queries, 2 * length);
    EXPECT_EQ(stats.num_prefix_cache_hits, num_cached);
  }
}

TEST(PrefixCaching, AChatMatchesItsOwnAnswers) {
  CountingEngine session;
  const auto first = session.Run(Generate(Ids(40, 1), 60));
  const std::vector<int32_t> chat = Join(Join(Ids(40, 1), IdsOf(first->At(0).tokens)), Ids(10, 2));
  const auto second = session.Run(Generate(chat, 20));
  EXPECT_EQ(second->Stats().num_cached_tokens, 96) << "of the 99 tokens that were computed";
  EXPECT_TRUE(second->At(0) == RunAlone(Generate(chat, 20), WithoutCache())->At(0));
}

TEST(PrefixCaching, RequestsMayOptOutAndSaltsSeparate) {
  CountingEngine session;
  Request request = Generate(Ids(64, 1), 5);
  request.use_prefix_cache = false;
  session.Run(request);
  EXPECT_EQ(session.engine.Stats().num_cached_pages, 0);
  request.use_prefix_cache = true;
  EXPECT_EQ(session.Run(request)->Stats().num_cached_tokens, 0) << "it inserted nothing";
  request.use_prefix_cache = false;
  EXPECT_EQ(session.Run(request)->Stats().num_cached_tokens, 0) << "it matches nothing";
  request.use_prefix_cache = true;
  request.cache_salt = "mine";
  EXPECT_EQ(session.Run(request)->Stats().num_cached_tokens, 0);
  EXPECT_EQ(session.Run(request)->Stats().num_cached_tokens, 63);
  request.cache_salt = "";
  EXPECT_EQ(session.Run(request)->Stats().num_cached_tokens, 63);

  CountingEngine off(WithoutCache());
  off.Run(request);
  EXPECT_EQ(off.Run(request)->Stats().num_cached_tokens, 0);
  EXPECT_EQ(off.engine.Stats().num_cached_pages, 0);
}

TEST(PrefixCaching, ConcurrentRequestsShareWhatTheFirstComputes) {
  CountingEngine session;
  std::vector<Submitted> submitted;
  for (int i = 0; i < 8; ++i) {
    submitted.push_back(session.engine.Submit(Generate(Join(Ids(96, 1), Ids(10, 50 + i)), 10)));
  }
  session.engine.RunAll();
  EXPECT_LE(session.num_tokens, 96 + 8 * (10 + 9) + 24);
  for (int i = 0; i < 8; ++i) {
    const Request request = Generate(Join(Ids(96, 1), Ids(10, 50 + i)), 10);
    EXPECT_TRUE(submitted[size_t(i)].sink->At(0) == RunAlone(request, WithoutCache())->At(0));
  }
}

TEST(PrefixCaching, OldPagesAreEvictedForNewTexts) {
  CountingEngine session;  // 64 pages
  for (int i = 0; i < 12; ++i) session.Run(Generate(Ids(150, i), 30));
  EXPECT_EQ(session.engine.Stats().num_free_pages + session.engine.Stats().num_cached_pages, 64);
  EXPECT_GT(session.Run(Generate(Ids(150, 11), 30))->Stats().num_cached_tokens, 0);
  EXPECT_EQ(session.Run(Generate(Ids(150, 0), 30))->Stats().num_cached_tokens, 0);
}

Request PlainScore(std::vector<int32_t> context, std::vector<std::vector<int32_t>> continuations) {
  Request request = Score(std::move(context), std::move(continuations));
  request.Score()->num_logprobs = 0;
  return request;
}

void ExpectSameScores(const RecordingSink& a, const RecordingSink& b) {
  ASSERT_EQ(a.Scores().size(), b.Scores().size());
  for (size_t i = 0; i < a.Scores().size(); ++i) {
    EXPECT_TRUE(a.Scores()[i].tokens == b.Scores()[i].tokens);
    EXPECT_EQ(a.Scores()[i].logprob, b.Scores()[i].logprob);
    EXPECT_EQ(a.Scores()[i].is_greedy, b.Scores()[i].is_greedy);
  }
}

TEST(PrefixCaching, ARepeatedScoreUsesCachedScores) {
  for (const int num_context : {1, 15, 16, 17, 40}) {
    const Request request = PlainScore(Ids(num_context, 3), {Ids(130, 4), Ids(3, 5), Ids(130, 4)});
    const auto alone = RunAlone(request, WithoutCache());
    CountingEngine session;
    ExpectSameScores(*session.Run(request), *alone);
    const int num_cold_tokens = session.num_tokens;
    ExpectSameScores(*session.Run(request), *alone);
    // A continuation of 130 tokens: those after its last full page, and one before them.
    EXPECT_LE(session.num_tokens, 3 * (16 + 1));
    EXPECT_LT(session.num_tokens * 3, num_cold_tokens);
  }
}

TEST(PrefixCaching, OnlyPositionsWithoutScoresAreComputed) {
  CountingEngine session;
  const std::vector<int32_t> text = Ids(96, 3);
  session.Run(Generate(text, 1));  // caches pages without scores
  const Request request =
      PlainScore({text.begin(), text.begin() + 40}, {{text.begin() + 40, text.end()}});
  ExpectSameScores(*session.Run(request), *RunAlone(request, WithoutCache()));
  EXPECT_EQ(session.num_tokens, 95 - 39)
      << "from the context's last token on, which lies inside a page";
  ExpectSameScores(*session.Run(request), *RunAlone(request, WithoutCache()));
  EXPECT_EQ(session.num_tokens, 95 - 79) << "the last page was never full";
  // A longer context with the rest of the same text: its scores are cached.
  const Request tail =
      PlainScore({text.begin(), text.begin() + 60}, {{text.begin() + 60, text.end()}});
  ExpectSameScores(*session.Run(tail), *RunAlone(tail, WithoutCache()));
  EXPECT_EQ(session.num_tokens, 95 - 79);
}

TEST(PrefixCaching, TopLogprobsAreComputedAgain) {
  CountingEngine session;
  const Request request = Score(Ids(40, 3), {Ids(50, 4)});
  const auto cold = session.Run(request);
  ExpectSameScores(*session.Run(request), *cold);
  EXPECT_EQ(session.num_tokens, 50);
  Request generate = Generate(Join(Ids(40, 3), Ids(50, 4)), 4);
  generate.Generate()->num_prompt_logprobs = 2;
  const auto prompt = session.Run(generate);
  EXPECT_EQ(session.num_tokens, 90 + 3);
  EXPECT_TRUE(prompt->Prompt() == RunAlone(generate, WithoutCache())->Prompt());
}

TEST(PrefixCaching, PromptLogprobsAndScoresShareCachedScores) {
  const std::vector<int32_t> text = Ids(96, 3);
  Request prompt = Generate(text, 4);
  prompt.Generate()->num_prompt_logprobs = 0;
  const Request score = PlainScore({text[0]}, {{text.begin() + 1, text.end()}});
  const auto prompt_alone = RunAlone(prompt, WithoutCache());
  const auto score_alone = RunAlone(score, WithoutCache());
  ASSERT_EQ(prompt_alone->Prompt().size(), 95u);
  for (const bool score_first : {true, false}) {
    CountingEngine session;
    session.Run(score_first ? score : prompt);
    const auto prompt_again = session.Run(prompt);
    EXPECT_EQ(session.num_tokens, (score_first ? 96 - 79 : 1) + 3)
        << "the last page of the score is not full";
    EXPECT_TRUE(prompt_again->Prompt() == prompt_alone->Prompt());
    EXPECT_TRUE(prompt_again->At(0) == prompt_alone->At(0));
    const auto score_again = session.Run(score);
    EXPECT_LE(session.num_tokens, 95 - 79);
    ExpectSameScores(*score_again, *score_alone);
  }
}

TEST(Choices, ShareThePagesOfThePrompt) {
  for (const bool uses_cache : {true, false}) {
    for (const int length : {1, 2, 16, 17, 40, 64, 65}) {
      CountingEngine session(uses_cache ? SmallOptions() : WithoutCache());
      Request request = Generate(Ids(length, 7), 12);
      const auto single = session.Run(request);
      request.Generate()->num_choices = 5;
      request.use_prefix_cache = false;
      const auto choices = session.Run(request);
      // The prompt once, its last token and 11 more for each choice: the last is never computed.
      EXPECT_EQ(session.num_tokens, length - 1 + 5 * 12) << length;
      EXPECT_TRUE(choices->At(0) == single->At(0));
      for (int choice = 1; choice < 5; ++choice) {
        EXPECT_EQ(choices->At(choice).tokens.size(), 12u);
        EXPECT_NE(IdsOf(choices->At(choice).tokens), IdsOf(single->At(0).tokens));
      }
    }
  }
}

TEST(Choices, TheFirstMayEndBeforeTheOthersStart) {
  CountingEngine session;
  Request request = Generate(Ids(40, 7), 1);
  request.Generate()->num_choices = 4;
  const auto sink = session.Run(request);
  for (int choice = 0; choice < 4; ++choice) EXPECT_EQ(sink->At(choice).tokens.size(), 1u);
}

// Four answers to a question, as in multiple-choice benchmarks.
// Two of these would need the whole pool for as long as they run.
TEST(Continuations, LeaveTheirPagesToThoseWhoWait) {
  SteppedEngine engine;  // 64 pages: four sequences of 256 tokens
  const auto large = [](int seed) {
    std::vector<std::vector<int32_t>> continuations;
    for (int i = 0; i < 40; ++i) continuations.push_back(Ids(240, seed + i));
    return Score(Ids(10, seed), std::move(continuations));
  };
  const Submitted first = engine.Submit(large(1000));
  engine.RunSteps(5);
  const Submitted second = engine.Submit(large(2000));
  const Submitted small = engine.Submit(Generate(Ids(20, 1), 10));
  for (int i = 0; i < 120 && !small.sink->IsDone(); ++i) engine.RunSteps(1);
  EXPECT_TRUE(small.sink->IsDone()) << "it waited for all continuations of another request";
  EXPECT_FALSE(first.sink->IsDone());
  engine.RunAll();
  EXPECT_TRUE(small.sink->At(0) == RunAlone(Generate(Ids(20, 1), 10), SmallOptions())->At(0));
  ExpectSameScores(*first.sink, *RunAlone(large(1000), SmallOptions()));
  ExpectSameScores(*second.sink, *RunAlone(large(2000), SmallOptions()));
}

TEST(Continuations, RunSideBySideWithTheBitsOfEachAlone) {
  for (const bool uses_cache : {true, false}) {
    for (const int num_context : {1, 16, 17, 40}) {
      CountingEngine session(uses_cache ? SmallOptions() : WithoutCache());
      int num_steps = 0;
      session.engine.fake.model->on_forward = [&](const ForwardBatch&) {
        ++num_steps;
        return absl::OkStatus();
      };
      const std::vector<std::vector<int32_t>> continuations = {Ids(5, 1), Ids(3, 2), Ids(4, 3),
                                                               Ids(1, 4)};
      const auto sink = session.Run(Score(Ids(num_context, 9), continuations));
      // The context in steps of 24 tokens, the last of which has the first continuation, then the
      // others.
      EXPECT_LE(num_steps, (num_context + 5) / 24 + 2) << num_context;
      for (size_t i = 0; i < continuations.size(); ++i) {
        const auto alone = RunAlone(Score(Ids(num_context, 9), {continuations[i]}), WithoutCache());
        EXPECT_EQ(sink->Scores()[i].index, int(i));
        EXPECT_TRUE(sink->Scores()[i].tokens == alone->Scores()[0].tokens);
      }
    }
  }
}

TEST(Continuations, UseAtMostHalfOfMaxNumSeqsAndWaitForNone) {
  std::vector<std::vector<int32_t>> continuations;
  for (int i = 0; i < 20; ++i) continuations.push_back(Ids(3 + i % 4, i));
  SteppedEngine engine;  // 16 may run
  std::vector<Submitted> submitted;
  for (int i = 0; i < 10; ++i) submitted.push_back(engine.Submit(Score(Ids(20, i), continuations)));
  ASSERT_EQ(engine.Step(), absl::OkStatus());
  int num_sequences = 0;
  engine.ForEachSequence([&](const SequenceGroup&, const Sequence&) { ++num_sequences; });
  EXPECT_EQ(num_sequences, 8 + 8) << "eight of the first item, and one of each that fits";
  const Submitted other = engine.Submit(Generate(Ids(5, 1), 3));
  engine.RunAll();
  EXPECT_EQ(other.sink->Status(), absl::OkStatus());
  for (int i = 0; i < 10; ++i) {
    const auto alone = RunAlone(Score(Ids(20, i), continuations), WithoutCache());
    ExpectSameScores(*submitted[size_t(i)].sink, *alone);
  }
}

TEST(Continuations, UseNoMorePagesThanAreSpare) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 17 * kPageBytes;
  options.enable_prefix_caching = false;
  SteppedEngine engine(options);  // a context of 13 pages leaves four spare
  const std::vector<std::vector<int32_t>> continuations = {Ids(20, 1), Ids(20, 2), Ids(20, 3)};
  const Submitted submitted = engine.Submit(Score(Ids(200, 9), continuations));
  engine.RunAll();
  EXPECT_EQ(submitted.sink->Stats().num_preemptions, 0);
  ExpectSameScores(*submitted.sink, *RunAlone(Score(Ids(200, 9), continuations), SmallOptions()));
}

TEST(Preemption, TheLastRequestIsPreemptedWithoutChangeOfBits) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 20 * kPageBytes;
  for (const bool uses_cache : {true, false}) {
    options.enable_prefix_caching = uses_cache;
    SteppedEngine engine(options);
    std::vector<Request> requests;
    std::vector<Submitted> submitted;
    for (int i = 0; i < 6; ++i) {
      Request request = Generate(Ids(10 + i, i), 200, uint64_t(i));
      if (i == 4) {
        request.Generate()->num_choices = 2;
        request.Generate()->max_tokens = 100;
      }
      if (i == 3) request.Generate()->num_prompt_logprobs = 2;
      if (i == 5) request = Score(Ids(50, 5), {Ids(100, 6), Ids(90, 7)});
      requests.push_back(request);
      submitted.push_back(engine.Submit(request));
    }
    engine.RunAll();
    int num_preemptions = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i << ", cache " << uses_cache);
      const RecordingSink& sink = *submitted[i].sink;
      ASSERT_EQ(sink.Status(), absl::OkStatus());
      num_preemptions += sink.Stats().num_preemptions;
      const auto alone = RunAlone(requests[i], WithoutCache());
      if (requests[i].Score()) ExpectSameScores(sink, *alone);
      EXPECT_TRUE(sink.Prompt() == alone->Prompt());
      for (int choice = 0; choice < (i == 4 ? 2 : 1); ++choice) {
        EXPECT_TRUE(sink.At(choice) == alone->At(choice));
      }
    }
    EXPECT_EQ(submitted[0].sink->Stats().num_preemptions, 0)
        << "the first request is not preempted";
    EXPECT_GT(num_preemptions, 0);
    EXPECT_EQ(engine.Stats().num_preemptions, num_preemptions);
    EXPECT_EQ(engine.NumAvailable(), 20);
  }
}

TEST(Preemption, APausedRequestIsPreemptedFirst) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 17 * kPageBytes;
  options.enable_prefix_caching = false;
  SteppedEngine engine(options);
  const Submitted slow = engine.Submit(Generate(Ids(200, 1), 50));
  engine.RunSteps(20);
  EXPECT_EQ(engine.NumAvailable(), 3);
  slow.sink->is_writable = false;
  const Submitted other = engine.Submit(Generate(Ids(200, 2), 50));
  engine.RunSteps(200);
  EXPECT_EQ(other.sink->Status(), absl::OkStatus())
      << "a slow reader does not delay other requests";
  EXPECT_FALSE(slow.sink->IsDone());
  slow.sink->is_writable = true;
  engine.RunAll();
  EXPECT_EQ(slow.sink->Stats().num_preemptions, 1);
  EXPECT_TRUE(slow.sink->At(0) == RunAlone(Generate(Ids(200, 1), 50), WithoutCache())->At(0));
}

TEST(Preemption, APreemptedRequestIsNotOvertaken) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 16 * kPageBytes;
  SteppedEngine engine(options);
  const Submitted oldest = engine.Submit(Generate(Ids(20, 1), 230));
  const Submitted young = engine.Submit(Generate(Ids(20, 2), 150));
  while (engine.Stats().num_preemptions == 0) {
    ASSERT_EQ(engine.Step(), absl::OkStatus());
    ASSERT_FALSE(oldest.sink->IsDone());
  }
  const Submitted youngest = engine.Submit(Generate(Ids(2, 3), 2));
  Request urgent = Generate(Ids(2, 4), 2);
  urgent.priority = 1;
  const Submitted first = engine.Submit(urgent);
  engine.RunSteps(4);
  EXPECT_FALSE(youngest.sink->IsAdmitted());
  EXPECT_EQ(young.sink->Status(), std::nullopt);
  engine.RunAll();
  for (const Submitted& submitted : {oldest, young, youngest, first}) {
    EXPECT_EQ(submitted.sink->Status(), absl::OkStatus());
  }
  EXPECT_EQ(oldest.sink->Stats().num_preemptions, 0);
}

}  // namespace
}  // namespace lssar
