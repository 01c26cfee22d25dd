// Whole small files as text: configs, indices, tokenizers.
#ifndef LSSAR_MODELS_FILE_TEXT_H_
#define LSSAR_MODELS_FILE_TEXT_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

inline constexpr size_t kMaxTextFileBytes = 100'000'000;

// Errors  NOT_FOUND: no such file; INVALID_ARGUMENT: a directory, not readable, or longer than
//         kMaxTextFileBytes.
absl::StatusOr<std::string> ReadFileText(const std::string& path);

// What errno said about `path`.
absl::Status FileError(const std::string& path, int error);

}  // namespace lssar

#endif  // LSSAR_MODELS_FILE_TEXT_H_
