#include "clients/cli/read_text.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "kernels/str_cat.h"

namespace lssar::cli {

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

absl::StatusOr<std::string> ReadPrompt(const std::optional<std::string>& argument,
                                       const std::optional<std::string>& path) {
  if (argument.has_value() == path.has_value()) {
    return absl::InvalidArgumentError(
        "give one prompt: as an argument, with --prompt-file FILE, or - for standard input");
  }
  if (argument.has_value() && *argument != "-") return *argument;
  absl::StatusOr<std::string> text = ReadText(path.value_or("-"));
  // The newline that ends a file or an echo is not part of what is to be continued.
  if (text.ok() && text->ends_with('\n')) text->pop_back();
  return text;
}

}  // namespace lssar::cli
