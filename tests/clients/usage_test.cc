#include "clients/cli/usage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/connection.h"
#include "clients/cli/input.h"
#include "clients/cli/score_file.h"
#include "clients/cli/special_tokens.h"

namespace lssar::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(NearestMatch, FindsTypingErrors) {
  EXPECT_EQ(NearestMatch("genrate", {"chat", "generate", "score"}), "generate");
  EXPECT_EQ(NearestMatch("--temprature", {"--top-k", "--temperature"}), "--temperature");
  EXPECT_EQ(NearestMatch("--length", {"--lengths", "--seed"}), "--lengths");
  EXPECT_EQ(NearestMatch("frobnicate", {"chat", "score"}), "");
}

TEST(NearestMatch, NeedsTheSameFirstLetterAndAFewLettersInCommon) {
  EXPECT_EQ(NearestMatch("--p", {"--ca", "--n", "--key"}), "");
  EXPECT_EQ(NearestMatch("--p", {"--priority", "--port"}), "");
  EXPECT_EQ(NearestMatch("--cert", {"--server"}), "");
  EXPECT_EQ(NearestMatch("bcore", {"score"}), "");
  EXPECT_EQ(NearestMatch("-", {"--ca"}), "");
  EXPECT_EQ(NearestMatch("", {"--ca"}), "");
}

TEST(SuggestFlag, KnowsTheNamesOfOtherPrograms) {
  const std::vector<std::string> known = {"--max-tokens", "--max-model-len", "--server", "--top-p",
                                          "prompt"};
  EXPECT_EQ(SuggestFlag("--n-predict", known), "; did you mean '--max-tokens'?");
  EXPECT_EQ(SuggestFlag("--ctx-size", known), "; did you mean '--max-model-len'?");
  EXPECT_EQ(SuggestFlag("--port", known), "; did you mean '--server'?");
  EXPECT_EQ(SuggestFlag("--max-tokns", known), "; did you mean '--max-tokens'?");
  EXPECT_THAT(SuggestFlag("-p", known), HasSubstr("give the prompt as an argument"));
  EXPECT_EQ(SuggestFlag("--p", known), "");
  // Only flags that the command has.
  EXPECT_EQ(SuggestFlag("--n-predict", {"--json"}), "");
}

TEST(CheckServerAddress, NamesWhatToGiveInsteadOfAUrl) {
  for (const char* server : {"localhost:50051", "[::1]:50051", "unix:/run/lssar.sock",
                             "dns:///host:50051", "10.0.0.1:1"}) {
    EXPECT_TRUE(CheckServerAddress(server).ok()) << server;
  }
  const auto message = [](const char* server) {
    const absl::Status status = CheckServerAddress(server);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << server;
    return std::string(status.message());
  };
  EXPECT_THAT(message("http://localhost:8080"), HasSubstr("is a URL; give HOST:PORT"));
  EXPECT_THAT(message("http://localhost:8080/v1"), HasSubstr("such as localhost:50051"));
  EXPECT_THAT(message("HTTPS://example.org"), HasSubstr("and --tls"));
  EXPECT_THAT(message("localhost"), HasSubstr("has no port; give HOST:PORT"));
}

TEST(ReadTokenIds, TakesListsAndFiles) {
  EXPECT_THAT(*ReadTokenIds("2,17, 300"), ElementsAre(2, 17, 300));
  EXPECT_THAT(*ReadTokenIds("7"), ElementsAre(7));
  const std::pair<const char*, const char*> faults[] = {
      {"1,,2", "''"},   {"1,", "''"},      {"99999999999", "'99999999999'"},
      {"1 2", "'1 2'"}, {"1,2,x", "'x'"},  {"[1,2]", "'[1'"},
      {"12x", "'12x'"}, {"1,2.5", "'2.5'"}};
  for (const auto& [list, entry] : faults) {
    const auto ids = ReadTokenIds(list);
    ASSERT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument) << list;
    EXPECT_THAT(std::string(ids.status().message()),
                HasSubstr(StrCat("--ids: ", entry, " is not a token id")));
  }
  EXPECT_EQ(ReadTokenIds("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST(ParseCounts, TakesListsAndK) {
  const auto counts = ParseCounts("--lengths", "1024, 2K,16k", 1, 1 << 20);
  ASSERT_TRUE(counts.ok());
  EXPECT_THAT(*counts, ElementsAre(1024, 2048, 16384));
  EXPECT_EQ(FormatCount(16384), "16K");
  EXPECT_EQ(FormatCount(1000), "1000");
}

TEST(ParseCounts, NamesFlagEntryAndLimits) {
  for (const char* list : {"1K,x", "", "0", "-1", "2000K", "1.5K", "4294967297"}) {
    const auto counts = ParseCounts("--lengths", list, 1, 1 << 20);
    ASSERT_FALSE(counts.ok()) << list;
    EXPECT_THAT(std::string(counts.status().message()),
                ::testing::AllOf(HasSubstr("--lengths"), HasSubstr("from 1 to 1048576")));
  }
}

TEST(ParseNumbers, TakesNumbersOfTheRangeAndNamesFlagAndEntry) {
  const auto is_share = [](double number) { return number >= 0 && number <= 1; };
  const auto parse = [&](const char* list) {
    return ParseNumbers("--depths", list, is_share, "not a number from 0 to 1");
  };
  EXPECT_THAT(*parse("0,0.25,1"), ElementsAre(0, 0.25, 1));
  EXPECT_EQ(parse("0,2").status().message(), "--depths: '2' is not a number from 0 to 1");
  for (const char* list : {"", "0,", "nan", "-1", "x", "1K"})
    EXPECT_FALSE(parse(list).ok()) << list;
}

TEST(ParseIndices, TakesIndicesRangesAndAll) {
  const auto indices = ParseIndices("--rows", "0, 4..6,-1,-3..-2", 10);
  ASSERT_TRUE(indices.ok()) << indices.status();
  EXPECT_THAT(*indices, ElementsAre(0, 4, 5, 6, 9, 7, 8));
  EXPECT_THAT(*ParseIndices("--rows", "all", 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(*ParseIndices("--rows", "1..-1", 3), ElementsAre(1, 2));
}

TEST(ParseIndices, NamesFlagEntryAndCount) {
  for (const char* list : {"10", "-11", "", "x", "3..2", "1..", "..1", "0,10", "1..2..3", "1.5"}) {
    const auto indices = ParseIndices("--rows", list, 10);
    ASSERT_FALSE(indices.ok()) << list;
    EXPECT_EQ(indices.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(indices.status().message()),
                ::testing::AllOf(HasSubstr("--rows: '"), HasSubstr("is not an index of 10")));
  }
}

// All items of `lines`, or the first error.
absl::StatusOr<std::vector<ScoreLine>> ReadScoreLines(const std::string& lines) {
  std::istringstream stream(lines);
  ScoreFileReader reader(&stream);
  std::vector<ScoreLine> items;
  while (true) {
    ASSIGN_OR_RETURN(std::optional<ScoreLine> line, reader.Next());
    if (!line.has_value()) return items;
    items.push_back(*std::move(line));
  }
}

TEST(ScoreFileReader, TakesTextsAndIds) {
  const auto items = ReadScoreLines(
      "{\"context\": \"a\", \"continuations\": [\"b\", [3, 4]]}\n"
      "\n"
      "{\"continuations\": [\"c\"]}\n");
  ASSERT_TRUE(items.ok()) << items.status();
  ASSERT_EQ(items->size(), 2u);
  EXPECT_EQ((*items)[0].item.context().text(), "a");
  EXPECT_EQ((*items)[0].item.continuations(0).text(), "b");
  EXPECT_THAT((*items)[0].item.continuations(1).tokens().ids(), ElementsAre(3, 4));
  EXPECT_FALSE((*items)[1].item.has_context());
  EXPECT_EQ((*items)[1].line_number, 3);
}

TEST(ScoreFileReader, NamesLineAndField) {
  const auto expect_error = [](const char* lines, const char* part) {
    const auto items = ReadScoreLines(lines);
    ASSERT_FALSE(items.ok()) << lines;
    EXPECT_EQ(items.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(items.status().message()), HasSubstr(part));
  };
  expect_error("", "empty");
  expect_error("{\"continuations\": [\"a\"]}\n{oops", "line 2");
  expect_error("[1]", "line 1");
  expect_error("{\"context\": 5, \"continuations\": [\"a\"]}", "\"context\"");
  expect_error("{\"context\": \"a\"}", "\"continuations\"");
  expect_error("{\"continuations\": []}", "\"continuations\"");
  expect_error("{\"continuations\": [[-1]]}", "\"continuations\"");
  expect_error("{\"continuations\": [[99999999999]]}", "\"continuations\"");
  expect_error("{\"continuation\": [\"a\"]}", "\"continuation\"");
}

v1::Delta DeltaOf(const std::string& text, const std::vector<std::string>& pieces) {
  v1::Delta delta;
  delta.set_text(text);
  for (const std::string& piece : pieces) delta.add_tokens()->mutable_token()->set_piece(piece);
  return delta;
}

TEST(SpecialTokenFilter, RemovesSpecialTokensOnly) {
  SpecialTokenFilter filter;
  EXPECT_EQ(filter.Push(DeltaOf("Hi <|x|> there", {"Hi", " <|x|>", " there"})), "Hi <|x|> there");
  EXPECT_EQ(filter.Push(DeltaOf(" you<|user|>", {" you", "<|user|>"})), " you");
  EXPECT_EQ(filter.Push(DeltaOf("Well<|user|>!", {"Well", "<|user|>", "!"})), "Well!");
  EXPECT_EQ(filter.Finish(), "");
}

// A server that looks for the stop string "<|users" sends the text of the token in two parts.
TEST(SpecialTokenFilter, JoinsATokenThatComesInParts) {
  SpecialTokenFilter filter;
  EXPECT_EQ(filter.Push(DeltaOf("a", {"a", "<|user|>"})), "a");
  EXPECT_EQ(filter.Push(DeltaOf("<|use", {})), "");
  EXPECT_EQ(filter.Push(DeltaOf("r|>b", {"b"})), "b");
  EXPECT_EQ(filter.Push(DeltaOf("c <|", {"c", " <|"})), "c ");
  EXPECT_EQ(filter.Finish(), "<|");
}

TEST(IsSpecialPiece, NeedsTheWholeForm) {
  EXPECT_TRUE(IsSpecialPiece("<|endoftext|>"));
  for (const char* piece : {"", "<||>", "<|a", " <|a|>", "<|a b|>", "<s>", "a|>", "<|a|b|>"}) {
    EXPECT_FALSE(IsSpecialPiece(piece)) << piece;
  }
}

}  // namespace
}  // namespace lssar::cli
