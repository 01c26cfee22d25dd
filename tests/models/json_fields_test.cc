#include "models/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/str_cat.h"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MessageOf;
using testing::Repeated;

TEST(ParseJsonTest, GivesTheSameValuesAsTheLibrary) {
  for (const char* text :
       {"null", "true", "-12", "18446744073709551615", "1.5e3", "\"a\\u00e9\\n\"", "[]", "{}",
        R"([1, [2, {"a": []}], "x"])", R"({"a": {"b": [1, {"c": null}], "d": 2}, "e": [[]]})"}) {
    const auto parsed = ParseJson(text, "f");
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, nlohmann::json::parse(text)) << text;
  }
}

TEST(ParseJsonTest, RefusesWhatIsNotJson) {
  const struct {
    std::string text, problem;
  } cases[] = {
      {"", "not JSON: at byte"},
      {"{\"a\":1", "not JSON: at byte"},
      {"[1,]", "not JSON: at byte 4"},
      {"1 2", "not JSON: at byte 3"},
      {"\"\xff\"", "not JSON: at byte 2"},
      // The library's parser ends at a NUL.
      {{"{}\0{", 4}, "not JSON: at byte 3"},
      {{"{}\0", 3}, "not JSON: at byte 3"},
      {{"[1,\0 2]", 7}, "not JSON: at byte 4"},
      {"[1e999]", "the number at byte 6 is too large"},
      {R"({"a":1,"b":{"a":1,"a":2}})", "the name \"a\" occurs twice in one object"},
      {Repeated("[", 65), "nested more than 64 levels deep"},
      {Repeated("{\"a\":", 100'000), "nested more than 64 levels deep"},
  };
  for (const auto& [text, problem] : cases) {
    const absl::Status status = ParseJson(text, "f").status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(MessageOf(status), HasSubstr(StrCat("f: ", problem))) << text.substr(0, 50);
  }
  EXPECT_TRUE(ParseJson(Repeated("[", 64) + Repeated("]", 64), "f").ok());
}

// Took minutes when the end of each member scanned all members before it.
TEST(ParseJsonTest, ManyMembersTakeLinearTime) {
  std::string text("{");
  for (int i = 0; i < 200'000; ++i) text += StrCat(i == 0 ? "" : ",", "\"", i, "\":{\"id\":[1]}");
  text += "}";
  const auto parsed = ParseJson(text, "f");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), 200'000u);
}

TEST(ForEachJsonMemberTest, VisitsMembersInOrder) {
  std::vector<std::string> visited;
  const auto visit = [&](const std::string& name, const nlohmann::json& value) {
    visited.push_back(StrCat(name, "=", value.dump()));
    return name == "bad" ? absl::InvalidArgumentError("stop") : absl::OkStatus();
  };
  EXPECT_TRUE(ForEachJsonMember(R"({"b":1,"a":{"x":[1,{}]},"c":[],"d":"y"})", "f", visit).ok());
  EXPECT_THAT(visited, ElementsAre("b=1", "a={\"x\":[1,{}]}", "c=[]", "d=\"y\""));
  visited.clear();
  EXPECT_EQ(ForEachJsonMember(R"({"a":1,"bad":{},"c":2})", "f", visit).message(), "stop");
  EXPECT_THAT(visited, ElementsAre("a=1", "bad={}"));
  EXPECT_THAT(MessageOf(ForEachJsonMember("[1]", "f", visit)), HasSubstr("f: is array, not a"));
  EXPECT_THAT(MessageOf(ForEachJsonMember("7", "f", visit)), HasSubstr("not a JSON object"));
  EXPECT_THAT(MessageOf(ForEachJsonMember(R"({"a":1,"a":2})", "f", visit)), HasSubstr("twice"));
  EXPECT_THAT(MessageOf(ForEachJsonMember(std::string("{}\0", 3), "f", visit)),
              HasSubstr("not JSON: at byte 3"));
}

}  // namespace
}  // namespace lssar
