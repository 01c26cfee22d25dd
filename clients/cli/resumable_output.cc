#include "clients/cli/resumable_output.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/status_macros.h"
#include "base/str_cat.h"
#include "clients/cli/json_output.h"

namespace lssar::cli {
namespace {

namespace fs = std::filesystem;
using Json = ResumableOutput::Json;

Json JobOf(const v1::GetInfoReply& served, const SchedulingFlags& flags) {
  v1::ScoreRequest request;
  FillScheduling(flags, &request);
  Json job = {{"checkpoint_hash", served.checkpoint_hash()},
              {"tokenizer_hash", served.tokenizer_hash()},
              {"config_hash", served.config_hash()},
              {"dtype", served.dtype()},
              {"kv_cache_dtype", served.kv_cache_dtype()},
              {"device", served.device()},
              {"attention_override", nullptr}};
  if (request.has_attention_override()) {
    job["attention_override"] = MessageToJson(request.attention_override());
  }
  return job;
}

absl::Status NoOutput(const std::string& path) {
  return absl::FailedPreconditionError(
      StrCat(path, " is not an output of this command in this version, so it cannot be resumed"));
}

absl::Status CheckLine(const std::string& path, const std::string& text, const Json& job,
                       const std::function<absl::Status(const Json&)>& on_line) {
  try {
    const Json line = Json::parse(text);
    for (const auto& [name, value] : job.items()) {
      if (line.at(name) == value) continue;
      return absl::FailedPreconditionError(StrCat(path, " has lines with ", name, " ",
                                                  line.at(name).dump(), ", not ", value.dump()));
    }
    return on_line(line);
  } catch (const Json::exception&) {
    return NoOutput(path);
  }
}

// Reads the lines that end in a line feed. Returns the bytes of all of them. What follows must be
// the beginning of a line with `first_field`: it will be cut off.
absl::StatusOr<uint64_t> ReadLines(const std::string& path, const std::string& first_field,
                                   const Json& job,
                                   const std::function<absl::Status(const Json&)>& on_line) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) {
    return absl::PermissionDeniedError(StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  uint64_t num_bytes = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    num_bytes += line.size() + 1;
    RETURN_IF_ERROR(CheckLine(path, line, job, on_line));
  }
  if (file.bad()) return absl::InternalError(StrCat("cannot read ", path));
  const std::string begin = StrCat("{\"", first_field, "\":");
  if (!begin.starts_with(line.substr(0, begin.size()))) return NoOutput(path);
  return num_bytes;
}

}  // namespace

absl::StatusOr<ResumableOutput> ResumableOutput::Open(
    const std::string& path, bool resume, const std::string& first_field,
    const v1::GetInfoReply& served, const SchedulingFlags& flags,
    const std::function<absl::Status(const Json&)>& on_line) {
  ResumableOutput output;
  output.path_ = path;
  output.job_ = JobOf(served, flags);
  std::error_code error;
  if (fs::exists(path, error)) {
    if (!resume) {
      return absl::AlreadyExistsError(
          StrCat(path, " exists; continue it with --resume, or name another file"));
    }
    ASSIGN_OR_RETURN(const uint64_t num_bytes, ReadLines(path, first_field, output.job_, on_line));
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

absl::Status ResumableOutput::Append(Json line) {
  line.update(job_);
  const std::string with_end = JsonLine(line) + "\n";
  if (std::fwrite(with_end.data(), 1, with_end.size(), file_.get()) != with_end.size() ||
      std::fflush(file_.get()) != 0) {
    return absl::ResourceExhaustedError(StrCat("cannot write ", path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace lssar::cli
