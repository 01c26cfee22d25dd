// Texts that must fit a grammar: every id is one that may come, and neither drafts nor preemption
// nor neighbours change a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/ending_ids.h"
#include "runtime/token_masks.h"
#include "tests/runtime/fake_grammar.h"
#include "tests/runtime/generate_cases.h"
#include "tests/runtime/oracle_proposer.h"
#include "tests/runtime/stepped_engine.h"

namespace lssar {
namespace {

const std::shared_ptr<const Grammar> kGrammar = std::make_shared<FakeGrammar>();

Request Constrained(const GenerateCase& test_case, int salt,
                    const std::shared_ptr<const Grammar>& grammar = kGrammar) {
  Request request = RequestOf(test_case, salt);
  request.Generate()->grammar = grammar;
  return request;
}

// Each token is one that the grammar allows, or ends the text where it is complete.
void ExpectFits(const RecordingSink& sink, const Request& request) {
  const GenerateParams& params = *request.Generate();
  const std::vector<int32_t> ending = EndingIds(params, FakeCheckpoint().checkpoint.config);
  for (int choice = 0; choice < params.num_choices; ++choice) {
    const auto matcher = params.grammar->NewMatcher();
    const RecordingSink::Choice result = sink.At(choice);
    for (size_t i = 0; i < result.tokens.size(); ++i) {
      const int32_t id = result.tokens[i].id;
      const bool ends =
          result.finish == FinishReason::kEos || result.finish == FinishReason::kStopId;
      if (ends && i + 1 == result.tokens.size()) {
        EXPECT_TRUE(std::ranges::count(ending, id) > 0) << id;
        EXPECT_TRUE(matcher->IsComplete()) << "after " << i << " tokens";
        continue;
      }
      const auto fits = matcher->Accept(id);
      ASSERT_TRUE(fits.ok() && *fits) << "token " << i << " is " << id;
    }
  }
}

class ConstraintBits : public testing::TestWithParam<int> {};  // percent of wrong drafts

TEST_P(ConstraintBits, AreThoseOfNoSpeculation) {
  int64_t num_accepted = 0;
  for (const GenerateCase& test_case : GenerateCases()) {
    SCOPED_TRACE(test_case.name);
    OracleProposer proposer(GetParam());
    SteppedEngine engine(Speculating(&proposer));
    proposer.engine = &engine.Get();
    for (int salt = 0; salt < 3; ++salt) {
      const Request request = Constrained(test_case, salt);
      const Submitted submitted = engine.Submit(request);
      engine.RunAll();
      ASSERT_EQ(submitted.sink->Status(), absl::OkStatus());
      const auto alone = RunAlone(request, SmallOptions());
      ExpectEqualBits(*submitted.sink, *alone, request);
      ExpectFits(*alone, request);
      num_accepted += submitted.sink->Stats().num_accepted_tokens;
    }
    EXPECT_EQ(engine.NumAvailable(), engine.Stats().num_pages);
  }
  if (GetParam() < 100) {
    EXPECT_GT(num_accepted, 300);
  }
}

// Masks that take too much work end a text where it comes to them, not where a draft does.
TEST_P(ConstraintBits, AreThoseOfNoSpeculationWhereMasksFail) {
  int num_dead_ends = 0;
  for (int salt = 0; salt < 40; ++salt) {
    const auto grammar = std::make_shared<FakeGrammar>(
        FakeRules{.error_percent = salt % 2 == 0 ? 6 : 0, .accept_error_percent = salt % 4});
    OracleProposer proposer(GetParam());
    SteppedEngine engine(Speculating(&proposer));
    proposer.engine = &engine.Get();
    Request request = Constrained({"", [](Request*) {}}, salt, grammar);
    request.Generate()->num_choices = 2;
    const Submitted submitted = engine.Submit(request);
    engine.RunAll();
    const auto alone = RunAlone(request, SmallOptions());
    for (int choice = 0; choice < 2; ++choice) {
      EXPECT_TRUE(submitted.sink->At(choice) == alone->At(choice)) << salt;
      num_dead_ends += alone->At(choice).finish == FinishReason::kDeadEnd;
    }
  }
  EXPECT_GT(num_dead_ends, 10);
}

INSTANTIATE_TEST_SUITE_P(WrongPercent, ConstraintBits, testing::Values(0, 30, 100));

TEST(Constraint, ADraftModelDraftsWhatFits) {
  FakeCheckpoint draft;
  EngineOptions options = SmallOptions();
  options.speculative_method = SpeculativeMethod::kDraftModel;
  options.draft_checkpoint = &draft.checkpoint;
  options.num_speculative_tokens = 5;
  options.adapts_speculation = false;
  SteppedEngine engine(options);
  int64_t num_drafted = 0, num_accepted = 0;
  for (int salt = 0; salt < 5; ++salt) {
    const Request request = Constrained({"", [](Request*) {}}, salt);
    const Submitted submitted = engine.Submit(request);
    engine.RunAll();
    ExpectEqualBits(*submitted.sink, *RunAlone(request, SmallOptions()), request);
    num_drafted += submitted.sink->Stats().num_draft_tokens;
    num_accepted += submitted.sink->Stats().num_accepted_tokens;
  }
  EXPECT_GT(num_drafted, 50);
  EXPECT_EQ(num_accepted, num_drafted);  // the same model, the same masks
}

// Constrained and free requests side by side, in a pool that is too small for them.
TEST(Constraint, NeighboursAndPreemptionChangeNoBit) {
  EngineOptions options = SmallOptions();
  options.kv_cache_bytes = 20 * kPageBytes;
  SteppedEngine engine(options);
  std::vector<Request> requests;
  std::vector<Submitted> submitted;
  for (const GenerateCase& test_case : GenerateCases()) {
    requests.push_back(Constrained(test_case, 1));
    requests.push_back(RequestOf(test_case, 1));
  }
  for (const Request& request : requests) submitted.push_back(engine.Submit(request));
  engine.RunAll();
  EXPECT_GT(engine.Stats().num_preemptions, 0);
  ExpectBitsOfEachAlone(submitted, requests);
}

RecordingSink::Choice ChoiceOf(const Request& request) {
  return RunAlone(request, SmallOptions())->At(0);
}

TEST(Constraint, EosComesOnlyWhereTheTextFits) {
  int num_ended = 0;
  for (int salt = 0; salt < 20; ++salt) {
    Request request = Constrained({"", [](Request*) {}}, salt);
    request.Generate()->ignore_eos = false;
    request.Generate()->sampling.logit_bias = {{FakeModel::kEosId, 4.0f}};
    const RecordingSink::Choice choice = ChoiceOf(request);
    if (choice.finish != FinishReason::kEos) continue;
    ++num_ended;
    EXPECT_EQ((choice.tokens.size() - 1) % 5, 4u);
  }
  EXPECT_GT(num_ended, 15);
}

// A stop token whose text the grammar has too ends a text that fits, and no other.
TEST(Constraint, AStopTokenThatIsTextComesOnlyWhereTheTextFits) {
  int num_ended = 0;
  for (int salt = 0; salt < 20; ++salt) {
    Request request = Constrained({"", [](Request*) {}}, salt);
    for (int32_t id = 8; id < 32; ++id) request.Generate()->stop_ids.push_back(id);
    const RecordingSink::Choice choice = ChoiceOf(request);
    if (choice.finish != FinishReason::kStopId) continue;
    ++num_ended;
    EXPECT_EQ((choice.tokens.size() - 1) % 5, 4u);
  }
  EXPECT_GT(num_ended, 5);
}

TEST(Constraint, NothingCanFollow) {
  const auto grammar = std::make_shared<FakeGrammar>(FakeRules{.max_tokens = 9});
  Request request = Constrained({"", [](Request*) {}}, 3, grammar);
  RecordingSink::Choice choice = ChoiceOf(request);
  EXPECT_EQ(choice.finish, FinishReason::kComplete);  // 9 % 5 == 4, and EOS is ignored
  EXPECT_EQ(choice.tokens.size(), 9u);

  request.Generate()->ignore_eos = false;
  request.Generate()->min_tokens = 10;  // EOS may not come yet
  choice = ChoiceOf(request);
  EXPECT_EQ(choice.finish, FinishReason::kComplete);

  request.Generate()->min_tokens = 9;
  choice = ChoiceOf(request);
  EXPECT_EQ(choice.finish, FinishReason::kEos);
  EXPECT_EQ(choice.tokens.size(), 10u);

  request.Generate()->grammar = std::make_shared<FakeGrammar>(FakeRules{.max_tokens = 7});
  choice = ChoiceOf(request);
  EXPECT_EQ(choice.finish, FinishReason::kDeadEnd);
  EXPECT_EQ(choice.tokens.size(), 7u);
  EXPECT_FALSE(choice.text.empty());
}

// The lists of ids and the grammar both hold; where they leave nothing, the text ends.
TEST(Constraint, ListsOfIdsAndTheGrammar) {
  Request request = Constrained({"", [](Request*) {}}, 2);
  request.Generate()->sampling.allowed_ids = {2, 3, 4};
  RecordingSink::Choice choice = ChoiceOf(request);
  EXPECT_EQ(choice.finish, FinishReason::kLength);
  for (const TokenResult& token : choice.tokens) EXPECT_TRUE(token.id >= 2 && token.id <= 4);

  request.Generate()->sampling.banned_ids = {3};
  request.Generate()->sampling.allowed_ids = {2, 3};
  choice = ChoiceOf(request);
  EXPECT_TRUE(choice.finish == FinishReason::kDeadEnd || choice.finish == FinishReason::kComplete);
  for (const TokenResult& token : choice.tokens) EXPECT_EQ(token.id, 2);
}

TEST(Constraint, LogProbabilitiesAreThoseOfTheModel) {
  Request request = Constrained({"", [](Request*) {}}, 4);
  request.Generate()->num_logprobs = 3;
  const RecordingSink::Choice choice = ChoiceOf(request);
  // A free request that is led along the same tokens.
  Request led = request;
  led.Generate()->grammar = nullptr;
  led.Generate()->max_tokens = 1;
  for (const TokenResult& token : choice.tokens) {
    led.Generate()->sampling.allowed_ids = {token.id};
    const RecordingSink::Choice one = ChoiceOf(led);
    EXPECT_TRUE(one.tokens.front() == token);
    led.prompt.push_back(token.id);
  }
}

// The draft of a step is asked for by the draft model, then by the verification, in any order.
TEST(TokenMasks, MasksDoNotDependOnTheOrderOfTheQuestions) {
  const SamplingParams params;
  const std::vector<int32_t> ending = {FakeModel::kEosId};
  for (uint64_t salt = 0; salt < 50; ++salt) {
    const auto grammar =
        std::make_shared<FakeGrammar>(FakeRules{.error_percent = 5, .accept_error_percent = 5});
    TokenMasks masks(grammar, 64, ending);
    std::vector<int32_t> output;
    for (int step = 0; step < 12; ++step) {
      for (int question = 0; question < 6; ++question) {
        const uint64_t draw = FakeHash(salt * 1000 + uint64_t(step), uint64_t(question));
        std::vector<int32_t> draft;
        TokenMasks fresh(grammar, 64, ending);
        for (const int32_t id : output) fresh.Accept(id);
        for (uint64_t i = 0; i < draw % 4; ++i) {
          const TokenMasks::Mask& mask = fresh.After(output, draft, true, params);
          const auto allowed = [&](int32_t id) {
            return !mask.words.empty() && MaskHas(mask.words, size_t(id));
          };
          int32_t id = int32_t(FakeHash(draw, i) % 62) + 2;
          while (question % 2 == 0 && !allowed(id) && !mask.words.empty()) id = 2 + (id - 1) % 62;
          draft.push_back(id);
        }
        const TokenMasks::Mask& expected = fresh.After(output, draft, true, params);
        const TokenMasks::Mask& got = masks.After(output, draft, true, params);
        EXPECT_EQ(got.words, expected.words);
        EXPECT_EQ(got.finish, expected.finish);
        EXPECT_EQ(masks.FinishAfter(draft.size()), expected.finish);
      }
      const TokenMasks::Mask next = masks.After(output, {}, false, params);
      if (next.finish) break;
      int32_t id = int32_t(FakeHash(salt, uint64_t(step)) % 62) + 2;
      while (!MaskHas(next.words, size_t(id))) id = 2 + (id - 1) % 62;
      masks.Accept(id);
      output.push_back(id);
    }
  }
}

}  // namespace
}  // namespace lssar
