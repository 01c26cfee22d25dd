// Constraints of requests: each is compiled once, and what a request says of it is checked.
#include "server/api/grammar_cache.h"

#include <gmock/gmock.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error_details.h"
#include "base/str_cat.h"
#include "tests/server/parse_fixture.h"
#include "tests/server/poll_until.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

bool Never() { return false; }

class ConstraintTest : public ParseRequestTest {
 protected:
  absl::StatusOr<ParsedGenerate> Parse(const v1::GenerateRequest& message) {
    ParseContext context = Context();
    context.grammars = &cache_;
    return ParseGenerate(message, context);
  }
  static v1::GenerateRequest Message() {
    v1::GenerateRequest message;
    message.mutable_tokens()->add_ids(5);
    return message;
  }

  GrammarCache cache_{&Zoo(), 2};
};

// What needs a compiler of grammars.
class CompiledConstraintTest : public ConstraintTest {
 protected:
  void SetUp() override {
    if (!GrammarCompiler::IsAvailable()) GTEST_SKIP() << "this build has no xgrammar";
  }
};

TEST_F(CompiledConstraintTest, EachIsCompiledOnce) {
  const GrammarSource source = {.kind = GrammarSource::Kind::kRegex, .text = "[a-z]+[0-9]"};
  std::vector<std::thread> threads;
  std::vector<std::shared_ptr<const Grammar>> grammars(8);
  for (auto& grammar : grammars) {
    threads.emplace_back([&] { grammar = cache_.Get(source, Never).value(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& grammar : grammars) EXPECT_EQ(grammar, grammars[0]);
  // The kind is a part of the key, and errors are kept, too.
  const GrammarSource bad = {.kind = GrammarSource::Kind::kEbnf, .text = source.text};
  EXPECT_FALSE(cache_.Get(bad, Never).ok());
  EXPECT_EQ(cache_.Get(bad, Never).status(), cache_.Get(bad, Never).status());
  EXPECT_EQ(cache_.Get(source, Never).value(), grammars[0]);
}

TEST_F(CompiledConstraintTest, MemoryIsBounded) {
  // Refused at once, and each takes twice its text.
  const auto source = [](int i) {
    return GrammarSource{.kind = GrammarSource::Kind::kJsonSchema,
                         .text = std::string(kMaxGrammarBytes - 10, ' ') + StrCat(i)};
  };
  for (int i = 0; i < 600; ++i) EXPECT_FALSE(cache_.Get(source(i), Never).ok());
  EXPECT_LE(cache_.NumBytes(), kMaxGrammarCacheBytes);
  EXPECT_GT(cache_.NumBytes(), kMaxGrammarCacheBytes / 2);
}

TEST_F(CompiledConstraintTest, GrammarsThatRequestsHoldTakeTheMemory) {
  GrammarCache one(&Zoo(), /*max_compiling=*/1, /*max_bytes=*/1);
  const auto get = [&one](const std::string& text) {
    return one.Get({.kind = GrammarSource::Kind::kRegex, .text = text}, Never);
  };
  auto held = get("a").value();
  const auto refused = get("b");
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("the constraints of running requests have"));
  EXPECT_EQ(get("a").value(), held) << "what is held is kept";
  held = nullptr;
  EXPECT_TRUE(get("b").ok());
}

TEST_F(CompiledConstraintTest, ACallThatHasEndedDoesNotWait) {
  GrammarCache none(&Zoo(), /*max_compiling=*/0);
  const GrammarSource source = {.kind = GrammarSource::Kind::kRegex, .text = "a"};
  EXPECT_EQ(none.Get(source, [] { return true; }).status().code(), absl::StatusCode::kCancelled);
}

// More than enough work for a poll.
GrammarSource Large() {
  return {.kind = GrammarSource::Kind::kRegex, .text = "([a-z]{1,40}[0-9]{1,40}){1,40}"};
}

TEST_F(CompiledConstraintTest, ATenantsFirstCallComesBeforeAnothersSecond) {
  GrammarCache one(&Zoo(), /*max_compiling=*/1);
  std::atomic<bool> may_end = false, is_done = false;
  std::atomic<int> num_calls = 0, num_refused = 0;
  std::vector<std::thread> threads;
  // Returns when the call compiles, or waits; from then on it calls `poll`.
  const auto start = [&](std::string tenant, int i, std::function<void()> poll) {
    threads.emplace_back([&, tenant, i, poll] {
      GrammarSource source = Large();
      source.text += StrCat(i);
      const auto got = one.Get(
          source,
          [&, is_first = true]() mutable {
            if (std::exchange(is_first, false)) ++num_calls;
            poll();
            return false;
          },
          tenant);
      num_refused += absl::IsResourceExhausted(got.status());
      EXPECT_TRUE(got.ok() || absl::IsResourceExhausted(got.status())) << got.status();
      if (tenant == "alice") is_done = true;
    });
    EXPECT_TRUE(PollUntil([&] { return num_calls == std::ssize(threads); }));
  };
  start("mallory", 0, [&] { may_end.wait(false); });
  // It is compiled, or waits, until alice's is.
  start("mallory", 1, [&] {
    if (may_end) {
      EXPECT_TRUE(PollUntil([&] { return is_done.load(); }));
    }
  });
  for (int i = 2; i < 5; ++i) start("mallory", i, [] {});
  start("alice", 5, [] {});
  EXPECT_TRUE(PollUntil([&] { return num_refused == 3; }))
      << "those behind another of their tenant";
  EXPECT_FALSE(is_done);
  may_end = true;
  may_end.notify_all();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_refused, 3);
}

TEST_F(CompiledConstraintTest, ACompilationStopsWhenItsCallHasEnded) {
  int num_polls = 0;
  const auto stopped = cache_.Get(Large(), [&num_polls] { return ++num_polls == 3; });
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled) << stopped.status();
  EXPECT_EQ(num_polls, 3);
  EXPECT_TRUE(cache_.Get(Large(), Never).ok()) << "the next call compiles it";
}

TEST_F(CompiledConstraintTest, ACompilationGoesOnForCallsThatWaitForIt) {
  std::atomic<bool> is_compiling = false, is_awaited = false;
  absl::StatusOr<std::shared_ptr<const Grammar>> ended, waiting;
  std::thread first([&] {
    ended = cache_.Get(Large(), [&] {
      is_compiling = true;
      is_compiling.notify_all();
      is_awaited.wait(false);
      return true;
    });
  });
  is_compiling.wait(false);
  waiting = cache_.Get(Large(), [&] {
    is_awaited = true;
    is_awaited.notify_all();
    return false;
  });
  first.join();
  ASSERT_TRUE(ended.ok()) << ended.status();
  ASSERT_TRUE(waiting.ok()) << waiting.status();
  EXPECT_EQ(*ended, *waiting) << "it was compiled once";
}

TEST_F(ConstraintTest, CallsThatWaitHoldNoWorkerAndHaveALimit) {
  GrammarCache none(&Zoo(), /*max_compiling=*/0);
  const GrammarSource source = {.kind = GrammarSource::Kind::kRegex, .text = "a"};
  std::atomic<bool> is_over = false;
  std::atomic<int> num_small = 0;
  WorkerPool workers({.num_threads = 2});
  const auto wait = [&] {
    EXPECT_FALSE(none.Get(
                         source, [&] { return is_over.load(); }, "", &workers)
                     .ok());
  };
  absl::Status refused;
  EXPECT_TRUE(PollUntil([&] {
    for (int i = 0; i < 8; ++i) workers.Submit("a", 10, wait).IgnoreError();
    refused = none.Get(source, [] { return true; }).status();
    return absl::IsResourceExhausted(refused);
  }));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("64 requests wait for constraints"));
  EXPECT_EQ(RetryDelay(refused), absl::FromChrono(kMaxGrammarWait));
  EXPECT_TRUE(workers.Submit("a", 10, [&] { ++num_small; }).ok());
  EXPECT_TRUE(PollUntil([&] { return num_small == 1; }));
  is_over = true;
}

TEST_F(CompiledConstraintTest, BadFieldsAreNamed) {
  const auto refusal = [this](const v1::GenerateRequest& message) {
    const auto parsed = Parse(message);
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(parsed.status().message());
  };
  v1::GenerateRequest message = Message();
  message.set_json_object(false);
  EXPECT_EQ(refusal(message), "json_object is false; it must be true or left out");
  message.set_json_schema(R"({"not":{}})");
  EXPECT_EQ(refusal(message), "json_schema has not, which is not enforced (at \"#\")");
  message.set_json_schema_or_text(R"({"not":{}})");
  EXPECT_EQ(refusal(message), "json_schema_or_text has not, which is not enforced (at \"#\")");
  message.set_regex("\xff");
  EXPECT_EQ(refusal(message), "regex is not UTF-8 at byte 0");
  message.set_regex(std::string(kMaxGrammarBytes + 1, 'a'));
  EXPECT_EQ(refusal(message), "regex has 262145 bytes; it must have at most 262144");
  message.mutable_choice();
  EXPECT_EQ(refusal(message), "choice has 0 entries; it must have 1 to 1024");
  message.mutable_choice()->add_texts("a");
  message.mutable_choice()->add_texts("\xff");
  EXPECT_EQ(refusal(message), "choice[1] is not UTF-8 at byte 0");
  message.set_grammar("root ::= \"a\"");
  EXPECT_TRUE(Parse(message).ok());
  const std::vector<int32_t> ids = Encode("zzz");
  message.mutable_sampling()->mutable_allowed_token_ids()->Assign(ids.begin(), ids.end());
  EXPECT_EQ(refusal(message), "grammar allows no first token that may be sampled");
}

TEST_F(ConstraintTest, WithoutATokenizerItIsAFailedPrecondition) {
  Checkpoint bare;
  bare.config = Zoo().config;
  v1::GenerateRequest message = Message();
  message.set_regex("a");
  ParseContext context = Context();
  context.checkpoint = &bare;
  context.grammars = &cache_;
  EXPECT_EQ(ParseGenerate(message, context).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace lssar
