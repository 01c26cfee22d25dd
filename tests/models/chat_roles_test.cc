#include "models/text/chat_roles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/text/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MessageOf;

const std::string kHash(64, 'a');

json Table() {
  return {
      {"version", 1},
      {"template_sha256", kHash},
      {"start", "<s>"},
      {"no_system", "[default]"},
      {"system", {{"placement", "own"}, {"prefix", "<S>"}, {"suffix", "</S>"}}},
      {"user", {{"prefix", "<U>"}, {"suffix", "</U>"}, {"strip_left", "whitespace"}}},
      {"assistant",
       {{"prefix", "<A>"},
        {"suffix", "</A>"},
        {"drop_through", "</think>"},
        {"strip_dropped", "newlines"}}},
      {"last", {{"assistant", {{"prefix", "<L>"}, {"suffix", ""}}}}},
      {"generation_prompt", "<A>"},
      {"end", "END"},
      {"next",
       {{"", {"system", "user"}},
        {"system", {"user"}},
        {"user", {"assistant"}},
        {"assistant", {"user"}}}},
      {"generate_after", {"user"}},
      {"end_after", {"user", "assistant"}},
      {"stop_strings", {"</A>"}},
  };
}

std::string RenderedWith(const json& table, const std::vector<ChatMessage>& messages,
                         bool add_generation_prompt = true) {
  const auto roles = ChatRoles::Parse(table.dump(), "roles.json", kHash);
  if (!roles.ok()) return "PARSE " + MessageOf(roles.status());
  const auto text = roles->Render(messages, add_generation_prompt);
  return text.ok() ? *text : "RENDER " + MessageOf(text.status());
}

TEST(ChatRolesTest, WritesEachRole) {
  EXPECT_EQ(RenderedWith(Table(), {{"user", "\u00a0hi "}}), "<s>[default]<U>hi </U><A>");
  EXPECT_EQ(RenderedWith(Table(), {{"system", " be "}, {"user", "hi"}}),
            "<s><S> be </S><U>hi</U><A>");
  EXPECT_EQ(RenderedWith(Table(), {{"user", "a"}, {"assistant", "x</think>\n\n y"}, {"user", "b"}}),
            "<s>[default]<U>a</U><A> y</A><U>b</U><A>");
  EXPECT_EQ(RenderedWith(Table(), {{"user", "a"}, {"assistant", "b</think>"}}, false),
            "<s>[default]<U>a</U><L>b</think>END");
}

TEST(ChatRolesTest, SystemTextInsideAUserMessage) {
  json table = Table();
  table["system"] = {{"placement", "first_user"}, {"prefix", "{"}, {"suffix", "}"}};
  const std::vector<ChatMessage> talk{
      {"system", "s"}, {"user", "a"}, {"assistant", "b"}, {"user", "c"}};
  EXPECT_EQ(RenderedWith(table, talk), "<s><U>{s}a</U><A>b</A><U>c</U><A>");
  table["system"]["placement"] = "last_user";
  table["system"]["user"] = {{"prefix", "<W>"}, {"suffix", "</W>"}};
  EXPECT_EQ(RenderedWith(table, talk), "<s><U>a</U><A>b</A><W>{s}c</W><A>");
}

TEST(ChatRolesTest, RefusesOrders) {
  EXPECT_THAT(
      RenderedWith(Table(), {{"assistant", "a"}}),
      HasSubstr("RENDER messages[0].role is \"assistant\"; the chat template allows system, "
                "user there"));
  EXPECT_THAT(RenderedWith(Table(), {{"user", "a"}, {"user", "b"}}), HasSubstr("messages[1].role"));
  EXPECT_THAT(RenderedWith(Table(), {{"user", "a"}, {"assistant", "b"}}),
              HasSubstr("the last message is of role \"assistant\""));
  json table = Table();
  table["system"] = nullptr;
  table["next"] = {{"", {"user"}}};
  EXPECT_THAT(RenderedWith(table, {{"system", "a"}, {"user", "b"}}),
              HasSubstr("allows user there"));
}

// The last occurrence, also one on both sides of a poll.
TEST(ChatRolesTest, DropsThroughTheLastOccurrenceInALongText) {
  for (const size_t num_behind : {0, 4'090, 4'096, 9'000}) {
    const std::string behind(num_behind, 'b');
    const std::string content = std::string(5'000, 'a') + "</think>x</think>" + behind;
    EXPECT_EQ(RenderedWith(Table(), {{"user", "a"}, {"assistant", content}, {"user", "c"}}),
              "<s>[default]<U>a</U><A>" + behind + "</A><U>c</U><A>");
  }
}

TEST(ChatRolesTest, ARenderingStops) {
  json table = Table();
  table["assistant"]["drop_through"] = std::string(1023, 'a') + "b";
  const auto roles = ChatRoles::Parse(table.dump(), "roles.json", kHash);
  ASSERT_TRUE(roles.ok()) << roles.status();
  const std::vector<ChatMessage> messages{
      {"user", "a"}, {"assistant", std::string(1'000'000, 'a')}, {"user", "c"}};
  int num_polls = 0;
  const auto stopped = roles->Render(messages, true, [&num_polls] { return ++num_polls == 100; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
}

// Each message would look through, and copy, its list.
TEST(ChatRolesTest, ARoleCountsOnceInAList) {
  json table = Table();
  table["next"]["user"] = json::array();
  for (int i = 0; i < 3; ++i) table["next"]["user"].push_back("assistant");
  EXPECT_THAT(RenderedWith(table, {{"user", "a"}, {"user", "b"}}),
              HasSubstr("allows assistant there"));
}

TEST(ChatRolesTest, ErrorsNameTheField) {
  const auto refusal = [](const std::string& path, const json& value) {
    json table = Table();
    table[json::json_pointer(path)] = value;
    return RenderedWith(table, {{"user", "a"}});
  };
  EXPECT_THAT(refusal("/version", 2), AllOf(HasSubstr("PARSE roles.json"), HasSubstr("version")));
  EXPECT_THAT(refusal("/template_sha256", "b"), HasSubstr("template_sha256 differs"));
  EXPECT_THAT(refusal("/user", nullptr), HasSubstr("user is missing"));
  EXPECT_THAT(refusal("/user/prefix", 1), HasSubstr("user: prefix is 1"));
  EXPECT_THAT(refusal("/user/strip_left", "all"), HasSubstr("strip_left"));
  EXPECT_THAT(refusal("/user/more", 1), HasSubstr("more"));
  EXPECT_THAT(refusal("/system/placement", "here"), HasSubstr("placement"));
  EXPECT_THAT(refusal("/assistant/drop_through", ""), HasSubstr("drop_through is empty"));
  EXPECT_THAT(refusal("/assistant/drop_through", std::string(1025, 'a')),
              HasSubstr("assistant: drop_through has 1025 bytes, must have at most 1024"));
  EXPECT_THAT(refusal("/next/user", {"tool"}), HasSubstr("\"tool\", which has no row"));
  EXPECT_THAT(refusal("/generate_after", "user"), HasSubstr("generate_after"));
  EXPECT_THAT(refusal("/stop_strings", {""}),
              HasSubstr("stop_strings has the element \"\", must hold texts of 1 to 256 bytes"));
  EXPECT_THAT(refusal("/stop_strings", json(17, "a")),
              HasSubstr("stop_strings has 17 elements, must have at most 16"));
}

}  // namespace
}  // namespace lssar
