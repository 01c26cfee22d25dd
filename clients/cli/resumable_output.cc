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

// Calls on_line with each line that ends in a line feed. Returns the bytes of all of them.
absl::StatusOr<uint64_t> ReadCompleteLines(
    const std::string& path, const std::function<absl::Status(const std::string&)>& on_line) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return absl::PermissionDeniedError(StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  uint64_t num_bytes = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    num_bytes += line.size() + 1;
    RETURN_IF_ERROR(on_line(line));
  }
  if (file.bad()) return absl::InternalError(StrCat("cannot read ", path));
  return num_bytes;
}

}  // namespace

absl::StatusOr<ResumableOutput> ResumableOutput::Open(
    const std::string& path, bool resume,
    const std::function<absl::Status(const std::string&)>& on_line) {
  ResumableOutput output;
  output.path_ = path;
  std::error_code error;
  if (fs::exists(path, error)) {
    if (!resume) {
      return absl::AlreadyExistsError(
          StrCat(path, " exists; continue it with --resume, or name another file"));
    }
    ASSIGN_OR_RETURN(const uint64_t num_bytes, ReadCompleteLines(path, on_line));
    fs::resize_file(path, num_bytes, error);
    if (error) {
      return absl::PermissionDeniedError(StrCat("cannot write ", path, ": ", error.message()));
    }
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

absl::Status NotResumable(const std::string& path) {
  return absl::FailedPreconditionError(
      StrCat(path, " is not an output of this command, so it cannot be resumed"));
}

absl::StatusOr<nlohmann::ordered_json> ParseResumedLine(const std::string& path,
                                                        const std::string& line,
                                                        const std::string& field,
                                                        const std::string& checkpoint_hash) {
  auto json = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto number = json.is_object() ? json.find(field) : json.end();
  const auto hash = json.is_object() ? json.find("checkpoint_hash") : json.end();
  if (number == json.end() || !number->is_number_integer() || hash == json.end() ||
      !hash->is_string()) {
    return NotResumable(path);
  }
  if (*hash != checkpoint_hash) {
    return absl::FailedPreconditionError(StrCat(path, " is of the checkpoint ",
                                                hash->get<std::string>(), ", this server has ",
                                                checkpoint_hash));
  }
  return json;
}

}  // namespace lssar::cli
