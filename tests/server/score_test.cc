// Score, Tokenize, Detokenize and GetInfo over real gRPC on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "server/config/limits.h"
#include "tests/server/test_server.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;

v1::ScoreRequest Request(int num_items, int num_continuations) {
  v1::ScoreRequest request;
  for (int i = 0; i < num_items; ++i) {
    v1::ScoreItem& item = *request.add_items();
    for (int t = 0; t <= i % 5; ++t) item.mutable_context()->mutable_tokens()->add_ids(10 + i + t);
    for (int c = 0; c < num_continuations; ++c) {
      v1::TokenIds& tokens = *item.add_continuations()->mutable_tokens();
      for (int t = 0; t <= c; ++t) tokens.add_ids(20 + c + t);
    }
  }
  return request;
}

TEST(ScoreTest, EveryContinuationIsScoredOnceInOrder) {
  TestServer server;
  const Scored scored = Score(server.Stub(), Request(20, 3));
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  std::map<int, int> next;
  for (const v1::ContinuationScore& score : scored.Scores()) {
    EXPECT_EQ(score.continuation(), next[score.item()]++);
    EXPECT_EQ(score.num_tokens(), score.continuation() + 1);
    EXPECT_GT(score.num_bytes(), 0);
    EXPECT_LT(score.logprob(), 0.0);
  }
  EXPECT_EQ(next.size(), 20u);
  for (const auto& [item, count] : next) EXPECT_EQ(count, 3) << item;
  const v1::ScoreFinished& finished = scored.replies.back().finished();
  EXPECT_EQ(finished.checkpoint_hash(), "0123456789abcdef");
  EXPECT_GT(finished.usage().num_prompt_tokens(), 0);
}

TEST(ScoreTest, LogprobsAreSumsOfTokensAndReproducible) {
  TestServer server;
  v1::ScoreRequest request = Request(3, 2);
  request.set_per_token(true);
  request.set_top_logprobs(2);
  const Scored scored = Score(server.Stub(), request);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  std::map<std::pair<int, int>, double> sums;
  for (const v1::ScoreReply& reply : scored.replies) {
    if (reply.has_tokens()) {
      for (const v1::Token& token : reply.tokens().tokens()) {
        sums[{reply.tokens().item(), reply.tokens().continuation()}] += token.token().logprob();
        EXPECT_EQ(token.top_size(), 2);
      }
    } else if (reply.has_score()) {
      // All its tokens arrived before it.
      EXPECT_DOUBLE_EQ(sums.at({reply.score().item(), reply.score().continuation()}),
                       reply.score().logprob());
    }
  }
  EXPECT_EQ(sums.size(), 6u);
  v1::ScoreRequest alone;
  *alone.add_items() = request.items(2);
  const Scored again = Score(server.Stub(), alone);
  EXPECT_EQ(again.Scores().at(1).logprob(), (sums.at({2, 1})));
}

TEST(ScoreTest, LongContinuationsArriveInBlocks) {
  TestServer server;
  v1::ScoreRequest request = Request(1, 1);
  auto& tokens = *request.mutable_items(0)->mutable_continuations(0)->mutable_tokens();
  while (tokens.ids_size() < 1100) tokens.add_ids(3 + tokens.ids_size());
  request.set_per_token(true);
  const Scored scored = Score(server.Stub(), request);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  int next = 0;
  for (const v1::ScoreReply& reply : scored.replies) {
    if (!reply.has_tokens()) continue;
    EXPECT_EQ(reply.tokens().first(), next);
    EXPECT_LE(reply.tokens().tokens_size(), limits::kMaxTokensPerMessage);
    next += reply.tokens().tokens_size();
  }
  EXPECT_EQ(next, 1100);
}

// A call of 1024 items passes through a queue of 2 beside other calls.
TEST(ScoreTest, ACallLargerThanTheQueueWaitsForCapacity) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1, .max_queued_requests = 2});
  server.Hold();  // or the call may have ended before it is seen
  auto first =
      std::async(std::launch::async, [&server] { return Score(server.Stub(), Request(1024, 1)); });
  EXPECT_TRUE(
      server.WaitFor([](const v1::GetInfoReply& reply) { return reply.num_running() > 0; }));
  server.Release();
  int num_others = 0;
  while (first.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    const Scored other = Score(server.Stub(), Request(1, 1));
    if (other.status.ok()) ++num_others;
    if (!other.status.ok()) {
      ASSERT_EQ(other.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    }
  }
  const Scored scored = first.get();
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  EXPECT_EQ(scored.Scores().size(), 1024u);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(ScoreTest, AFullQueueRejectsTheFirstItem) {
  TestServer server({.max_model_len = 2048, .max_num_seqs = 1, .max_queued_requests = 1});
  server.Hold();
  auto running =
      std::async(std::launch::async, [&server] { return Score(server.Stub(), Request(1, 1)); });
  EXPECT_TRUE(
      server.WaitFor([](const v1::GetInfoReply& reply) { return reply.num_running() == 1; }));
  auto queued =
      std::async(std::launch::async, [&server] { return Score(server.Stub(), Request(1, 1)); });
  EXPECT_TRUE(
      server.WaitFor([](const v1::GetInfoReply& reply) { return reply.num_waiting() == 1; }));
  const Scored refused = Score(server.Stub(), Request(2, 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(refused.status.error_details().empty());
  EXPECT_TRUE(refused.replies.empty());
  server.Release();
  EXPECT_TRUE(running.get().status.ok());
  EXPECT_TRUE(queued.get().status.ok());
}

TEST(ScoreTest, ACancelledCallIsRemovedFromTheEngine) {
  TestServer server;
  server.SetStepMs(20);
  grpc::ClientContext context;
  const auto reader = server.Stub().Score(&context, Request(1000, 3));
  v1::ScoreReply reply;
  ASSERT_TRUE(reader->Read(&reply));
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(ScoreTest, AnInvalidItemIsItsOwnError) {
  TestServer server;
  const Scored all_good = Score(server.Stub(), Request(5, 2));
  ASSERT_TRUE(all_good.status.ok()) << all_good.status.error_message();
  v1::ScoreRequest request = Request(5, 2);
  for (const int item : {0, 3}) {
    request.mutable_items(item)->mutable_continuations(1)->mutable_tokens()->add_ids(4096);
  }
  const Scored scored = Score(server.Stub(), request);
  ASSERT_TRUE(scored.status.ok()) << scored.status.error_message();
  std::map<int, v1::ScoreError> errors;
  for (const v1::ScoreReply& reply : scored.replies) {
    if (reply.has_error()) errors[reply.error().item()] = reply.error();
  }
  ASSERT_EQ(errors.size(), 2u);
  for (const int item : {0, 3}) {
    EXPECT_EQ(errors[item].code(), int(grpc::StatusCode::INVALID_ARGUMENT));
    EXPECT_EQ(errors[item].message(), "items[" + std::to_string(item) +
                                          "].continuations[1].tokens.ids[2] is 4096; it must be in "
                                          "[0, 4096)");
  }
  EXPECT_TRUE(scored.replies.back().has_finished());
  // The others have the bits of a call without bad items.
  std::vector<std::string> expected, seen;
  for (const v1::ContinuationScore& score : all_good.Scores()) {
    if (score.item() != 0 && score.item() != 3) expected.push_back(score.SerializeAsString());
  }
  for (const v1::ContinuationScore& score : scored.Scores()) {
    seen.push_back(score.SerializeAsString());
  }
  EXPECT_THAT(seen, ::testing::UnorderedElementsAreArray(expected));
}

TEST(ScoreTest, WhereNoItemCanBeScoredTheCallFails) {
  TestServer server;
  v1::ScoreRequest request = Request(3, 1);
  for (v1::ScoreItem& item : *request.mutable_items()) {
    item.mutable_continuations(0)->mutable_tokens()->add_ids(-1);
  }
  const Scored scored = Score(server.Stub(), request);
  EXPECT_EQ(scored.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(scored.status.error_message(), HasSubstr("items[0].continuations[0].tokens.ids[1]"));
  EXPECT_TRUE(scored.replies.empty());
}

TEST(ScoreTest, NanLogitsEndTheCallWithDataLoss) {
  TestServer server;
  v1::ScoreRequest request = Request(30, 1);
  request.mutable_items(20)->mutable_context()->mutable_tokens()->add_ids(TestServer::kPoisonId);
  EXPECT_EQ(Score(server.Stub(), request).status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_TRUE(server.WaitUntilIdle());
}

TEST(TokenizeTest, TokenizeAndDetokenizeRoundTrip) {
  TestServer server;
  for (const std::string& text :
       {std::string("Hello there"), std::string("\u00fc\u4f60 \U0001f600"), std::string("")}) {
    v1::TokenizeRequest request;
    request.set_text(text);
    request.set_add_bos(false);
    grpc::ClientContext context;
    v1::TokenizeReply reply;
    ASSERT_TRUE(server.Stub().Tokenize(&context, request, &reply).ok());
    EXPECT_EQ(reply.ids_size(), reply.pieces_size());
    v1::DetokenizeRequest back;
    *back.mutable_ids() = reply.ids();
    grpc::ClientContext back_context;
    v1::DetokenizeReply whole;
    ASSERT_TRUE(server.Stub().Detokenize(&back_context, back, &whole).ok());
    EXPECT_EQ(whole.text(), text);
    EXPECT_EQ(whole.pieces_size(), reply.ids_size());
  }
}

TEST(TokenizeTest, AnIdOutOfRangeIsNamed) {
  TestServer server;
  v1::DetokenizeRequest request;
  request.add_ids(4096);
  grpc::ClientContext context;
  v1::DetokenizeReply reply;
  const grpc::Status status = server.Stub().Detokenize(&context, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "ids[0] is 4096; it must be in [0, 4096)");
}

TEST(GetInfoTest, DescribesModelAndLimits) {
  TestServer server({.max_model_len = 1024, .max_num_seqs = 5, .page_size = 32});
  const v1::GetInfoReply reply = server.Describe();
  EXPECT_EQ(reply.model_name(), "lssar-6m");
  EXPECT_EQ(reply.max_model_len(), 1024);
  EXPECT_EQ(reply.vocab_size(), 4096);
  EXPECT_EQ(reply.page_size(), 32);
  EXPECT_EQ(reply.kv_cache_dtype(), "fp16");
  EXPECT_EQ(reply.num_pages(), 4 * 1024 / 32);
  EXPECT_EQ(reply.num_free_pages(), reply.num_pages());
  EXPECT_EQ(reply.limits().max_num_seqs(), 5);
  EXPECT_EQ(reply.limits().max_queued_requests(), 64);
  EXPECT_EQ(reply.limits().max_message_bytes(), 32 << 20);
  EXPECT_TRUE(reply.has_chat_template());
  EXPECT_EQ(reply.version(), LSSAR_VERSION);
  EXPECT_FALSE(reply.has_self_check_error());  // no self-check ran
}

TEST(ScoreTest, LogprobsOfChosenIdsAndOfTheVocabulary) {
  TestServer server;
  v1::ScoreRequest request = Request(5, 4);
  request.set_per_token(true);
  const auto values_of = [&] {
    const Scored scored = Score(server.Stub(), request);
    EXPECT_TRUE(scored.status.ok()) << scored.status.error_message();
    std::map<std::pair<int, int>, std::vector<float>> values;
    std::map<std::pair<int, int>, bool> has_score;
    for (const v1::ScoreReply& reply : scored.replies) {
      if (reply.has_score()) has_score[{reply.score().item(), reply.score().continuation()}] = true;
      if (!reply.has_logprobs()) continue;
      const v1::ScoreLogprobs& block = reply.logprobs();
      const std::pair key(block.item(), block.continuation());
      EXPECT_FALSE(has_score[key]) << "logprobs after the score";
      std::vector<float>& all = values[key];
      EXPECT_EQ(int(all.size()), block.first() * block.size());
      all.insert(all.end(), block.values().begin(), block.values().end());
    }
    return values;
  };
  request.set_full_distribution(true);
  const auto whole = values_of();
  request.set_full_distribution(false);
  for (const int id : {7, 2}) request.add_logprob_token_ids(id);
  const auto chosen = values_of();
  ASSERT_EQ(whole.size(), 20u);
  ASSERT_EQ(chosen.size(), 20u);
  for (const auto& [key, all] : whole) {
    const size_t num_positions = size_t(key.second) + 1;
    const size_t vocab = all.size() / num_positions;
    ASSERT_EQ(chosen.at(key).size(), 2 * num_positions);
    for (size_t i = 0; i < num_positions; ++i) {
      EXPECT_EQ(chosen.at(key)[2 * i], all[i * vocab + 7]);
      EXPECT_EQ(chosen.at(key)[2 * i + 1], all[i * vocab + 2]);
    }
  }
  const auto message_of = [&] { return Score(server.Stub(), request).status.error_message(); };
  request.set_full_distribution(true);
  EXPECT_THAT(message_of(), HasSubstr("logprob_token_ids is set"));
  request.set_full_distribution(false);
  request.add_logprob_token_ids(-1);
  EXPECT_THAT(message_of(), HasSubstr("logprob_token_ids[2] is -1; it must be in [0, "));
  for (int i = 0; i < 1024; ++i) request.add_logprob_token_ids(3);
  EXPECT_THAT(message_of(), HasSubstr("logprob_token_ids has 1027 entries"));
}

}  // namespace
}  // namespace lssar
