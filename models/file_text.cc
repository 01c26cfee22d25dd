#include "models/file_text.h"
#include "kernels/str_cat.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

namespace lssar {

absl::Status FileError(const std::string& path, int error) {
  const std::string sentence = StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(sentence);
  if (error == ENOMEM) return absl::ResourceExhaustedError(sentence);
  return absl::InvalidArgumentError(sentence);
}

absl::StatusOr<std::string> ReadFileText(const std::string& path) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return FileError(path, errno);
  std::string text;
  char block[1 << 16];
  while (const size_t num_read = std::fread(block, 1, sizeof(block), file.get())) {
    text.append(block, num_read);
    if (text.size() > kMaxTextFileBytes) {
      return absl::InvalidArgumentError(
          StrCat(path, ": longer than ", kMaxTextFileBytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) return FileError(path, errno);
  return text;
}

}  // namespace lssar
