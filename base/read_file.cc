#include "base/read_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar {
namespace {

constexpr int kMaxReads = 3;  // of a file that changes while it is read

std::string_view NameOfKind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "no regular file";
}

absl::Status Changed(const std::string& path) {
  return absl::AbortedError(StrCat(path, ": the file was changed while it was read"));
}

// Errors  ABORTED: the file has not the size that it had when it was opened
absl::Status ReadBytes(const RegularFile& file, std::string* bytes) {
  bytes->resize(file.NumBytes());
  size_t at = 0;
  while (at < bytes->size()) {
    const ssize_t num_read =
        pread(file.Descriptor(), bytes->data() + at, bytes->size() - at, off_t(at));
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return FileError(file.Path(), errno);
    if (num_read == 0) return Changed(file.Path());
    at += size_t(num_read);
  }
  return file.CheckUnchanged();
}

}  // namespace

absl::Status FileError(const std::string& path, int error) {
  const std::string message = StrCat(path, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR: return absl::NotFoundError(message);
    case ENOMEM:
    case EMFILE:
    case ENFILE: return absl::ResourceExhaustedError(message);
    default: return absl::InvalidArgumentError(message);
  }
}

absl::StatusOr<RegularFile> RegularFile::Open(const std::string& path) {
  RegularFile file;
  file.path_ = path;
  // O_NONBLOCK: opening a FIFO or a device returns at once.
  do {
    file.descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  } while (file.descriptor_ < 0 && errno == EINTR);
  if (file.descriptor_ < 0 && errno == ENXIO) {  // a socket cannot be opened
    return absl::InvalidArgumentError(StrCat(path, ": is a socket, must be a regular file"));
  }
  struct stat status;
  if (file.descriptor_ < 0) {
    const int error = errno;
    // Not NOT_FOUND: an optional file that somebody put there is not left out in silence.
    if (error == ENOENT && lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode)) {
      return absl::InvalidArgumentError(StrCat(path, ": is a link to a file that does not exist"));
    }
    return FileError(path, error);
  }
  if (fstat(file.descriptor_, &status) != 0) return FileError(path, errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        StrCat(path, ": is ", NameOfKind(status.st_mode), ", must be a regular file"));
  }
  file.num_bytes_ = size_t(status.st_size);
  file.modified_ = status.st_mtim;
  return file;
}

absl::Status RegularFile::CheckUnchanged() const {
  struct stat status;
  if (fstat(descriptor_, &status) != 0) return FileError(path_, errno);
  const bool is_same = size_t(status.st_size) == num_bytes_ &&
                       status.st_mtim.tv_sec == modified_.tv_sec &&
                       status.st_mtim.tv_nsec == modified_.tv_nsec;
  return is_same ? absl::OkStatus() : Changed(path_);
}

RegularFile::RegularFile(RegularFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      num_bytes_(other.num_bytes_),
      modified_(other.modified_) {}

RegularFile::~RegularFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path, size_t max_bytes) {
  absl::Status status;
  for (int i = 0; i < kMaxReads; ++i) {
    ASSIGN_OR_RETURN(const RegularFile file, RegularFile::Open(path));
    if (file.NumBytes() > max_bytes) {
      return absl::InvalidArgumentError(
          StrCat(path, ": has ", file.NumBytes(), " bytes, must have at most ", max_bytes));
    }
    try {
      std::string bytes;
      status = ReadBytes(file, &bytes);
      if (status.ok()) return bytes;
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(
          StrCat(path, ": no memory for its ", file.NumBytes(), " bytes"));
    }
    if (!absl::IsAborted(status)) break;
  }
  return status;
}

}  // namespace lssar
