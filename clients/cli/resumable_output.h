// A file of JSON lines that a job writes and can go on with after it was stopped.
#ifndef LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_
#define LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/cli/request_flags.h"
#include "lssar/v1/inference.pb.h"

namespace lssar::cli {

class ResumableOutput {
 public:
  using Json = nlohmann::ordered_json;

  // Opens `path`. With `resume`, continues after the lines that are there, each of which on_line
  // gets, and cuts off a last one that is incomplete (the job was killed while it wrote); without,
  // the file must not exist. Nothing is cut off if there is an error.
  // `first_field`: with which each line begins.
  // `served`, `flags`: what decides a line's numbers besides the job's input. Each line has it:
  // those of several checkpoints, tokenizers, types, devices or attentions are never in one file.
  // `on_line` may throw Json::exception: the line is of another command.
  // Errors  ALREADY_EXISTS: it exists and `resume` is false; FAILED_PRECONDITION: a line is of
  //         another command, or was computed otherwise; PERMISSION_DENIED: it cannot be written;
  //         INTERNAL: reading failed; those of on_line
  static absl::StatusOr<ResumableOutput> Open(
      const std::string& path, bool resume, const std::string& first_field,
      const v1::GetInfoReply& served, const SchedulingFlags& flags,
      const std::function<absl::Status(const Json&)>& on_line);

  // Appends a line. It is with the operating system when this returns, so a kill does not lose it.
  // Errors  RESOURCE_EXHAUSTED: it cannot be written, for example because the disk is full
  absl::Status Append(Json line);

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::string path_;
  Json job_;  // fields of every line
  std::unique_ptr<std::FILE, Closer> file_;
};

}  // namespace lssar::cli

#endif  // LSSAR_CLIENTS_CLI_RESUMABLE_OUTPUT_H_
