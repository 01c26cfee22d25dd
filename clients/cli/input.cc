#include "clients/cli/input.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/argument_parser.h"
#include "clients/cli/usage.h"

namespace lssar::cli {
namespace {

bool IsIdList(absl::string_view text) {
  return !text.empty() && absl::ascii_isdigit(uint8_t(text[0])) &&
         text.find_first_not_of("0123456789, ") == absl::string_view::npos;
}

// Whether a name that is no file is a list with a fault in it.
bool LooksLikeIds(absl::string_view text) {
  return absl::StrContains(text, ',') || (!text.empty() && absl::ascii_isdigit(uint8_t(text[0])));
}

absl::StatusOr<std::vector<int32_t>> ParseIdList(absl::string_view list) {
  std::vector<int32_t> ids;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(entry, &id)) {
      return absl::InvalidArgumentError(
          StrCat("--ids: '", entry,
                 "' is not a token id; give a list such as 2,17,300, or a file that can be read"));
    }
    ids.push_back(id);
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const auto close = [](FILE* file) {
    if (file != stdin) std::fclose(file);
  };
  const std::unique_ptr<FILE, decltype(close)> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"), close);
  if (file == nullptr) {
    return absl::NotFoundError(StrCat("cannot open ", path, ": ", std::strerror(errno)));
  }
  std::string text;
  char block[1 << 16];
  while (true) {
    const size_t num_read = std::fread(block, 1, sizeof(block), file.get());
    text.append(block, num_read);
    if (num_read < sizeof(block)) break;
  }
  if (std::ferror(file.get()) != 0) {
    const std::string reason = std::strerror(errno);
    return absl::InternalError(StrCat("cannot read ", path, ": ", reason));
  }
  return text;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "wb");
  bool is_written =
      file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int error = errno;
  if (file != nullptr && std::fclose(file) != 0 && is_written) {
    is_written = false;
    error = errno;
  }
  return is_written ? absl::OkStatus() : absl::ErrnoToStatus(error, StrCat("cannot write ", path));
}

absl::StatusOr<std::vector<int32_t>> ReadTokenIds(const std::string& list_or_path) {
  if (IsIdList(list_or_path)) return ParseIdList(list_or_path);
  const absl::StatusOr<std::string> text = ReadText(list_or_path);
  if (absl::IsNotFound(text.status()) && LooksLikeIds(list_or_path)) {
    return ParseIdList(list_or_path);
  }
  ASSIGN_OR_RETURN(const std::string bytes, text);
  if (bytes.size() % 2 != 0) {
    return absl::InvalidArgumentError(StrCat(list_or_path, ": ", bytes.size(),
                                             " bytes are not a whole number of uint16 token ids"));
  }
  std::vector<int32_t> ids(bytes.size() / 2);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = uint8_t(bytes[2 * i]) | (uint8_t(bytes[2 * i + 1]) << 8);
  }
  return ids;
}

void AddPromptFlags(ArgumentParser* parser, PromptFlags* flags) {
  constexpr char kGroup[] = "Prompt";
  parser->Add("prompt", flags->text, "the prompt; - reads standard input").ValueName(" ");
  parser->Add("--prompt-file", flags->file, "read the prompt from a file; - is standard input")
      .ValueName("FILE")
      .Group(kGroup);
  parser->Add("--ids", flags->ids, "token ids instead of text: 2,17,300 or a file of uint16")
      .ValueName("LIST|FILE")
      .Group(kGroup);
  parser->Add("--length", flags->length, "only the first N of --ids [tokens; default: all]")
      .ValueName("N")
      .Group(kGroup)
      .Range(1, kMaxLength);
}

absl::StatusOr<Prompt> ReadPrompt(const PromptFlags& flags) {
  if (flags.text.has_value() + flags.file.has_value() + flags.ids.has_value() != 1) {
    return absl::InvalidArgumentError(
        "give one prompt: an argument, - for standard input, --prompt-file FILE or --ids");
  }
  if (flags.length.has_value() && !flags.ids.has_value()) {
    return absl::InvalidArgumentError("--length applies with --ids only");
  }
  Prompt prompt;
  if (flags.ids.has_value()) {
    ASSIGN_OR_RETURN(prompt.ids, ReadTokenIds(*flags.ids));
    if (flags.length.has_value() && size_t(*flags.length) < prompt.ids->size()) {
      prompt.ids->resize(size_t(*flags.length));
    }
  } else if (flags.text.has_value() && *flags.text != "-") {
    prompt.text = flags.text;
  } else {
    ASSIGN_OR_RETURN(prompt.text, ReadText(flags.file.value_or("-")));
    if (prompt.text->ends_with('\n')) prompt.text->pop_back();
  }
  return prompt;
}

}  // namespace lssar::cli
