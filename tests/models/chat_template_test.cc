#include "models/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;
using testing::MessageOf;

const std::vector<ChatMessage> kMessages{
    {"system", "Be brief."}, {"user", " Hi! "}, {"assistant", "Hello."}, {"user", "Bye"}};

std::string Rendered(std::string_view text, bool add_generation_prompt = true,
                     std::span<const ChatMessage> messages = kMessages) {
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(text);
  if (!chat_template.ok()) return "PARSE " + MessageOf(chat_template.status());
  const absl::StatusOr<std::string> result =
      chat_template->Render(messages, add_generation_prompt, "<s>", "</s>");
  return result.ok() ? *result : "RENDER " + MessageOf(result.status());
}

TEST(ChatTemplateTest, ShippedTemplate) {
  const nlohmann::json config = nlohmann::json::parse(
      testing::ReadFile(std::string(testing::kShippedModel) + "/tokenizer_config.json"));
  const std::string text = config.at("chat_template");
  const std::vector<ChatMessage> talk{{"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}};
  EXPECT_EQ(Rendered(text, true, talk), "<|user|>Hi<|assistant|>Hello<|user|>Bye<|assistant|>");
  EXPECT_EQ(Rendered(text, false, talk), "<|user|>Hi<|assistant|>Hello<|user|>Bye");
}

TEST(ChatTemplateTest, BlocksAndExpressions) {
  EXPECT_EQ(Rendered("plain"), "plain");
  EXPECT_EQ(Rendered("{{ bos_token }}x{{ eos_token }}"), "<s>x</s>");
  EXPECT_EQ(Rendered("{% for m in messages %}{{ m.role }},{% endfor %}"),
            "system,user,assistant,user,");
  EXPECT_EQ(Rendered("{% for m in messages %}{% if loop.first %}[{% elif loop.last %}]{% else %}-"
                     "{% endif %}{% endfor %}"),
            "[--]");
  EXPECT_EQ(Rendered("{% for m in messages %}{{ m['content'] | trim }}{% endfor %}"),
            "Be brief.Hi!Hello.Bye");
  EXPECT_EQ(Rendered("{{ 'a' + \"b\" + 'it\\'s\\n' }}"), "abit's\n");
  EXPECT_EQ(Rendered("{{ 'p' if add_generation_prompt else 'q' }}", true), "p");
  EXPECT_EQ(Rendered("{{ 'p' if add_generation_prompt else 'q' }}", false), "q");
  EXPECT_EQ(Rendered("{{ 'p' if not add_generation_prompt and true or 'a' != 'b' else 'q' }}"),
            "p");
  EXPECT_EQ(Rendered("{{ ('' or 'b') + ('a' and 'c') }}"), "bc");
  EXPECT_EQ(Rendered("{{ 'x' if ('a' == 'b') == false else 'y' }}"), "x");
  EXPECT_EQ(Rendered("a{# a note with {{ }} in it #}b"), "ab");
}

TEST(ChatTemplateTest, Whitespace) {
  EXPECT_EQ(Rendered("a \n {%- if true -%} \n b {% endif %}"), "ab ");
  EXPECT_EQ(Rendered("a {{- 'b' -}} c"), "abc");
  EXPECT_EQ(Rendered("{% if true %}\n  x\n  {% endif %}\ny\n"), "  x\ny");
  EXPECT_EQ(Rendered("x {% if true %}y{% endif %}"), "x y");
  EXPECT_EQ(Rendered("{{ 'a' }}\nb"), "a\nb") << "{{ }} keeps its newline";
}

TEST(ChatTemplateTest, RaiseException) {
  constexpr std::string_view kText =
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no ' + m.role) }}"
      "{% endif %}{% endfor %}";
  EXPECT_EQ(Rendered(kText), "RENDER chat template: no system");
  EXPECT_EQ(Rendered(kText, true, std::span(kMessages).subspan(1)), "");
}

TEST(ChatTemplateTest, ErrorsNamePlaceAndText) {
  const struct {
    std::string_view text, message;
  } cases[] = {
      {"{% set x = 1 %}", "1:4: found \"set\""},
      {"a\n{{ foo }}", "2:4: found \"foo\""},
      {"{{ messages[0]['role'] }}", "1:4: found \"messages\""},
      {"{% for m in messages %}{{ m.name }}{% endfor %}", "1:29: found \"name\""},
      {"{% for m in messages %}{{ loop.index }}{% endfor %}", "found \"index\""},
      {"{% for m in messages %}{% for n in messages %}{% endfor %}{% endfor %}",
       "a for inside of a for"},
      {"{{ m.role }}", "found \"m\""},
      {"{{ 'a' | upper }}", "found \"upper\"; the only filter is trim"},
      {"{{ 'a' * 'b' }}", "expected }}, found \"*\""},
      {"{{ true }}", "boolean cannot be printed"},
      {"{{ 'a' + true }}", "+ joins texts"},
      {"{{ 'a' == true }}", "comparison of text and a boolean"},
      {"{{ 'a' if true }}", "expected else"},
      {"{{ 'a'", "1:1: tag does not end"},
      {"{{ 'a }}", "1:4: string does not end"},
      {"{{ 'a\\x41' }}", "found \\x"},
      {"{# a", "1:1: comment"},
      {"{% if true %}", "expected {% endif %}, found the end"},
      {"{% endif %}", "1:1: found a block that closes nothing"},
      {"{% for m in messages %}{% endif %}", "expected {% endfor %}, found {% endif"},
      {"{{ }}", "found }} where a value is expected"},
      {"{%", "tag does not end"},
      {"{% %}", "found"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(Rendered(c.text), ::testing::StartsWith("PARSE ")) << c.text;
    EXPECT_THAT(Rendered(c.text), HasSubstr(c.message)) << c.text;
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "(";
  EXPECT_THAT(Rendered("{{ " + deep + " }}"), HasSubstr("nested more than 64"));
  std::string nots;
  for (int i = 0; i < 100000; ++i) nots += "not ";
  EXPECT_THAT(Rendered("{{ " + nots + " }}"), HasSubstr("nested more than 64"));
}

}  // namespace
}  // namespace lssar
