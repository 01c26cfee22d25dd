#include "models/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/text/white_space.h"
#include "nlohmann/json.hpp"
#include "tests/models/fixture.h"

namespace lssar {
namespace {

using ::testing::HasSubstr;
using testing::MessageOf;
using testing::Repeated;

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
  EXPECT_EQ(Rendered("A\n\u00a0\f\u3000{% if true %}B{% endif %}"), "A\nB") << "any white space";
  EXPECT_EQ(Rendered("A\n \v {# c #}\nB"), "A\nB");
  EXPECT_EQ(Rendered("A\n. {# c #}B"), "A\n. B");
  EXPECT_EQ(Rendered("x {#-#} y"), "x y") << "the dash is the beginning's";
  EXPECT_EQ(Rendered("x {#--#} y"), "xy");
}

// SmolLM2's condition; values of jinja2.
TEST(ChatTemplateTest, FirstMessage) {
  constexpr std::string_view kText =
      "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}S{% endif %}"
      "{{ m.role[0] if false else m.content + messages[0].content }};{% endfor %}";
  EXPECT_THAT(Rendered(kText), HasSubstr("PARSE 1:"));
  constexpr std::string_view kGood =
      "{% for m in messages %}{% if loop.first and messages[0]['role'] != 'system' %}S{% endif %}"
      "{{ m.content + messages[0].content }};{% endfor %}";
  const std::vector<ChatMessage> talk{{"user", "a"}, {"assistant", "b"}};
  EXPECT_EQ(Rendered(kGood, true, talk), "Saa;ba;");
  const std::vector<ChatMessage> told{{"system", "a"}, {"user", "b"}};
  EXPECT_EQ(Rendered(kGood, true, told), "aa;ba;");
}

// Jinja reads CRLF and CR as LF first. Right: jinja2 with trim_blocks and lstrip_blocks.
TEST(ChatTemplateTest, LineEndsOfWindows) {
  constexpr std::string_view kText =
      "{% for m in messages %}\r\n{{ '<|user|>' + m.content }}\r\n{% endfor %}\r\n"
      "{% if add_generation_prompt %}\r\n<|assistant|>\r\n{% endif %}\r\n";
  const std::vector<ChatMessage> talk{{"user", "hi"}};
  EXPECT_EQ(Rendered(kText, true, talk), "<|user|>hi\n<|assistant|>\n");
}

TEST(ChatTemplateTest, TrimKnowsEveryWhiteSpaceOfPython) {
  const std::vector<ChatMessage> talk{{"user", "\u00a0\u3000\x1f\u200ahi\u2028\u0085 "}};
  EXPECT_EQ(Rendered("{{ messages[0].content | trim }}", true, talk), "hi");
  // U+200B and U+FEFF are no white space.
  const std::vector<ChatMessage> kept{{"user", "\u200bhi\ufeff"}};
  EXPECT_EQ(Rendered("{{ messages[0].content | trim }}", true, kept), "\u200bhi\ufeff");
  EXPECT_EQ(Rendered("a\u00a0{%- if true -%}\u3000b{% endif %}"), "ab");
}

// From either end, also where a text is not UTF-8 or ends within a character.
TEST(ChatTemplateTest, TrimTakesWholeCharacters) {
  std::string spaces;
  for (const char c : {'\t', '\n', '\v', '\f', '\r', '\x1c', '\x1d', '\x1e', '\x1f', ' '})
    spaces += c;
  for (const char* const space :
       {"\u0085", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003", "\u2004", "\u2005",
        "\u2006", "\u2007", "\u2008", "\u2009", "\u200a", "\u2028", "\u2029", "\u202f", "\u205f",
        "\u3000"}) {
    spaces += space;
  }
  EXPECT_EQ(TrimLeft(spaces + "a" + spaces), "a" + spaces);
  EXPECT_EQ(TrimRight(spaces + "a" + spaces), spaces + "a");
  EXPECT_EQ(TrimLeft(spaces), "");
  EXPECT_EQ(TrimRight(spaces), "");
  for (const std::string_view kept : {"\x85", "\xC2", "\x80\x80", "\xE2\x80", "\xE3\x80", "\u200b",
                                      "\u2060", "\u180e", "\u0084", "\u3001", "\x1b", "\x0e"}) {
    EXPECT_EQ(TrimLeft(kept), kept);
    EXPECT_EQ(TrimRight(kept), kept);
  }
}

TEST(ChatTemplateTest, ARenderingStops) {
  const auto chat_template =
      ChatTemplate::Parse("{% for m in messages %}" +
                          Repeated("{% if m.content | trim %}{% endif %}", 1000) + "{% endfor %}");
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  const std::vector<ChatMessage> messages{{"user", std::string(100'000, ' ')}};
  int num_polls = 0;
  const auto stopped = chat_template->Render(messages, true, "<s>", "</s>",
                                             [&num_polls] { return ++num_polls == 100; });
  EXPECT_TRUE(absl::IsCancelled(stopped.status())) << stopped.status();
  EXPECT_EQ(num_polls, 100);
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
      {"{{ messages[1]['role'] }}", "1:13: found \"1\"; of single messages only messages[0]"},
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

// Each took minutes, or the stack, when a chain was a tree as deep as it is long.
TEST(ChatTemplateTest, LongChainsAreParsedAndRenderedInLinearTime) {
  EXPECT_EQ(Rendered("{{ 'a'" + Repeated(" + 'a'", 100'000) + " }}"), std::string(100'001, 'a'));
  EXPECT_EQ(Rendered("{{ ' a '" + Repeated("|trim", 150'000) + " }}"), "a");
  EXPECT_EQ(Rendered("{{ ''" + Repeated(" or ''", 100'000) + " or 'b' }}"), "b");
  EXPECT_EQ(Rendered("{{ 'c'" + Repeated(" and 'c'", 100'000) + " and 'd' }}"), "d");
  EXPECT_EQ(Rendered("{{ 'p' if false" + Repeated(" or false and true", 50'000) + " else 'q' }}"),
            "q");
  EXPECT_EQ(Rendered(Repeated("{{ 'x' }} {% if true %}y{% endif %}", 25'000)),
            Repeated("x y", 25'000));
  EXPECT_EQ(Rendered("{% if false %}" + Repeated("{% elif false %}", 60'000) + "{% endif %}"), "");
  EXPECT_THAT(Rendered("{% if 'a' == 'b' %}x{% else %}" + Repeated("{{ 'a' }}", 100'000) + "{%"),
              HasSubstr("tag does not end"));
}

TEST(ChatTemplateTest, EachExpressionIsEvaluatedOnce) {
  // Twice each would be 2^60 evaluations.
  EXPECT_EQ(Rendered("{{ ''" + Repeated(" or ''", 60) + " or 'b' }}"), "b");
  EXPECT_EQ(Rendered("{{ 'a'" + Repeated(" and 'a'", 60) + " and 'b' }}"), "b");
  std::string nested = "''";
  for (int i = 0; i < 15; ++i) nested = "(('' or " + nested + ") and '')";
  EXPECT_EQ(Rendered("{{ " + nested + " or 'b' }}"), "b");
}

TEST(ChatTemplateTest, NestingIsBounded) {
  for (const std::string_view open :
       {"(", "not ", "not (", "'a' if (", "raise_exception(", "'a' + ("}) {
    EXPECT_THAT(Rendered("{{ " + Repeated(open, 40'000) + " }}"), HasSubstr("nested more than 64"))
        << open;
  }
  EXPECT_THAT(Rendered("{{ " + Repeated("'a' if true else ", 40'000) + "'b' }}"),
              HasSubstr("nested more than 64"));
  EXPECT_THAT(Rendered(Repeated("{% if true %}", 40'000)), HasSubstr("nested more than 64"));
}

TEST(ChatTemplateTest, SizeOfTemplateAndPromptAreBounded) {
  EXPECT_THAT(Rendered(std::string((1 << 20) + 1, 'x')), HasSubstr("must have at most 1048576"));
  const std::vector<ChatMessage> large{{"user", std::string(size_t{8} << 20, 'x')}};
  const std::string each =
      "{% for m in messages %}" + Repeated("{{ m.content }}", 9) + "{% endfor %}";
  EXPECT_THAT(Rendered(each, true, large), HasSubstr("longer than 67108864 bytes"));
  const std::string joined =
      "{% for m in messages %}{{ m.content" + Repeated(" + m.content", 9) + " }}{% endfor %}";
  EXPECT_THAT(Rendered(joined, true, large), HasSubstr("longer than 67108864 bytes"));
  const std::vector<ChatMessage> two{{"user", large[0].content}, {"user", large[0].content}};
  const std::string compared = "{% for m in messages %}{{ ''" +
                               Repeated(" or '' if m.content == m.content and false else ''", 1) +
                               "}}{% endfor %}";
  EXPECT_EQ(Rendered(compared, true, two), "");
  const std::string often = "{% for m in messages %}{% if false" +
                            Repeated(" or m.content == m.content and false", 200) +
                            "%}{% endif %}{% endfor %}";
  EXPECT_THAT(Rendered(often, true, two),
              HasSubstr("more than 1073741824 steps to render 2 messages"));
}

TEST(ChatTemplateTest, ALongMessageOfTheTemplateIsCut) {
  std::vector<ChatMessage> messages{{"user", "a" + Repeated("\xC3\xA4", 1000)}};
  const std::string error = Rendered(
      "{% for m in messages %}{{ raise_exception(m.content) }}{% endfor %}", true, messages);
  EXPECT_EQ(error, "RENDER chat template: a" + Repeated("\xC3\xA4", 249));
}

}  // namespace
}  // namespace lssar
