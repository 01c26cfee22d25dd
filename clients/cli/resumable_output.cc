#include "clients/cli/resumable_output.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/status_macros.h"
#include "base/str_cat.h"

namespace lssar::cli {
namespace {

namespace fs = std::filesystem;

struct CompleteLines {
  uint64_t num_bytes = 0;
  std::string last;
};

// The lines that end in a line feed.
absl::StatusOr<CompleteLines> ReadCompleteLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return absl::PermissionDeniedError(StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  CompleteLines lines;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    lines.num_bytes += line.size() + 1;
    lines.last.swap(line);
  }
  if (file.bad()) return absl::InternalError(StrCat("cannot read ", path));
  return lines;
}

}  // namespace

absl::StatusOr<ResumableOutput> ResumableOutput::Open(const std::string& path, bool resume) {
  ResumableOutput output;
  output.path_ = path;
  std::error_code error;
  if (fs::exists(path, error)) {
    if (!resume) {
      return absl::AlreadyExistsError(
          StrCat(path, " exists; continue it with --resume, or name another file"));
    }
    ASSIGN_OR_RETURN(CompleteLines lines, ReadCompleteLines(path));
    fs::resize_file(path, lines.num_bytes, error);
    if (error) {
      return absl::PermissionDeniedError(StrCat("cannot write ", path, ": ", error.message()));
    }
    output.last_line_ = std::move(lines.last);
  }
  output.file_.reset(std::fopen(path.c_str(), "ab"));
  if (output.file_ == nullptr) {
    return absl::PermissionDeniedError(StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  return output;
}

absl::Status ResumableOutput::Append(const std::string& line) {
  const std::string with_end = line + "\n";
  if (std::fwrite(with_end.data(), 1, with_end.size(), file_.get()) != with_end.size() ||
      std::fflush(file_.get()) != 0) {
    return absl::ResourceExhaustedError(StrCat("cannot write ", path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace lssar::cli
