// ChatTemplate: rendering is a function of template and messages, and text before a template comes
// out before its rendering.
// Input   the template
#include <string>
#include <vector>

#include "models/text/chat_template.h"
#include "tests/fuzz/fuzz_target.h"

namespace lssar {
namespace {

absl::StatusOr<std::string> Rendered(const std::string& text, bool add_generation_prompt) {
  static const std::vector<ChatMessage> messages = {
      {"system", " Be brief.\n"}, {"user", "Hi"}, {"assistant", ""}, {"user", "{{ bos_token }}"}};
  const absl::StatusOr<ChatTemplate> chat_template = ChatTemplate::Parse(text);
  if (!chat_template.ok()) return chat_template.status();
  return chat_template->Render(messages, add_generation_prompt, "<s>", "</s>");
}

}  // namespace

LSSAR_FUZZ_TARGET(chat_template) {
  const std::string text(TextOf(bytes));
  for (const bool add_generation_prompt : {false, true}) {
    auto result = Rendered(text, add_generation_prompt);
    auto again = Rendered("Z\n" + text, add_generation_prompt);
    if (FaultIsPlanted() && result.ok() && text.find("loop.last") != text.npos) *result += '.';
    LSSAR_CHECK(result.ok() == again.ok());
    // "{%-" at the beginning removes the line break before it.
    if (result.ok()) LSSAR_CHECK(*again == "Z\n" + *result || *again == "Z" + *result);
  }
}

}  // namespace lssar
