// Reads whole files: configs, indices, tokenizers, key files.
#ifndef LSSAR_KERNELS_READ_FILE_H_
#define LSSAR_KERNELS_READ_FILE_H_

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/str_cat.h"

namespace lssar {

inline constexpr size_t kMaxTextFileBytes = 100'000'000;

// The status of a failed call on `path`; `error` is its errno.
inline absl::Status FileError(const std::string& path, int error) {
  const std::string message = StrCat(path, ": ", std::strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  if (error == ENOMEM) return absl::ResourceExhaustedError(message);
  return absl::InvalidArgumentError(message);
}

// Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: a directory, not readable, or longer than
//         `max_bytes`
inline absl::StatusOr<std::string> ReadWholeFile(const std::string& path,
                                                 size_t max_bytes = kMaxTextFileBytes) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return FileError(path, errno);
  std::string bytes;
  char block[1 << 16];
  while (const size_t num_read = std::fread(block, 1, sizeof(block), file.get())) {
    bytes.append(block, num_read);
    if (bytes.size() > max_bytes) {
      return absl::InvalidArgumentError(StrCat(path, ": longer than ", max_bytes, " bytes"));
    }
  }
  if (std::ferror(file.get()) != 0) return FileError(path, errno);
  return bytes;
}

}  // namespace lssar

#endif  // LSSAR_KERNELS_READ_FILE_H_
