// The one reader of files: configurations, keys, certificates, tokenizers, templates, checkpoints.
// A file is read whole or not at all, and only if it is a regular file within a bound.
#ifndef LSSAR_BASE_READ_FILE_H_
#define LSSAR_BASE_READ_FILE_H_

#include <sys/types.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lssar {

// Bounds by kind of file, in bytes.
inline constexpr size_t kMaxTextFileBytes = 100'000'000;          // tokenizers, shard indices
inline constexpr size_t kMaxConfigFileBytes = size_t{1} << 20;    // config.json, --config
inline constexpr size_t kMaxKeyFileBytes = size_t{4} << 20;       // --api-keys
inline constexpr size_t kMaxPemFileBytes = size_t{1} << 20;       // certificates and TLS keys
inline constexpr size_t kMaxTemplateFileBytes = size_t{8} << 20;  // tokenizer_config.json

// The status of a failed call on `path`; `error` is its errno.
absl::Status FileError(const std::string& path, int error);

// An open regular file that somebody else may still write to: CheckUnchanged tells.
class RegularFile {
 public:
  // Never waits: a FIFO without a writer is refused like a directory, a device or a socket.
  // Errors  NOT_FOUND: no such file
  //         RESOURCE_EXHAUSTED: no file descriptor or no memory is left
  //         INVALID_ARGUMENT: not a regular file (the message says what it is; a link to nothing is
  //         none), or not readable
  static absl::StatusOr<RegularFile> Open(const std::string& path);

  const std::string& Path() const { return path_; }
  int Descriptor() const { return descriptor_; }
  size_t NumBytes() const { return num_bytes_; }  // when it was opened

  // Errors  ABORTED: the file's content was written or truncated since Open
  absl::Status CheckUnchanged() const;

  RegularFile(RegularFile&& other) noexcept;
  RegularFile& operator=(RegularFile&&) = delete;
  ~RegularFile();

 private:
  RegularFile() = default;

  std::string path_;
  int descriptor_ = -1;
  size_t num_bytes_ = 0;
  timespec modified_ = {};
};

// The file's content as it was at one moment. A file that changes meanwhile is read again, a few
// times.
// Errors  those of RegularFile::Open
//         INVALID_ARGUMENT: longer than `max_bytes`
//         ABORTED: the file kept changing
absl::StatusOr<std::string> ReadWholeFile(const std::string& path,
                                          size_t max_bytes = kMaxTextFileBytes);

}  // namespace lssar

#endif  // LSSAR_BASE_READ_FILE_H_
